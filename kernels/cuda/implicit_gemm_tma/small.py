"""Small tiles of the implicit GEMM that the tensor memory accelerator feeds: how they are launched, and their time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.implicit_gemm_tma import menu
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import ALIGNMENT, ROW_BYTES, row_bytes_of, stages_of
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.multiprocessor import HOPPER_SHARED_BYTES, RESERVED_BYTES
from conv_advisor.kernels.cuda.parts.source import Defines, Source

MOST_SLOTS: Final = 16
"""For which the source has barriers."""
_BARRIER_BYTES: Final = 2 * MOST_SLOTS * 8
_LEAST_SLOTS: Final = 3
"""Of x beside weight that is kept."""
_FEW_BLOCK_PIXELS: Final = 64
"""What a group of warps multiplies, of fewer pixels too."""


@dataclass(frozen=True)
class SmallTile:
    """What a block computes at a time: `bf` filters of `bp` pixels, of two bytes an element.

    Parameters
    ----------
    bp, bf : int
    blocks : int
        That may share a multiprocessor.
    """

    bp: int
    bf: int
    blocks: int

    @property
    def threads(self) -> int:
        """A warp for every 16 pixels, and one that loads."""
        return 32 + 2 * max(self.bp, _FEW_BLOCK_PIXELS)

    def defines(self, row_bytes: int, *, is_dense: bool) -> Defines:
        """What the source is compiled with."""
        return {"BP": self.bp, "BF": self.bf, "ROW_BYTES": row_bytes, "IS_DENSE": int(is_dense)}

    @property
    def line_bytes(self) -> int:
        """Shared memory where y's pixels are turned to rows."""
        return self.bp * (self.bf * 2 + 16)


_SIZES: Final = (
    *((32, 32), (32, 64)),
    *((64, 16), (64, 32), (64, 48), (64, 64), (64, 96), (64, 128)),
    *((128, 16), (128, 32), (128, 48), (128, 64), (128, 96), (128, 128)),
)
TILES: Final = tuple(SmallTile(*size, blocks) for size in _SIZES for blocks in (1, 2, 4))


@dataclass(frozen=True)
class Arrangement:
    """How a launch shares tiles out among blocks, and what it gives each.

    Parameters
    ----------
    columns, rows : int
        Of blocks: one column for every tile of filters.
    turns : int
        Tiles that come to a block.
    resident : int
        Blocks of a multiprocessor.
    slots : int
        Stages in shared memory at a time.
    is_kept : bool
        Whether all of a block's weight stays there.
    recycles : bool
        Whether a slot is for several stages.
    shared_bytes : int
        Of a block.
    """

    columns: int
    rows: int
    turns: int
    resident: int
    slots: int
    is_kept: bool
    recycles: bool
    shared_bytes: int


def arranged(tile: SmallTile, problem: ConvProblem, processors: int) -> Arrangement:
    """Tiles on as many blocks as multiprocessors hold while each has slots enough; then no more than turns need."""
    for blocks in range(tile.blocks, 1, -1):
        of = _arranged(tile, problem, processors, blocks)
        if of.slots >= min(_LEAST_SLOTS, stages_of(problem) * of.turns):
            return of
    return _arranged(tile, problem, processors, 1)


def _arranged(tile: SmallTile, problem: ConvProblem, processors: int, most_blocks: int) -> Arrangement:
    down, columns = ceil_div(problem.n * problem.p * problem.q, tile.bp), ceil_div(problem.k, tile.bf)
    turns = ceil_div(down, max(1, min(down, processors * most_blocks // columns)))
    rows = ceil_div(down, turns)
    resident = min(most_blocks, ceil_div(columns * rows, processors))
    row_bytes, stages = row_bytes_of(problem), stages_of(problem)
    x_bytes, weight_bytes = tile.bp * row_bytes, tile.bf * row_bytes
    beside = _BARRIER_BYTES + ALIGNMENT + tile.line_bytes
    room = HOPPER_SHARED_BYTES // resident - RESERVED_BYTES - beside
    is_kept = turns > 1 and stages * weight_bytes + _LEAST_SLOTS * x_bytes <= room
    slots = (room - stages * weight_bytes) // x_bytes if is_kept else room // (x_bytes + weight_bytes)
    slots = min(slots, stages * turns, MOST_SLOTS)
    shared_bytes = beside + slots * x_bytes + (stages if is_kept else slots) * weight_bytes
    return Arrangement(columns, rows, turns, resident, slots, is_kept, slots < stages * turns, shared_bytes)


def expected_cycles(tile: SmallTile, problem: ConvProblem, processors: int) -> float:
    """Of the multiprocessor that has most to do: its loads, or the chain of a block's stages."""
    of = arranged(tile, problem, processors)
    costs, stages, row_bytes = menu.SMALL_COSTS, stages_of(problem), row_bytes_of(problem)
    tiles = of.turns * of.resident
    loaded = stages * row_bytes * (tiles * tile.bp + (of.resident if of.is_kept else tiles) * tile.bf)
    chain = of.turns * (stages * costs.stage + costs.turn)
    stored = tiles * tile.bp * tile.bf / 1024 * costs.outputs
    return costs.start + max(loaded / costs.loaded_bytes, chain) + stored


def tiles_for(problem: ConvProblem, processors: int) -> tuple[SmallTile, ...]:
    """Those of two bytes an element; of tiles that are launched alike, the first."""
    if problem.dtype.itemsize_bytes != 2:
        return ()
    alike = {(tile.bp, tile.bf, arranged(tile, problem, processors)): tile for tile in reversed(TILES)}
    return tuple(reversed(alike.values()))


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """What implicit_gemm_tma_small.cu is compiled with for this precision."""
    if dtype.itemsize_bytes != 2:
        return ()
    return tuple(
        SmallTile(*size, 1).defines(row_bytes, is_dense=is_dense)
        for size in _SIZES
        for row_bytes in ROW_BYTES
        for is_dense in (False, True)
    )


SOURCE: Final = Source("implicit_gemm_tma_small", definitions, architecture="sm_90a")
