"""The tiles of the implicit GEMM that the tensor memory accelerator feeds, and constants of their expected times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, Final

import numpy as np

from conv_advisor.data.problem import DType
from conv_advisor.kernels.cuda.implicit_gemm_tma.costs import Costs, SmallCosts, SplitCosts, StraightCosts
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.shapes import Problems, is_dense

ROW_BYTES: Final = (64, 128)
"""Bytes of the channels of one tap in a stage, which is the span of a swizzle."""
ALIGNMENT: Final = 1024
"""Alignment of stages in shared memory."""
GROUPS: Final = 2
"""Groups of 128 threads that multiply; one more group loads."""
THREADS: Final = 128 * (1 + GROUPS)
BYTES_OF_CYCLE: Final = 4096
"""Pixels times filters times bytes of a row that the tensor cores of a multiprocessor multiply in a cycle."""
CYCLES_OF_US: Final = 1755
"""The clock under load, in cycles per us."""
BOX: Final = 64
"""Pixels of a box of y, which a group fills."""
SPLIT_BOX: Final = 16
"""Pixels of a box of y where blocks share a tile, which a warp fills."""
BOX_ROW_BYTES: Final = 128
"""Bytes of the filters of a pixel in a box, if they divide those of a tile; else half as many."""
BOXES_BYTES: Final = GROUPS * 2 * BOX * BOX_ROW_BYTES
"""Boxes of y in shared memory: two per group."""
SCALES_BYTES: Final = 16
"""What warps that part the weight of a stage into halves tell those that multiply."""
SCALES_BYTES_OF_FILTER: Final = 12
"""The same of every filter."""
SPLIT_ROW_BYTES: Final = 128
"""Bytes of a row where blocks share a tile: with shorter rows there is little to share."""
SHARED_PIXELS_OF_HALVES: Final = 128
"""Pixels of a tile of halves that blocks may share."""
LEAST_PIXELS: Final = 4096
"""Pixels from which on half-empty rows are halved: with fewer pixels, blocks or warps may share gemm_k instead."""
MOST_HALVED_BYTES: Final = 320
"""Bytes of a tap's channels up to which rows are halved: with more, the empty part is too small."""
CLUSTERS: Final[Mapping[int, int]] = {2: 66, 3: 42, 4: 28, 5: 22, 6: 17, 7: 15, 8: 14}
"""Clusters that run at a time on the H200's 132 multiprocessors, one block each, by blocks of a cluster: from times."""


@dataclass(frozen=True)
class Tile:
    """The outputs that a block computes at a time: `bf` filters of `bp` pixels.

    Parameters
    ----------
    bp, bf : int
    stages : int
        Stages in shared memory at a time, with rows of 128 bytes.
    products : int
        Products on tensor cores per product of float32: 3, with both parts of the weight in shared memory; else 1.
    by_turns : bool
        Whether groups take whole tiles by turns, not half of each: one stores its sums while the other multiplies.
    of_halves : bool
        Whether these products are of float16 parts, which lie where the weight did, not of tf32 parts.
    """

    bp: int
    bf: int
    stages: int
    products: int = 1
    by_turns: bool = False
    of_halves: bool = False

    def defines(self, row_bytes: int, *, is_dense: bool, is_split: bool) -> dict[str, int]:
        """The source's definitions for this tile."""
        return {
            "BP": self.bp,
            "BF": self.bf,
            "STAGES": self.stages * ROW_BYTES[1] // row_bytes,
            "ROW_BYTES": row_bytes,
            "IS_DENSE": int(is_dense),
            "IS_SPLIT": int(is_split),
            "PRODUCTS": self.products,
            "BY_TURNS": int(self.by_turns),
            "IS_OF_HALVES": int(self.of_halves),
        }

    def boxes(self, dtype: DType, pixels: int) -> int:
        """Number of boxes of y with ``pixels`` pixels each."""
        return self.bp * self.bf * dtype.itemsize_bytes // (pixels * self.box_row_bytes(dtype))

    def box_row_bytes(self, dtype: DType) -> int:
        """Bytes of the filters of a pixel in a box of y."""
        return BOX_ROW_BYTES // (1 + (self.bf * dtype.itemsize_bytes % BOX_ROW_BYTES > 0))

    @property
    def is_shareable(self) -> Any:
        """Whether the blocks of a cluster may share it: not where that never was the fastest, or registers lack."""
        of_float32 = self.of_halves & np.equal(self.bp, SHARED_PIXELS_OF_HALVES)
        return np.logical_not(self.by_turns) & (np.equal(self.products, 1) | of_float32)

    @property
    def ring_bytes(self) -> int:
        """Shared memory of all stages."""
        copies: Any = (self.products == 3) & np.logical_not(self.of_halves)
        ring_bytes: int = self.stages * (self.bp + self.bf * (1 + copies)) * ROW_BYTES[1]
        return ring_bytes

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: stages, then boxes of y, then scales of filters, by stage and as they are."""
        scales = (self.stages * (SCALES_BYTES + SCALES_BYTES_OF_FILTER * self.bf) + 4 * self.bf) * self.of_halves
        return ALIGNMENT + int(self.ring_bytes) + BOXES_BYTES + scales


TILES: Final = (
    Tile(128, 256, stages=4),
    Tile(256, 128, stages=4),
    Tile(128, 192, stages=4),
    Tile(128, 128, stages=6),
    Tile(256, 64, stages=4),
    Tile(128, 64, stages=8),
)
TILES_BY_TURNS: Final = tuple(
    Tile(*sizes, by_turns=True)
    for sizes in (
        *((128, 64, 8), (128, 96, 6), (128, 128, 6), (128, 160, 5), (128, 192, 4)),
        *((64, 256, 4), (192, 128, 4), (256, 64, 4)),
    )
)
"""Tiles for whose sums one group has enough registers."""
TILES_OF_PARTS: Final = (Tile(128, 128, stages=4, products=3), Tile(128, 64, stages=6, products=3))
"""Tiles for float32, for which a thread has registers for two sets of sums."""
TILES_OF_HALVES: Final = tuple(
    Tile(*sizes, products=3, of_halves=True) for sizes in ((256, 128, 3), (128, 192, 4), (128, 128, 5), (256, 64, 4))
)
"""Tiles for float32 by float16 parts: with a second set of sums for 64 pixels by at most 128 filters.

128x256 was never the fastest, 128x64 on one layer of 57, by 4 %.
"""


_TF32: Final = Costs(
    loaded_bytes=91.4, pixel=2.71, stage=0.0, box=599.0, turn=10.6, start=2420.0, meeting=5190.0, push=165.0
)
_HALF: Final = Costs(
    loaded_bytes=1320.0, pixel=2.35, stage=57.9, box=553.0, turn=0.0, start=3170.0, meeting=2010.0, push=301.0
)
_FLOAT32: Final = Costs(
    loaded_bytes=192.0, pixel=3.84, stage=434.0, box=366.0, turn=0.0, start=5330.0, meeting=0.0, push=0.0
)
COSTS: Final[Mapping[DType, Costs]] = {
    DType.FLOAT32: _FLOAT32,
    DType.TF32: _TF32,
    DType.FLOAT16: _HALF,
    DType.BFLOAT16: _HALF,
}
HALVES_COSTS: Final = Costs(
    loaded_bytes=432.0, pixel=0.638, stage=1050.0, box=1000.0, turn=0.0, start=4500.0, meeting=307.0, push=811.0
)
"""Costs of float32 tiles of halves, where a stage takes much more than its products, and its bytes hardly count."""


SMALL_COSTS: Final = SmallCosts(
    start=1290.0,
    block=1020.0,
    loaded_bytes=72.9,
    pixel=1.54,
    ragged=3.47,
    shared_bytes=67.6,
    read_bytes=32.7,
    written_bytes=35.1,
    memory_bytes=47.5,
    stage=179.0,
    turn=607.0,
    ring=1320.0,
    outputs=73.0,
    filter=7.68,
)


_SPLIT_FLOAT32: Final = SplitCosts(
    start=2610.0,
    block=0.0,
    loaded_bytes=56.9,
    pixel=4.28,
    shared_bytes=42.4,
    products=35.9,
    lone=13.6,
    local_bytes=102.0,
    stage=331.0,
    group_stage=737.0,
    outputs=194.0,
    meeting=917.0,
    rank=25.0,
    push=30.2,
)
_SPLIT_TF32: Final = SplitCosts(
    start=2640.0,
    block=215.0,
    loaded_bytes=110.0,
    pixel=2.59,
    shared_bytes=48.7,
    products=21.3,
    lone=15.2,
    local_bytes=128.0,
    stage=199.0,
    group_stage=0.0,
    outputs=75.6,
    meeting=601.0,
    rank=21.4,
    push=73.4,
)
_SPLIT_HALF: Final = SplitCosts(
    start=3510.0,
    block=0.0,
    loaded_bytes=77.4,
    pixel=2.82,
    shared_bytes=43.9,
    products=22.2,
    lone=13.4,
    local_bytes=9070.0,
    stage=223.0,
    group_stage=0.531,
    outputs=39.1,
    meeting=664.0,
    rank=0.0,
    push=216.0,
)
SPLIT_COSTS: Final[Mapping[DType, SplitCosts]] = {
    DType.FLOAT32: _SPLIT_FLOAT32,
    DType.TF32: _SPLIT_TF32,
    DType.FLOAT16: _SPLIT_HALF,
    DType.BFLOAT16: _SPLIT_HALF,
}


STRAIGHT_COSTS: Final = StraightCosts(
    start=1740.0,
    block=294.0,
    read_bytes=83.4,
    shared_bytes=31.3,
    pixel=1.18,
    window=0.621,
    load=7.88,
    address=3.68,
    ask=49.4,
    turn=743.0,
    outputs=87.2,
    meeting=542.0,
    rank=16.6,
    push=221.0,
)


def row_bytes_of(problems: Problems) -> Any:
    """Bytes of a row of a stage.

    Except in float32, rows are halved where the channels of a tap fill at most half a row, or one or two and a half
    rows. In the latter case they are not where a 1x1 filter reads every pixel, or pixels are few: it gains nothing.
    """
    if problems.dtype is DType.FLOAT32:
        return ROW_BYTES[1]
    of_tap = problems.c * problems.dtype.itemsize_bytes
    leaves_half = (of_tap % ROW_BYTES[1] == ROW_BYTES[0]) & (of_tap <= MOST_HALVED_BYTES)
    has_pixels = (problems.n * problems.p * problems.q >= LEAST_PIXELS) & (is_dense(problems) == 0)
    is_half = (of_tap <= ROW_BYTES[0]) | (leaves_half & has_pixels)
    return ROW_BYTES[1] - is_half * (ROW_BYTES[1] - ROW_BYTES[0])


def stages_of(problems: Problems) -> Any:
    """Stages of the whole gemm_k."""
    chunks = ceil_div(problems.c * problems.dtype.itemsize_bytes, row_bytes_of(problems))
    return problems.r * problems.s * chunks


def multiplied_bytes(problems: Problems) -> Any:
    """Bytes of a row that are multiplied, averaged over all stages; a half row without channels is not multiplied."""
    if problems.dtype is DType.FLOAT32:
        return ROW_BYTES[1]
    half = row_bytes_of(problems) // 2
    halves = problems.r * problems.s * ceil_div(problems.c * problems.dtype.itemsize_bytes, half)
    return halves * half / stages_of(problems)


def costs_of(tile: Tile, dtype: DType) -> Costs:
    """The costs of a tile, or of several `stacked`."""
    if dtype is not DType.FLOAT32:
        return COSTS[dtype]
    pairs = zip(astuple(HALVES_COSTS), astuple(COSTS[dtype]), strict=True)
    return Costs(*(np.where(tile.of_halves, of_halves, of_parts) for of_halves, of_parts in pairs))


def tiles_for(dtype: DType) -> tuple[Tile, ...]:
    """The tiles of a precision."""
    return TILES_OF_PARTS + TILES_OF_HALVES if dtype is DType.FLOAT32 else TILES + TILES_BY_TURNS
