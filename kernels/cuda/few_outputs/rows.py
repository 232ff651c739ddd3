"""The form for two-byte types that multiplies a row of taps at a time (few_outputs_rows.cu)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.few_outputs.plan import CYCLES_OF_US
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.division import magic
from conv_advisor.kernels.cuda.parts.multiprocessor import RESERVED_BYTES, shared_memory_of
from conv_advisor.kernels.cuda.parts.offers import Offer, cheapest, choice_of, expected_of, offered
from conv_advisor.kernels.cuda.parts.shapes import Ints, Problems, Shapes
from conv_advisor.kernels.cuda.parts.source import Defines, Source

_DTYPES: Final = (DType.FLOAT16, DType.BFLOAT16)
CHUNK: Final = 8
"""Channels of 16 bytes."""
FRAGMENT: Final = 16
"""Pixels of x of a tile of the products."""
MOST_COLUMNS: Final = 64
"""Taps of a row times filters that registers have room for."""
_MOST_TILES: Final = 24
"""Fragments of sums of a warp, each four registers."""
_WARPS_MT: Final = ((4, 1), (4, 2), (4, 4), (8, 1), (8, 2), (8, 3), (8, 4), (8, 5))
_CHUNKS: Final = (1, 2, 4, 8)
_MOST_GROUPS: Final = 12

# Fitted to times of 16 cuts of 14 layers and of two of 126 more on an H200, and to which form is faster.
_PRODUCTS_OF_CYCLE: Final = 681
"""Multiplications that a multiprocessor's tensor cores do in a cycle."""
_SHARED_BYTES_OF_CYCLE: Final = 105
_COPY_CYCLES: Final = 0.323
"""Time that a copy to shared memory takes of a multiprocessor."""
_ELEMENT_CYCLES: Final = 2.02
"""The same of a chunk whose elements are read one by one."""
_MOVED_BYTES_OF_CYCLE: Final = 12.6
"""A multiprocessor's share of the memory bandwidth."""
_CACHED_BYTES_OF_CYCLE: Final = 19.2
"""Its share of the cache's, from which what tiles share is read again."""
_LINE_BYTES: Final = 64
"""Bytes that the cache reads at least of a pixel whose channels come in pieces."""
_OUTPUT_CYCLES: Final = 0.645
"""Time that an output takes of a multiprocessor, without its products."""
_START_CYCLES: Final = 1280
_BLOCK_CYCLES: Final = 325
"""Time that each block of a multiprocessor takes to begin."""
_ITEM_CYCLES: Final = 1330
"""Fixed time of a piece of a tile."""
_LOAD_CYCLES: Final = 839
"""Time that a block waits for a piece that is not loaded ahead."""
_TILE_CYCLES: Final = 1670
"""Fixed time of a tile's sums."""
_STEP_CYCLES: Final = 43
"""Time that a warp waits at a step."""
_PACK_CYCLES: Final = 154
"""Time that a thread takes to copy a chunk of the weight."""


@dataclass(frozen=True)
class RowCut:
    """A block's pixels, the warps that multiply them, and how x comes to shared memory.

    Parameters
    ----------
    warps : int
    mt : int
        Tiles of 16 pixels of x of a warp.
    groups : int
        Tiles of 16 pixels in a row of x; the rows are as many as the warps' tiles then make.
    chunks : int
        Chunks of eight channels that are staged at a time: 1 where a pixel has no more.
    buffers : int
        2 where the next piece is loaded while one is multiplied, else 1.
    """

    warps: int
    mt: int
    groups: int
    chunks: int
    buffers: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def width(self) -> int:
        """Pixels of x in a row of a tile."""
        return FRAGMENT * self.groups

    @property
    def tile_p(self) -> int:
        """Rows of y in a tile."""
        return self.warps * self.mt // self.groups

    def tile_q(self, problem: Problems) -> Ints:
        """Pixels of y in a row of a tile; 1 where it is narrower than a filter, and not offered."""
        return np.maximum(1, self.width - problem.s + 1)

    def tiles_of(self, problem: Problems) -> tuple[Ints, Ints]:
        """Tiles of rows and of columns of an image."""
        return ceil_div(problem.p, self.tile_p), ceil_div(problem.q, self.tile_q(problem))

    def pieces(self, problem: Problems) -> Ints:
        """Pieces in which the channels are staged."""
        return ceil_div(problem.c, CHUNK * self.chunks)

    def steps(self, problem: Problems) -> Ints:
        """Products' steps of two chunks, of one piece: of one chunk a pixel, rows of the filter go in pairs."""
        return ceil_div(problem.r * self.chunks, 2)

    @property
    def products_pitch(self) -> int:
        """Pixels of a plane of products, padded so that a warp's products lie in different banks."""
        return FRAGMENT * self.warps * self.mt + 4

    def staged_chunks(self, problem: Problems) -> Ints:
        """Chunks of a piece of a tile."""
        return (self.tile_p + problem.r - 1) * self.width * self.chunks

    def buffer_bytes(self, problem: Problems) -> Ints:
        """Bytes of a buffer: a piece of x, and later the products."""
        products = 4 * problem.s * problem.k * self.products_pitch
        return 16 * np.maximum(self.staged_chunks(problem), ceil_div(products, 16))

    def shared_bytes(self, problem: Problems) -> Ints:
        """Shared memory of a block: the weight, in rows of an odd number of chunks, and the buffers."""
        weight = 16 * 8 * eights_of(problem) * (2 * self.steps(problem) * self.pieces(problem) + 1)
        return weight + self.buffers * self.buffer_bytes(problem)


_CHOICE: Final = choice_of(
    [
        RowCut(warps, mt, groups, chunks, buffers)
        for (warps, mt), groups, chunks, buffers in product(_WARPS_MT, range(1, _MOST_GROUPS + 1), _CHUNKS, (1, 2))
        if warps * mt % groups == 0
    ],
    1,
)


def eights_of(problem: Problems) -> Ints:
    """Groups of eight columns."""
    return ceil_div(problem.s * problem.k, 8)


def takes(problem: Problems) -> Any:
    """Whether the form is for each problem, if one of its cuts fits."""
    return (problem.dtype in _DTYPES) & (problem.s * problem.k <= MOST_COLUMNS)


def _is_wanted(cut: RowCut, problem: Problems) -> Any:
    """Whether a tile holds at least a pixel and no more than y, and pieces are not mostly zeros."""
    of_pixel = ceil_div(problem.c, CHUNK)
    pieces = np.where(of_pixel == 1, cut.chunks == 1, (cut.chunks > 1) & (cut.chunks < 2 * of_pixel))
    least = ceil_div(problem.s + 1, FRAGMENT)
    most = np.maximum(least, ceil_div(problem.q + problem.s - 1, FRAGMENT))
    return pieces & (least <= cut.groups) & (cut.groups <= most) & (cut.mt * eights_of(problem) <= _MOST_TILES)


def residents(cut: RowCut, problem: Problems, device: Device) -> Ints:
    """Blocks that a multiprocessor holds; 0 where not even one fits."""
    sums = 4 * cut.mt * eights_of(problem)
    room = np.where(sums <= 16, 1024, np.where(sums <= 64, 512, 256))
    fitting = shared_memory_of(device) // (cut.shared_bytes(problem) + RESERVED_BYTES)
    return np.minimum(np.maximum(1, room // cut.threads), fitting)


def cuts_of(problem: ConvProblem, device: Device) -> tuple[RowCut, ...]:
    """Every cut whose block fits; none where the form is not for the problem."""
    return tuple(cut.tile for cut in expected_of(offers(Shapes.of(problem), device)))


def blocks_of(cut: RowCut, problem: Problems, device: Device) -> Ints:
    """Blocks of the grid: as many as run at a time, at most one per tile."""
    tiles_p, tiles_q = cut.tiles_of(problem)
    at_a_time = (device.processors or 1) * np.maximum(1, residents(cut, problem, device))
    return np.minimum(problem.n * tiles_p * tiles_q, at_a_time)


def expected_cycles(cut: RowCut, problem: Problems, device: Device) -> Any:
    """Cycles of the busiest multiprocessor: a block's waits, and the work of all blocks, which overlap in part."""
    tiles_p, tiles_q = cut.tiles_of(problem)
    blocks = blocks_of(cut, problem, device)
    turns = ceil_div(problem.n * tiles_p * tiles_q, blocks)
    resident = ceil_div(blocks, device.processors or 1)
    pieces, steps, eights = cut.pieces(problem), cut.steps(problem), eights_of(problem)
    fragments = cut.warps * cut.mt
    multiplied = steps * fragments * eights * 2048 / _PRODUCTS_OF_CYCLE
    read = steps * cut.warps * (512 * cut.mt + 256 * eights) / _SHARED_BYTES_OF_CYCLE
    chunks, align = cut.staged_chunks(problem), _align(problem)
    copied = chunks * np.where(align == 2, _ELEMENT_CYCLES, _COPY_CYCLES * (16 // align))
    pixel_bytes = 2 * np.minimum(problem.c, cut.chunks * CHUNK)
    line_bytes = np.where(pieces > 1, np.maximum(pixel_bytes, _LINE_BYTES), pixel_bytes)
    cached = chunks // cut.chunks * line_bytes / _CACHED_BYTES_OF_CYCLE
    outputs = cut.tile_p * cut.tile_q(problem) * problem.k
    stored = 4 * problem.s * (problem.k * FRAGMENT * fragments + outputs) / _SHARED_BYTES_OF_CYCLE
    summed = stored + outputs * _OUTPUT_CYCLES
    # What lies at the edge of a tile comes from the cache, the rest once from memory.
    fresh = cut.tile_p * cut.tile_q(problem) * problem.c * 2 / _MOVED_BYTES_OF_CYCLE
    at_work = pieces * (np.maximum(multiplied, read) + copied) + summed
    busy = np.maximum(np.maximum(at_work, pieces * cached), fresh)
    waits = _ITEM_CYCLES + np.where(cut.buffers == 1, _LOAD_CYCLES, 0)
    alone = pieces * (waits + steps * np.maximum(_STEP_CYCLES, 4 * cut.mt * eights)) + _TILE_CYCLES + summed
    packed = ceil_div(8 * eights * 2 * steps * pieces, cut.threads) * _PACK_CYCLES
    return _START_CYCLES + resident * _BLOCK_CYCLES + packed + turns * np.hypot(alone, resident * busy)


def offers(problems: Shapes, device: Device) -> tuple[Offer[RowCut], ...]:
    """Every cut that fits, with the time that is expected of it; none for a dtype that the form is not for."""
    if problems.dtype not in _DTYPES:
        return ()
    cut = _CHOICE.tile
    is_possible = takes(problems) & _is_wanted(cut, problems) & (residents(cut, problems, device) > 0)
    us = np.where(is_possible, expected_cycles(cut, problems, device) / CYCLES_OF_US, np.inf)
    blocks = blocks_of(cut, problems, device)
    return (offered(_CHOICE, FRAGMENT * cut.warps * cut.mt, us, blocks),)


def plan_cut(problem: ConvProblem, device: Device) -> RowCut | None:
    """The cut that is expected to be fastest; None where none fits."""
    cut = cheapest(offers(Shapes.of(problem), device))
    return None if cut is None else cut.tile


def sizes(cut: RowCut, problem: ConvProblem) -> tuple[int, ...]:
    """The kernel's parameters after those of the shape."""
    return (
        *(cut.tile_p, cut.width, *map(int, cut.tiles_of(problem)), cut.pieces(problem)),
        *(cut.buffers, int(cut.buffer_bytes(problem)), cut.products_pitch, magic(int(cut.tile_q(problem)), 32)),
    )


def _align(problem: Problems) -> Ints:
    """Bytes of a copy: the largest power of two, up to 16, to which every pixel is aligned."""
    return np.gcd(2 * problem.c, 16)


def defines_of(cut: RowCut, problem: ConvProblem) -> Defines:
    """The source's definitions for a cut."""
    return _defines(eights_of(problem), cut.warps, cut.mt, cut.chunks, int(_align(problem)))


def _defines(eights: int, warps: int, mt: int, chunks: int, align: int) -> Defines:
    return {"NT": eights, "WARPS": warps, "MT": mt, "CHUNKS": chunks, "ALIGN": align}


def _definitions(dtype: DType) -> tuple[Defines, ...]:
    if dtype not in _DTYPES:
        return ()
    return tuple(
        _defines(eights, warps, mt, chunks, align)
        for eights in range(1, MOST_COLUMNS // 8 + 1)
        for warps, mt in _WARPS_MT
        if mt * eights <= _MOST_TILES
        for chunks in _CHUNKS
        for align in (16, 8, 4, 2)
    )


SOURCE: Final = Source("few_outputs_rows", _definitions)
