"""The tiles of the tensor cores' implicit GEMM, and the constants of their expected times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from conv_advisor.data.problem import DType
from conv_advisor.kernels.cuda.parts.offers import Choice, choice_of

LARGEST_CLUSTER: Final = 16
"""Blocks of a cluster; above 8 a kernel needs an attribute that allows it."""


@dataclass(frozen=True)
class Tile:
    """The outputs of a block: `bm` filters of `bn` pixels.

    Parameters
    ----------
    bm, bn : int
    bk, channels : int
        Channels of a stage for 1x1, and for larger filters.
    warps_m, warps_n, warps_k : int
        Warps along the rows and columns of the tile, and groups of warps that share a stage.
    stages : int
        Stages in shared memory at a time.
    blocks : int
        Blocks that a multiprocessor's registers must have room for.
    latency, busy : float
        Correction factors on the model's two times of a stage.
    """

    bm: int
    bn: int
    bk: int
    channels: int
    warps_m: int
    warps_n: int
    warps_k: int
    stages: int
    blocks: int
    latency: float = 1.0
    busy: float = 1.0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_m * self.warps_n * self.warps_k


@dataclass(frozen=True)
class Menu:
    """The tiles of one precision, and the times of a launch's parts, in microseconds.

    Parameters
    ----------
    tiles : tuple of Tile
    launch, window : float
        Time of a launch, and additional time of a launch with windows.
    wave, output : float
        Time of each generation of blocks on a multiprocessor, and of 1024 outputs of a block.
    stage, fragment, step : float
        Latency of a stage, of 8 consecutive products of fragments of a warp, and of a step.
    busy_fragment, busy_step, weight, copy, gather, row : float
        Time that a block's stage keeps its multiprocessor busy: for 64 products of fragments, 64 steps of a warp, 512
        vectors of weight, 512 copies of x, 512 elements that pass through registers, 64 fragments of unaligned rows.
    cluster, rank, push : float
        Time of a cluster, of each of its blocks, and of 1024 outputs of a block that are pushed.
    """

    tiles: tuple[Tile, ...]
    launch: float
    window: float
    wave: float
    output: float
    stage: float
    fragment: float
    step: float
    busy_fragment: float
    busy_step: float
    weight: float
    copy: float
    gather: float
    row: float
    cluster: float
    rank: float
    push: float

    @cached_property
    def choice(self) -> Choice[Tile]:
        """Every tile with every size of a cluster."""
        return choice_of(self.tiles, LARGEST_CLUSTER)


SPLIT: Final = Menu(
    tiles=(
        Tile(32, 32, 64, 8, 1, 1, 4, 3, 3, 0.80, 1.01),
        Tile(16, 32, 64, 8, 1, 1, 4, 3, 5, 0.90, 1.10),
        Tile(16, 64, 32, 8, 1, 2, 2, 3, 5, 1.03, 0.94),
        Tile(32, 64, 64, 8, 1, 2, 4, 2, 2, 1.16, 0.99),
        Tile(64, 64, 32, 8, 2, 2, 1, 3, 3, 0.72, 0.86),
        Tile(64, 64, 32, 8, 2, 2, 2, 3, 2, 1.11, 0.89),
    ),
    launch=1.061,
    window=0.731,
    wave=0.656,
    output=0.162,
    stage=0.239,
    fragment=0.234,
    step=0.004,
    busy_fragment=0.242,
    busy_step=0.47,
    weight=0.056,
    copy=0.096,
    gather=0.1,
    row=0.102,
    cluster=0.609,
    rank=0.0,
    push=0.0,
)
TF32: Final = Menu(
    tiles=(
        Tile(32, 32, 64, 8, 1, 1, 4, 3, 3, 0.83, 1.17),
        Tile(16, 32, 64, 8, 1, 1, 4, 3, 5, 0.92, 1.06),
        Tile(16, 64, 64, 8, 1, 2, 4, 2, 2, 1.23, 0.91),
        Tile(32, 64, 64, 8, 1, 2, 4, 2, 2, 1.11, 1.02),
        Tile(64, 64, 32, 8, 2, 2, 1, 3, 3, 0.70, 0.99),
        Tile(64, 64, 32, 8, 2, 2, 2, 3, 2, 1.16, 0.91),
    ),
    launch=0.97,
    window=0.805,
    wave=0.82,
    output=0.117,
    stage=0.156,
    fragment=0.075,
    step=0.08,
    busy_fragment=0.068,
    busy_step=1.043,
    weight=0.0,
    copy=0.099,
    gather=0.1,
    row=0.158,
    cluster=0.594,
    rank=0.0,
    push=0.0,
)
HALF: Final = Menu(
    tiles=(
        Tile(32, 32, 64, 16, 1, 1, 4, 3, 4, 1.25, 0.86),
        Tile(16, 16, 128, 16, 1, 1, 8, 2, 3, 0.88, 1.52),
        Tile(16, 64, 64, 16, 1, 2, 2, 3, 4, 0.56, 0.94),
        Tile(32, 64, 64, 16, 1, 2, 4, 2, 2, 1.19, 0.86),
        Tile(64, 64, 64, 16, 2, 1, 2, 3, 3, 1.17, 0.70),
        Tile(64, 64, 64, 16, 2, 2, 2, 2, 2, 1.08, 0.70),
    ),
    launch=0.981,
    window=0.865,
    wave=1.008,
    output=0.097,
    stage=0.0,
    fragment=0.044,
    step=0.207,
    busy_fragment=0.273,
    busy_step=0.083,
    weight=0.124,
    copy=0.069,
    gather=0.134,
    row=0.233,
    cluster=0.426,
    rank=0.0,
    push=0.032,
)

MENUS: Final[Mapping[str, Mapping[DType, Menu]]] = {
    "nvidia-h200": {DType.FLOAT32: SPLIT, DType.TF32: TF32, DType.FLOAT16: HALF, DType.BFLOAT16: HALF}
}
"""By the device that they were fitted on."""
