"""The form for float16 and bfloat16 of more channels: each pixel is staged once for all taps (few_inputs_narrow.cu)."""

from __future__ import annotations

from math import gcd
from typing import Final

from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.few_inputs import RUN
from conv_advisor.kernels.cuda.few_inputs.form import Form
from conv_advisor.kernels.cuda.few_inputs.menu import NARROW_TILES, Cut, Tile, cuts_of
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.source import Defines, Source

CHUNK_BYTES: Final = 16

# Fitted to times of 13 cuts of 17 layers on an H200, for odd channels and filters to 16 cuts of 5 layers and 2 of 85.
_PRODUCTS_OF_CYCLE: Final = 721
"""Multiplications that a multiprocessor's tensor cores do in a cycle."""
_SHARED_BYTES_OF_CYCLE: Final = 86
_COPY_CYCLES: Final = 0.02
"""Time that a copy of a chunk to shared memory takes of a multiprocessor."""
_MOVED_BYTES_OF_CYCLE: Final = 12.6
"""A multiprocessor's share of the memory bandwidth."""
_TURN_CYCLES: Final = 5520
"""Time of a tile, without its products."""
_STEP_CYCLES: Final = 111
"""Time that a warp waits at a step."""
_ELEMENT_CYCLES: Final = 1.0
"""The same of a chunk whose elements are read one by one."""
_SECTOR_CYCLES: Final = 0.6
"""Time that a store of part of 32 bytes takes of a multiprocessor."""
_START_CYCLES: Final = 3750
_PACK_CYCLES: Final = 147
"""Time that a thread takes to copy a chunk of the weight."""


def _runs(problem: ConvProblem) -> int:
    """Chunks of the channels of a tap or a pixel."""
    return int(ceil_div(problem.c, RUN))


def _steps(problem: ConvProblem) -> int:
    """Steps of two chunks of gemm_k."""
    return int(ceil_div(problem.r * problem.s * _runs(problem), 2))


def _staged(cut: Cut, problem: ConvProblem) -> tuple[int, int]:
    """Rows of x that a tile reads, and pixels of each row."""
    return (
        (cut.tile_p - 1) * problem.stride_h + problem.r,
        (cut.tile_q - 1) * problem.stride_w + problem.s,
    )


def shared_bytes(cut: Cut, problem: ConvProblem) -> int:
    """Shared memory of a block: its weight, a chunk of zeros, two tiles of x and the table; odd pitches, in chunks."""
    rows, columns = _staged(cut, problem)
    steps, pixel_chunks = _steps(problem), _runs(problem) | 1
    return CHUNK_BYTES * (cut.tile.filters * (2 * steps + 1) + 1 + 2 * rows * columns * pixel_chunks) + 8 * steps


def cycles(cut: Cut, problem: ConvProblem, turns: int, resident: int) -> float:
    """As `Form.cycles`: a tile takes its own waits, or its share of a multiprocessor that all resident blocks use."""
    tile, steps = cut.tile, _steps(problem)
    rows, columns = _staged(cut, problem)
    chunks = rows * columns * _runs(problem)
    multiplied = tile.pixels * tile.filters * 2 * RUN / _PRODUCTS_OF_CYCLE
    apart = 2 if problem.stride_w % 2 == 0 else 1
    read = 2 * CHUNK_BYTES * tile.warps * (16 * tile.mt * apart + 8 * tile.nt) / _SHARED_BYTES_OF_CYCLE
    moved = (CHUNK_BYTES * chunks + 2 * tile.pixels * min(tile.filters, problem.k)) / _MOVED_BYTES_OF_CYCLE
    align, store = _align(problem), _store(problem)
    copied = chunks * (_ELEMENT_CYCLES if align == 2 else CHUNK_BYTES // align * _COPY_CYCLES)
    stored = 0.0 if store == RUN else tile.pixels * _sectors(store, min(tile.filters, problem.k)) * _SECTOR_CYCLES
    busy = max(steps * max(multiplied, read) + copied + stored, moved)
    alone = _TURN_CYCLES + steps * max(_STEP_CYCLES, 4 * tile.mt * tile.nt)
    packed = ceil_div(tile.filters * 2 * steps, tile.threads) * _PACK_CYCLES
    return float(_START_CYCLES + packed + turns * max(alone, resident * busy))


def _sizes(cut: Cut, problem: ConvProblem) -> tuple[int, ...]:
    rows, columns = _staged(cut, problem)
    return (cut.tile_p, cut.tile_q.bit_length() - 1, *cut.tiles_of(problem), rows, columns)


def _align(problem: ConvProblem) -> int:
    """Bytes of a copy: the largest power of two, up to `CHUNK_BYTES`, to which every pixel is aligned."""
    return gcd(problem.c * problem.dtype.itemsize_bytes, CHUNK_BYTES)


def _store(problem: ConvProblem) -> int:
    """Filters of a store: 8 stands for as many neighbours as a thread has."""
    return RUN if problem.k % RUN == 0 else 2 if problem.k % 2 == 0 else 1


def _sectors(store: int, filters: int) -> float:
    """Parts of 32 bytes that a pixel's stores touch: each is of four threads, 16 bytes long, and begins anywhere."""
    return filters / (4 * store) * (1 + (CHUNK_BYTES - 2) / 32)


def _defines(tile: Tile, align: int, store: int) -> Defines:
    return {"ALIGN": align, "STORE": store, **tile.defines}


def _definitions(dtype: DType) -> tuple[Defines, ...]:
    if dtype not in (DType.FLOAT16, DType.BFLOAT16):
        return ()
    return tuple(
        _defines(tile, align, store) for tile in NARROW_TILES for align in (16, 8, 4, 2) for store in (RUN, 2, 1)
    )


FORM: Final = Form(
    Source("few_inputs_narrow", _definitions),
    "few_inputs_narrow",
    cuts_of(NARROW_TILES),
    defines=lambda cut, problem: _defines(cut.tile, _align(problem), _store(problem)),
    sizes=_sizes,
    shared_bytes=shared_bytes,
    cycles=cycles,
    writes_within=True,
)
