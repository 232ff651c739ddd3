"""The tiles of the implicit GEMM, and the constants of their expected times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from conv_advisor.data.problem import DType
from conv_advisor.kernels.cuda.parts.offers import Choice, choice_of

LARGEST_CLUSTER: Final = 8
"""Blocks that a cluster may have on every device that has clusters."""


@dataclass(frozen=True)
class Tile:
    """The outputs of a block: `bm` filters of `bn` pixels, with `bk` of gemm_k per stage.

    Parameters
    ----------
    bm, bn, bk : int
    is_tensor : bool
        Whether warps multiply on tensor cores; else threads multiply.
    rows, columns : int
        Warps of the tile (tensor cores), or outputs of a thread.
    parts : int
        Groups of the block's threads, each with a part of every stage.
    stages : int
        Stages in shared memory at a time.
    blocks : int
        Blocks that a multiprocessor's registers must have room for.
    latency_us, busy_us : float
        Time of a stage of RUNS when a block is alone on its multiprocessor, and when the multiprocessor is busy.
    """

    bm: int
    bn: int
    bk: int
    is_tensor: bool
    rows: int
    columns: int
    parts: int
    stages: int
    blocks: int
    latency_us: float
    busy_us: float

    @property
    def threads(self) -> int:
        """Threads of a block."""
        if self.is_tensor:
            return 32 * self.rows * self.columns * self.parts
        return self.bm // self.rows * (self.bn // self.columns) * self.parts

    @property
    def defines(self) -> dict[str, int]:
        """The source's definitions, without the loading."""
        inner = ("WARPS_M", "WARPS_N") if self.is_tensor else ("TM", "TN")
        shape = {"BM": self.bm, "BN": self.bn, "BK": self.bk, inner[0]: self.rows, inner[1]: self.columns}
        return {
            "TENSOR": int(self.is_tensor),
            **shape,
            "WARPS_K": self.parts,
            "STAGES": self.stages,
            "BLOCKS": self.blocks,
        }


@dataclass(frozen=True)
class Menu:
    """The tiles of one precision, and the costs of a launch besides their stages.

    Parameters
    ----------
    tiles : tuple of Tile
    latency_factors, busy_factors : tuple of float
        Factors of POINTS and TAPS on a stage's times.
    launch_us : float
    wave_us : float
        Time of each generation of blocks on a multiprocessor.
    output_us : float
        Time of 1024 outputs.
    cluster_us, rank_us : float
        Time of a cluster, and of each of its blocks.
    """

    tiles: tuple[Tile, ...]
    latency_factors: tuple[float, float]
    busy_factors: tuple[float, float]
    launch_us: float
    wave_us: float
    output_us: float
    cluster_us: float
    rank_us: float

    @cached_property
    def choice(self) -> Choice[Tile]:
        """Every tile with every size of a cluster."""
        return choice_of(self.tiles, LARGEST_CLUSTER)

    @cached_property
    def choice_without_clusters(self) -> Choice[Tile]:
        """The tiles without clusters, for devices where blocks cannot access each other's shared memory."""
        return choice_of(self.tiles, 1)


FMA: Final = Menu(
    tiles=(
        Tile(32, 32, 32, False, 4, 4, 2, 4, 5, 0.503, 0.338),
        Tile(32, 64, 32, False, 8, 8, 4, 3, 3, 0.688, 0.568),
        Tile(32, 64, 32, False, 4, 8, 2, 3, 4, 0.759, 0.581),
        Tile(128, 64, 16, False, 8, 8, 1, 3, 2, 1.103, 0.876),
        Tile(64, 128, 16, False, 8, 8, 1, 3, 3, 1.043, 0.867),
    ),
    latency_factors=(1.14, 1.19),
    busy_factors=(1.08, 1.11),
    launch_us=0.975,
    wave_us=0.852,
    output_us=0.223,
    cluster_us=0.765,
    rank_us=0.022,
)
TF32: Final = Menu(
    tiles=(
        Tile(32, 32, 32, True, 2, 1, 2, 4, 5, 0.341, 0.214),
        Tile(64, 32, 32, True, 2, 1, 2, 3, 5, 0.483, 0.292),
        Tile(32, 64, 32, True, 1, 2, 2, 3, 3, 0.451, 0.312),
        Tile(128, 64, 16, True, 2, 2, 1, 3, 3, 0.549, 0.375),
        Tile(64, 128, 16, True, 2, 2, 1, 3, 3, 0.556, 0.374),
    ),
    latency_factors=(1.13, 1.42),
    busy_factors=(1.2, 1.3),
    launch_us=0.487,
    wave_us=1.624,
    output_us=0.17,
    cluster_us=0.77,
    rank_us=0.01,
)
HALF: Final = Menu(
    tiles=(
        Tile(32, 32, 64, True, 2, 1, 2, 3, 5, 0.188, 0.182),
        Tile(64, 32, 64, True, 2, 1, 2, 3, 4, 0.229, 0.214),
        Tile(32, 64, 64, True, 1, 2, 2, 3, 4, 0.267, 0.269),
        Tile(64, 64, 64, True, 2, 2, 1, 3, 4, 0.322, 0.309),
        Tile(128, 64, 32, True, 2, 2, 1, 3, 3, 0.265, 0.238),
        Tile(64, 128, 32, True, 2, 2, 1, 3, 3, 0.311, 0.276),
    ),
    latency_factors=(1.63, 4.01),
    busy_factors=(1.14, 1.74),
    launch_us=0.0,
    wave_us=2.334,
    output_us=0.186,
    cluster_us=0.686,
    rank_us=0.014,
)

MENUS: Final[Mapping[str, Mapping[DType, Menu]]] = {
    "nvidia-h200": {DType.FLOAT32: FMA, DType.TF32: TF32, DType.FLOAT16: HALF, DType.BFLOAT16: HALF}
}
"""By the device that they were fitted on."""
