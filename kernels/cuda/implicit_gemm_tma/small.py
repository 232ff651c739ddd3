"""Small tiles of the implicit GEMM that the tensor memory accelerator feeds: their launches and expected times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import DType
from conv_advisor.kernels.cuda.implicit_gemm_tma import menu
from conv_advisor.kernels.cuda.implicit_gemm_tma.cycles import memory_cycles, row_cycles, side_by_side
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import (
    ALIGNMENT,
    BYTES_OF_CYCLE,
    CYCLES_OF_US,
    ROW_BYTES,
    row_bytes_of,
    stages_of,
)
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.multiprocessor import HOPPER_SHARED_BYTES, RESERVED_BYTES
from conv_advisor.kernels.cuda.parts.offers import Offer, choice_of, offered
from conv_advisor.kernels.cuda.parts.shapes import Problems, Shapes
from conv_advisor.kernels.cuda.parts.source import Defines, Source

MOST_SLOTS: Final = 16
"""Slots for which the source has barriers."""
_BARRIER_BYTES: Final = 2 * MOST_SLOTS * 8
_FILTERS_UNIT: Final = 8
"""Rows of the swizzle; a tile's filters are a multiple of it."""
_LEAST_SLOTS: Final = 4
"""Slots for x, at least, besides resident weight."""
_GROUP_PIXELS: Final = 64
"""Pixels that a group of warps multiplies, even where the tile has fewer."""


@dataclass(frozen=True)
class SmallTile:
    """The outputs that a block computes at a time: `bf` filters of `bp` pixels, in two-byte elements.

    Parameters
    ----------
    bp, bf : int
    blocks : int
        Blocks that may share a multiprocessor.
    """

    bp: int
    bf: int
    blocks: int

    @property
    def threads(self) -> int:
        """Threads of a block: a warp for every 16 pixels, and one that loads."""
        return 32 + 2 * max(self.bp, _GROUP_PIXELS)

    def defines(self, row_bytes: int, *, is_dense: bool) -> Defines:
        """The source's definitions for this tile."""
        return {"BP": self.bp, "BF": self.bf, "ROW_BYTES": row_bytes, "IS_DENSE": int(is_dense)}

    @property
    def line_bytes(self) -> int:
        """Shared memory in which y's pixels are rearranged into rows."""
        return self.bp * (self.bf * 2 + 16)


_SIZES: Final = (
    *((32, 32), (32, 64)),
    *((64, 16), (64, 32), (64, 48), (64, 64), (64, 96), (64, 128)),
    *((128, 16), (128, 32), (128, 48), (128, 64), (128, 96), (128, 128), (128, 160)),
)
TILES: Final = tuple(
    SmallTile(bp, bf, blocks)
    for bp, bf in _SIZES
    for blocks in ((1,) if bf > 128 else (1, 2) if bp > _GROUP_PIXELS else (1, 2, 4))
)


_CHOICE: Final = choice_of(TILES, 1)


@dataclass(frozen=True)
class Arrangement:
    """How a launch divides tiles among blocks, and the resources of each block: for one problem and tile, or many.

    Parameters
    ----------
    columns, rows : int
        Columns and rows of blocks; one column for every tile of filters.
    filters : int
        Filters of a tile, the same for all tiles.
    turns : int
        Tiles of a block.
    resident : int
        Blocks of a multiprocessor.
    slots : int
        Stages in shared memory at a time.
    is_kept : bool
        Whether all of a block's weight stays in shared memory.
    recycles : bool
        Whether a slot is used for several stages.
    shared_bytes : int
        Shared memory of a block.
    """

    columns: Any
    rows: Any
    filters: Any
    turns: Any
    resident: Any
    slots: Any
    is_kept: Any
    recycles: Any
    shared_bytes: Any


def arranged(tile: SmallTile, problems: Problems, processors: int) -> Arrangement:
    """As many blocks as multiprocessors hold of the tile, without idle ones; stages fill the shared memory."""
    down, columns = ceil_div(problems.n * problems.p * problems.q, tile.bp), ceil_div(problems.k, tile.bf)
    turns = ceil_div(down, np.maximum(1, np.minimum(down, processors * tile.blocks // columns)))
    rows = ceil_div(down, turns)
    filters = ceil_div(problems.k, columns * _FILTERS_UNIT) * _FILTERS_UNIT
    resident = np.minimum(tile.blocks, ceil_div(columns * rows, processors))
    row_bytes, stages = row_bytes_of(problems), stages_of(problems)
    x_bytes, weight_bytes = tile.bp * row_bytes, tile.bf * row_bytes
    fixed_bytes = _BARRIER_BYTES + ALIGNMENT + tile.line_bytes
    room = HOPPER_SHARED_BYTES // resident - RESERVED_BYTES - fixed_bytes
    is_kept = (turns > 1) & (stages * weight_bytes + _LEAST_SLOTS * x_bytes <= room)
    fitting = np.where(is_kept, (room - stages * weight_bytes) // x_bytes, room // (x_bytes + weight_bytes))
    slots = np.minimum(np.minimum(fitting, stages * turns), MOST_SLOTS)
    shared_bytes = fixed_bytes + slots * x_bytes + np.where(is_kept, stages, slots) * weight_bytes
    return Arrangement(columns, rows, filters, turns, resident, slots, is_kept, slots < stages * turns, shared_bytes)


def expected_cycles(tile: SmallTile, problems: Problems, arrangement: Arrangement, processors: int) -> Any:
    """Cycles of the busiest multiprocessor, where of concurrent work the longest part counts most."""
    costs, stages, row_bytes = menu.SMALL_COSTS, stages_of(problems), row_bytes_of(problems)
    tiles, pixels = arrangement.turns * arrangement.resident, problems.n * problems.p * problems.q
    of_pixel, of_filter = row_cycles(problems, costs.pixel)
    of_x, of_weight = tile.bp * of_pixel, arrangement.filters * of_filter
    products = np.maximum(tile.bp, _GROUP_PIXELS) * tile.bf * row_bytes / BYTES_OF_CYCLE
    stored = tile.bf * costs.filter
    of_stage = np.maximum(np.maximum(of_x, products), costs.stage)
    all_tiles, all_blocks = ceil_div(pixels, tile.bp) * arrangement.columns, arrangement.columns * arrangement.rows
    all_rows = all_tiles * tile.bp + np.where(arrangement.is_kept, all_blocks, all_tiles) * arrangement.filters
    concurrent = (
        stages * (tiles * of_x + np.where(arrangement.is_kept, arrangement.resident, tiles) * of_weight),
        stages * row_bytes * all_rows / processors / costs.shared_bytes,
        memory_cycles(problems, processors),
        tiles * (stages * products + tile.bp * tile.bf / 1024 * costs.outputs),
        arrangement.turns * (stages * of_stage + costs.turn + stored),
        np.where(arrangement.recycles, arrangement.turns * stages / arrangement.slots * costs.ring, 0.0),
    )
    return costs.start + arrangement.resident * costs.block + side_by_side(*concurrent)


def offers(problems: Shapes, device: Device) -> tuple[Offer[SmallTile], ...]:
    """Every tile of two-byte elements with enough slots, of whose blocks more than half share a multiprocessor.

    Parameters
    ----------
    problems : Shapes
        Layers that the kernel computes.
    device : Device
    """
    if problems.dtype.itemsize_bytes != 2:
        return ()
    tile, arrangement = _CHOICE.tile, arranged(_CHOICE.tile, problems, device.processors or 1)
    has_slots = arrangement.slots >= np.minimum(_LEAST_SLOTS, stages_of(problems) * arrangement.turns)
    is_offered = has_slots & (arrangement.resident > tile.blocks // 2)
    us = np.where(
        is_offered, expected_cycles(tile, problems, arrangement, device.processors or 1) / CYCLES_OF_US, np.inf
    )
    return (offered(_CHOICE, tile.bp * tile.bf, us, arrangement.columns * arrangement.rows),)


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions of implicit_gemm_tma_small.cu for this precision."""
    if dtype.itemsize_bytes != 2:
        return ()
    return tuple(
        SmallTile(*size, 1).defines(row_bytes, is_dense=is_dense)
        for size in _SIZES
        for row_bytes in ROW_BYTES
        for is_dense in (False, True)
    )


SOURCE: Final = Source("implicit_gemm_tma_small", definitions, architecture="sm_90a")
