"""How the implicit GEMM of few filters cuts a problem: a block's pixels, and how its warps share the channels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.few_outputs import MOST_ROW
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.multiprocessor import RESERVED_BYTES, shared_memory_of
from conv_advisor.kernels.cuda.parts.offers import Offer, cheapest, choice_of, offered
from conv_advisor.kernels.cuda.parts.shapes import Ints, Problems, Shapes
from conv_advisor.kernels.cuda.parts.source import BorneSpill, Defines, Source

LOAD_BYTES: Final = 16
"""Bytes of a pixel or a column that a thread loads at each step; four threads share a pixel or column."""
_COLUMNS: Final = {DType.FLOAT32: MOST_ROW, DType.TF32: 56, DType.FLOAT16: 56, DType.BFLOAT16: 56}
"""Columns, taps times filters, that registers have room to multiply at a time."""
_THREADS_OF_PROCESSOR: Final = 512
"""Threads that a multiprocessor's registers have room for, with 128 registers per thread."""

CYCLES_OF_US: Final = 1755

# Fitted to times of 14 to 21 cuts of 20 layers, some of them in several precisions, on an H200.
_START_CYCLES: Final = 1200
_LATENCY_CYCLES: Final = 2300
"""Time from a step's loads to its products; a warp loads two steps at a time."""
_MOVED_BYTES_OF_CYCLE: Final = 19
"""A multiprocessor's share of the memory bandwidth."""
_TILE_CYCLES: Final = {DType.FLOAT32: 15.0, DType.TF32: 10.0, DType.FLOAT16: 2.2, DType.BFLOAT16: 2.2}
"""Time that a multiprocessor takes for the products of 16 pixels and 8 columns with half a step's channels."""
_LANES: Final = 32
"""Sums that shared memory stores or loads in a cycle."""
_SUM_CYCLES: Final = 64
"""Time that a thread waits for each product that it adds up."""


@dataclass(frozen=True)
class Cut:
    """The pixels that a block computes, and the warps that compute them.

    Parameters
    ----------
    tile_p, tile_q : int
        Rows and columns of pixels of y: powers of two.
    warps : int
    splits : int
        Groups of equally many warps that share the channels.
    """

    tile_p: int
    tile_q: int
    warps: int
    splits: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    def tiles_of(self, problem: Problems) -> tuple[Ints, Ints]:
        """Tiles of rows and of columns of an image."""
        return ceil_div(problem.p, self.tile_p), ceil_div(problem.q, self.tile_q)

    def width(self, problem: Problems) -> Ints:
        """Pixels of x in a row that a tile reads."""
        return self.tile_q + problem.s - 1

    def pixels(self, problem: Problems) -> Ints:
        """Pixels of x that are multiplied at a time."""
        return (self.tile_p + rows_at_once(problem) - 1) * self.width(problem)

    def pitch(self, problem: Problems) -> Ints:
        """Products of a column: whole tiles of pixels, padded so that a warp's products lie in different banks."""
        at_a_time = 16 * _tiles_at_a_time(problem)
        return at_a_time * ceil_div(self.pixels(problem), at_a_time) + 4

    def shared_bytes(self, problem: Problems) -> Ints:
        """Shared memory of a block: products, and sums that wait for a filter's other rows."""
        waiting_sums = self.tile_p * self.tile_q * problem.k * (rows_at_once(problem) < problem.r)
        return 4 * (self.splits * columns_of(problem) * self.pitch(problem) + waiting_sums)


def rows_at_once(problem: Problems) -> Ints:
    """Rows of the filters that are multiplied at a time, about equally many each time."""
    most = _COLUMNS[problem.dtype] // (problem.s * problem.k)
    return ceil_div(problem.r, ceil_div(problem.r, most))


def columns_of(problem: Problems) -> Ints:
    """Columns of the products: the taps of `rows_at_once` rows, for each filter."""
    return rows_at_once(problem) * problem.s * problem.k


def _tiles_at_a_time(problem: Problems) -> Ints:
    """Tiles of 16 pixels that a warp multiplies at a time, limited by registers."""
    return 2 - (ceil_div(columns_of(problem), 8) > (2 if problem.dtype is DType.FLOAT32 else 5))


_TILES: Final = ((1, 8), (2, 8), (4, 8), (4, 16), (8, 16), (4, 32), (8, 32), (16, 32))
_WARPS: Final = (4, 8, 16)
CUTS: Final = tuple(
    Cut(tile_p, tile_q, warps, splits)
    for (tile_p, tile_q), warps, splits in product(_TILES, _WARPS, (1, 2, 4, 8, 16))
    if splits <= warps
)


_CHOICE: Final = choice_of(CUTS, 1)


def residents(cut: Cut, problem: Problems, device: Device) -> Ints:
    """Blocks that a multiprocessor holds; 0 where not even one fits."""
    fitting = shared_memory_of(device) // (cut.shared_bytes(problem) + RESERVED_BYTES)
    return np.minimum(_THREADS_OF_PROCESSOR // cut.threads, fitting)


def blocks_of(cut: Cut, problem: Problems) -> Ints:
    """Blocks of the grid, one per tile."""
    tiles_p, tiles_q = cut.tiles_of(problem)
    return problem.n * tiles_p * tiles_q


def expected_cycles(cut: Cut, problem: Problems, device: Device) -> Any:
    """Cycles of the busiest multiprocessor: in each wave, the latency of a block or the work of all resident blocks."""
    processors, blocks = device.processors or 1, blocks_of(cut, problem)
    resident = np.minimum(np.maximum(1, residents(cut, problem, device)), ceil_div(blocks, processors))
    itemsize, mt = problem.dtype.itemsize_bytes, _tiles_at_a_time(problem)
    passes = ceil_div(problem.r, rows_at_once(problem))
    chunks = ceil_div(cut.pixels(problem), 16 * mt)
    steps = ceil_div(problem.c * itemsize, 4 * LOAD_BYTES)
    turns = ceil_div(chunks, cut.warps // cut.splits) * ceil_div(steps, 2 * cut.splits)
    summed = ceil_div(cut.tile_p * cut.tile_q * problem.k, cut.threads) * columns_of(problem) / problem.k * cut.splits
    alone = _START_CYCLES + passes * (turns * _LATENCY_CYCLES + summed * _SUM_CYCLES)
    moved = cut.pixels(problem) * problem.c * itemsize / _MOVED_BYTES_OF_CYCLE
    eights = ceil_div(columns_of(problem), 8)
    multiplied = chunks * mt * steps * 2 * eights * _TILE_CYCLES[problem.dtype]
    stored = cut.splits * columns_of(problem) * (cut.pitch(problem) + cut.tile_p * cut.tile_q) / _LANES
    busy = passes * (np.maximum(moved, multiplied) + stored)
    return ceil_div(blocks, processors * resident) * np.maximum(alone, resident * busy)


def cuts_of(problem: ConvProblem, device: Device) -> tuple[Cut, ...]:
    """Every cut whose block fits."""
    return tuple(cut for cut in CUTS if residents(cut, problem, device))


def offers(problems: Shapes, device: Device) -> tuple[Offer[Cut], ...]:
    """`cuts_of` many problems, with the times that are expected of them."""
    cut = _CHOICE.tile
    us = np.where(residents(cut, problems, device) > 0, expected_cycles(cut, problems, device) / CYCLES_OF_US, np.inf)
    return (offered(_CHOICE, cut.tile_p * cut.tile_q, us, blocks_of(cut, problems)),)


def plan_cut(problem: ConvProblem, device: Device) -> Cut:
    """The cut that is expected to be fastest."""
    cut: Cut = cheapest(offers(Shapes.of(problem), device)).tile
    return cut


def defines_of(cut: Cut, problem: ConvProblem) -> Defines:
    """The source's definitions for a cut."""
    eights = ceil_div(columns_of(problem), 8)
    align = gcd(problem.c * problem.dtype.itemsize_bytes, LOAD_BYTES)
    return _defines(eights, cut.warps, align, problem.dtype)


def _defines(eights: int, warps: int, align: int, dtype: DType) -> Defines:
    return {"NT": eights, "WARPS": warps, "ALIGN": align, "SPLIT": int(dtype is DType.FLOAT32)}


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions of few_outputs.cu for this precision."""
    aligns = [align for align in (16, 8, 4, 2) if align >= dtype.itemsize_bytes]
    return tuple(
        _defines(eights, warps, align, dtype)
        for eights in range(1, _COLUMNS[dtype] // 8 + 1)
        for warps in _WARPS
        for align in aligns
    )


SOURCE: Final = Source(
    "few_outputs",
    definitions,
    spills=(
        BorneSpill(
            "few_outputs",
            "sm_80",
            most_bytes=24,
            reason="single elements of an odd number of channels: they wait for memory; tiles are sized for Hopper",
            defines=(("ALIGN", 2),),
        ),
    ),
)
