"""The tiles of the channels-innermost implicit GEMM, and the constants of their expected times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from conv_advisor.data.problem import DType, Layout
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.offers import Choice, choice_of

ROW_BYTES: Final = 128
"""Bytes of gemm_k in a stage."""
ALIGNMENT: Final = 1024
"""Alignment of the stages in shared memory, for the swizzle of wgmma."""
LARGEST_CLUSTER: Final = 8
"""Blocks that a cluster may have without a special attribute."""


@dataclass(frozen=True)
class Tile:
    """The outputs of a block: `bf` filters of `bp` pixels, with 128 bytes of gemm_k per stage.

    Parameters
    ----------
    bf, bp : int
    is_pixels_m : bool
        Whether the rows of the products are pixels, not filters.
    is_wgmma : bool
        Whether four warps multiply 64 rows of the tile together; else each warp multiplies by mma.sync.
    rows, columns, parts : int
        Warps along the rows and the columns of the tile, and along a stage.
    stages : int
        Stages in shared memory at a time.
    blocks : int
        Blocks that a multiprocessor's registers must have room for.
    is_drained : bool
        Whether a stage's products (wgmma) are awaited before the next stage, which frees one more stage for copies.
    latency_us, busy_us : float
        Time of a stage when a block is alone on its multiprocessor, and when the multiprocessor is busy.
    """

    bf: int
    bp: int
    is_pixels_m: bool
    is_wgmma: bool
    rows: int
    columns: int
    parts: int
    stages: int
    blocks: int
    is_drained: bool
    latency_us: float
    busy_us: float

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.rows * self.columns * self.parts

    def defines(self, layout: Layout, *, is_pointwise: bool, has_prologue: bool = False) -> dict[str, int]:
        """The source's definitions for this tile."""
        return {
            **({"PROLOGUE": 1} if has_prologue else {}),
            "BF": self.bf,
            "BP": self.bp,
            "PIXELS_M": int(self.is_pixels_m),
            "WGMMA": int(self.is_wgmma),
            "WARPS_M": self.rows,
            "WARPS_N": self.columns,
            "WARPS_K": self.parts,
            "STAGES": self.stages,
            "BLOCKS": self.blocks,
            "DRAIN": int(self.is_drained),
            "IS_NHWC": int(layout is Layout.NHWC),
            "IS_POINTWISE": int(is_pointwise),
        }

    def shared_bytes(self, layout: Layout, cluster: Any) -> Any:
        """Shared memory of a block: stages or sums, then sums that other blocks push, in the layout of the .cu."""
        outer, inner = (self.bp, self.bf) if layout is Layout.NHWC else (self.bf, self.bp)
        is_turned = np.not_equal(layout is Layout.NHWC, self.is_pixels_m)
        sums = 4 * self.parts * outer * (inner + np.where(is_turned, 4, 8))
        received = np.where(np.greater(cluster, 1), 4 * cluster * ceil_div(outer, cluster) * inner, 0)
        return ALIGNMENT + np.maximum(self.stages * (self.bf + self.bp) * ROW_BYTES, sums) + received


@dataclass(frozen=True)
class Menu:
    """The tiles of one precision, and the costs of a launch besides their stages.

    Parameters
    ----------
    tiles : tuple of Tile
    launch_us : float
    wave_us : float
        Time of each generation of blocks on a multiprocessor.
    output_us : dict of Layout to float
        Time of 1024 outputs of a block.
    cluster_us, rank_us, push_us : float
        Time of a cluster, of each of its blocks, and of 1024 sums that blocks push.
    pointwise : tuple of float
        Factors of a filter of one tap on a stage's two times.
    """

    tiles: tuple[Tile, ...]
    launch_us: float
    wave_us: float
    output_us: dict[Layout, float]
    cluster_us: float
    rank_us: float
    push_us: float
    pointwise: tuple[float, float]

    @cached_property
    def choice(self) -> Choice[Tile]:
        """Every tile with every size of a cluster."""
        return choice_of(self.tiles, LARGEST_CLUSTER)


HALF: Final = Menu(
    tiles=(
        Tile(16, 32, False, False, 1, 1, 4, 8, 4, False, 0.071, 0.211),
        Tile(32, 32, False, False, 2, 1, 2, 4, 4, False, 0.098, 0.229),
        Tile(32, 64, True, True, 4, 1, 1, 4, 4, True, 0.222, 0.148),
        Tile(32, 64, True, True, 4, 1, 1, 8, 2, True, 0.123, 0.254),
        Tile(64, 64, False, True, 4, 1, 1, 3, 4, True, 0.298, 0.160),
        Tile(64, 64, False, True, 4, 1, 1, 6, 2, True, 0.422, 0.064),
        Tile(96, 64, True, True, 4, 1, 1, 4, 2, True, 0.229, 0.211),
        Tile(128, 64, True, True, 4, 1, 1, 4, 2, True, 0.273, 0.264),
        Tile(64, 128, False, True, 4, 1, 1, 2, 4, True, 0.342, 0.299),
        Tile(64, 128, False, True, 4, 1, 1, 3, 3, True, 0.298, 0.266),
        Tile(128, 128, False, True, 8, 1, 1, 3, 2, True, 0.379, 0.393),
        Tile(128, 256, False, True, 8, 1, 1, 4, 1, False, 0.760, 0.745),
        Tile(96, 128, True, True, 8, 1, 1, 4, 2, True, 0.392, 0.342),
        Tile(160, 128, True, True, 8, 1, 1, 3, 2, True, 0.809, 0.215),
        Tile(192, 64, True, True, 4, 1, 1, 3, 2, True, 0.586, 0.137),
        Tile(32, 128, True, True, 8, 1, 1, 2, 4, True, 0.410, 0.435),
        Tile(128, 64, True, True, 4, 1, 1, 2, 4, True, 0.666, 0.285),
        Tile(256, 128, True, True, 8, 1, 1, 4, 1, False, 0.692, 0.361),
    ),
    launch_us=0.564,
    wave_us=1.237,
    output_us={Layout.NCHW: 0.093, Layout.NHWC: 0.049},
    cluster_us=1.132,
    rank_us=0.040,
    push_us=0.120,
    pointwise=(0.77, 0.66),
)
TF32: Final = Menu(
    tiles=(
        Tile(16, 32, False, False, 1, 1, 4, 4, 4, False, 0.147, 0.111),
        Tile(32, 32, False, False, 2, 1, 2, 4, 4, False, 0.105, 0.397),
        Tile(16, 64, False, False, 1, 2, 2, 4, 4, False, 0.169, 1.304),
        Tile(64, 32, False, True, 4, 1, 1, 4, 4, True, 0.683, 0.176),
        Tile(32, 64, True, True, 4, 1, 1, 4, 4, True, 0.168, 0.147),
        Tile(64, 64, False, True, 4, 1, 1, 3, 4, True, 0.436, 0.158),
        Tile(64, 64, False, True, 4, 1, 1, 6, 2, True, 0.155, 0.220),
        Tile(96, 64, True, True, 4, 1, 1, 4, 2, True, 0.070, 0.207),
        Tile(64, 128, False, True, 4, 1, 1, 2, 4, True, 0.130, 0.390),
        Tile(64, 128, False, True, 4, 1, 1, 3, 3, True, 0.260, 0.246),
        Tile(64, 128, False, True, 4, 1, 1, 4, 2, True, 0.407, 0.127),
        Tile(128, 128, False, True, 8, 1, 1, 3, 2, True, 0.422, 0.372),
        Tile(128, 256, False, True, 8, 1, 1, 4, 1, False, 0.128, 1.742),
        Tile(96, 128, True, True, 8, 1, 1, 4, 2, True, 0.421, 0.339),
        Tile(192, 128, True, True, 8, 1, 1, 4, 1, False, 0.570, 0.060),
        Tile(160, 128, True, True, 8, 1, 1, 3, 2, True, 0.124, 0.549),
        Tile(32, 128, True, True, 8, 1, 1, 2, 4, True, 1.060, 0.172),
        Tile(32, 128, True, True, 8, 1, 1, 4, 2, True, 0.282, 0.240),
    ),
    launch_us=0.745,
    wave_us=2.611,
    output_us={Layout.NCHW: 0.171, Layout.NHWC: 0.173},
    cluster_us=0.837,
    rank_us=0.012,
    push_us=0.042,
    pointwise=(0.88, 0.88),
)


MENUS: Final[Mapping[str, Mapping[DType, Menu]]] = {
    "nvidia-h200": {DType.TF32: TF32, DType.FLOAT16: HALF, DType.BFLOAT16: HALF}
}
"""By the device that they were fitted on."""
