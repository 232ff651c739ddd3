"""Small tiles of the implicit GEMM that the tensor memory accelerator feeds: how they are launched, and their time."""

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
"""For which the source has barriers."""
_BARRIER_BYTES: Final = 2 * MOST_SLOTS * 8
_FILTERS_UNIT: Final = 8
"""Rows of the swizzle."""
_LEAST_SLOTS: Final = 4
"""Slots for x, beside weight that is kept."""
_GROUP_PIXELS: Final = 64
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
        return 32 + 2 * max(self.bp, _GROUP_PIXELS)

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
    """How a launch shares tiles out among blocks, and what it gives each: of one problem and tile, or of many.

    Parameters
    ----------
    columns, rows : int
        Of blocks: one column for every tile of filters.
    filters : int
        Of a tile: of all the same.
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
    """As many blocks as the tile lets multiprocessors hold, no more than turns need; shared memory goes to stages."""
    down, columns = ceil_div(problems.n * problems.p * problems.q, tile.bp), ceil_div(problems.k, tile.bf)
    turns = ceil_div(down, np.maximum(1, np.minimum(down, processors * tile.blocks // columns)))
    rows = ceil_div(down, turns)
    filters = ceil_div(problems.k, columns * _FILTERS_UNIT) * _FILTERS_UNIT
    resident = np.minimum(tile.blocks, ceil_div(columns * rows, processors))
    row_bytes, stages = row_bytes_of(problems), stages_of(problems)
    x_bytes, weight_bytes = tile.bp * row_bytes, tile.bf * row_bytes
    beside = _BARRIER_BYTES + ALIGNMENT + tile.line_bytes
    room = HOPPER_SHARED_BYTES // resident - RESERVED_BYTES - beside
    is_kept = (turns > 1) & (stages * weight_bytes + _LEAST_SLOTS * x_bytes <= room)
    fitting = np.where(is_kept, (room - stages * weight_bytes) // x_bytes, room // (x_bytes + weight_bytes))
    slots = np.minimum(np.minimum(fitting, stages * turns), MOST_SLOTS)
    shared_bytes = beside + slots * x_bytes + np.where(is_kept, stages, slots) * weight_bytes
    return Arrangement(columns, rows, filters, turns, resident, slots, is_kept, slots < stages * turns, shared_bytes)


def expected_cycles(tile: SmallTile, problems: Problems, of: Arrangement, processors: int) -> Any:
    """What the busiest multiprocessor takes: of what passes side by side most of all the longest."""
    costs, stages, row_bytes = menu.SMALL_COSTS, stages_of(problems), row_bytes_of(problems)
    tiles, pixels = of.turns * of.resident, problems.n * problems.p * problems.q
    of_pixel, of_filter = row_cycles(problems, costs.pixel)
    of_x, of_weight = tile.bp * of_pixel, of.filters * of_filter
    products = np.maximum(tile.bp, _GROUP_PIXELS) * tile.bf * row_bytes / BYTES_OF_CYCLE
    stored = tile.bf * costs.filter
    of_stage = np.maximum(np.maximum(of_x, products), costs.stage)
    all_tiles, all_blocks = ceil_div(pixels, tile.bp) * of.columns, of.columns * of.rows
    all_rows = all_tiles * tile.bp + np.where(of.is_kept, all_blocks, all_tiles) * of.filters
    aside = (
        stages * (tiles * of_x + np.where(of.is_kept, of.resident, tiles) * of_weight),
        stages * row_bytes * all_rows / processors / costs.shared_bytes,
        memory_cycles(problems, processors),
        tiles * (stages * products + tile.bp * tile.bf / 1024 * costs.outputs),
        of.turns * (stages * of_stage + costs.turn + stored),
        np.where(of.recycles, of.turns * stages / of.slots * costs.ring, 0.0),
    )
    return costs.start + of.resident * costs.block + side_by_side(*aside)


def offers(problems: Shapes, device: Device) -> tuple[Offer[SmallTile], ...]:
    """Every tile of two-byte elements that has slots enough, where more than half of its blocks share a multiprocessor.

    Parameters
    ----------
    problems : Shapes
        Layers that the kernel computes.
    device : Device
    """
    if problems.dtype.itemsize_bytes != 2:
        return ()
    tile, of = _CHOICE.tile, arranged(_CHOICE.tile, problems, device.processors or 1)
    has_slots = of.slots >= np.minimum(_LEAST_SLOTS, stages_of(problems) * of.turns)
    is_offered = has_slots & (of.resident > tile.blocks // 2)
    us = np.where(is_offered, expected_cycles(tile, problems, of, device.processors or 1) / CYCLES_OF_US, np.inf)
    return (offered(_CHOICE, tile.bp * tile.bf, us, of.columns * of.rows),)


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
