"""How a cut of the grouped convolution lies in shared memory, and what its kernel is told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import ceil, gcd
from typing import Final

from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.parts.division import division, magic, signed
from conv_advisor.kernels.cuda.parts.source import Defines, Source

MOST_WARPS: Final = 8
"""Of a block."""
MOST_SHARED_BYTES: Final = 96 * 1024
"""Of a block: so much has every device, and a Hopper multiprocessor holds two."""
MOST_TAPS: Final = 1024
"""The least block, of one pixel, one filter and four words of channels, takes 52 bytes a tap."""


class Mode(IntEnum):
    """How words lie in the slab and are copied; the numbers are those of the .cu."""

    NCHW = 0
    NHWC = 1
    NHWC_ODD = 2


@dataclass(frozen=True)
class Tile:
    """What a warp computes: 16 `mt` pixels of 8 `nt` filters.

    Parameters
    ----------
    mt, nt : int
    blocks : int
        That a multiprocessor's registers have room for.
    """

    mt: int
    nt: int

    @property
    def blocks(self) -> int:
        """Blocks of MOST_WARPS that a multiprocessor's registers have room for."""
        return 3 if self.mt * self.nt < 4 else 2 if self.mt * self.nt <= 12 else 1


_PIXELS_BY_FILTERS: Final = {1: (1, 2, 4), 2: (1, 2, 4), 3: (1, 2, 4), 4: (2, 4), 6: (1, 2, 4)}
TILES: Final = tuple(Tile(mt, nt) for nt, every_mt in _PIXELS_BY_FILTERS.items() for mt in every_mt)


@dataclass(frozen=True)
class Cut:
    """How a problem is shared out among blocks.

    Parameters
    ----------
    tile : Tile
    warps_m, warps_n : int
        Of a group of a block.
    block_groups, block_filters : int
        Filters of each group.
    tile_n, tile_p, tile_q : int
        Images, rows and columns of a block's tile of pixels.
    chunk_words : int
        Words of channels of a group that are staged at a time.
    stages : int
    tile_blocks : int
        Among which the tiles of pixels are shared out.
    """

    tile: Tile
    warps_m: int
    warps_n: int
    block_groups: int
    block_filters: int
    tile_n: int
    tile_p: int
    tile_q: int
    chunk_words: int
    stages: int
    tile_blocks: int = 1

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warps_m * self.warps_n * self.block_groups

    @property
    def tile_pixels(self) -> int:
        """Of a block."""
        return self.tile_n * self.tile_p * self.tile_q


@dataclass(frozen=True)
class Geometry:
    """Where things lie in a block's shared memory.

    Parameters
    ----------
    rows, columns, phase_columns : int
        Of an image of the slab; `phase_columns` of each phase of the stride.
    step_h, step_w : int
        Rows and columns of the input from one of the slab to the next.
    stride_p, stride_q, dilation_r, dilation_s : int
        In rows and columns of the slab.
    slab_pixels, slab_pitch, slab_words : int
        The pitch goes from one pixel to the next, or from one word of channels.
    chunks : int
    gemm_k, padded_k, weight_pitch : int
        Words of a chunk of a filter.
    shared_bytes : int
    """

    rows: int
    columns: int
    phase_columns: int
    step_h: int
    step_w: int
    stride_p: int
    stride_q: int
    dilation_r: int
    dilation_s: int
    slab_pixels: int
    slab_pitch: int
    slab_words: int
    chunks: int
    gemm_k: int
    padded_k: int
    weight_pitch: int
    shared_bytes: int


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """What a launcher may define for this precision."""
    split = int(dtype is DType.FLOAT32)
    return tuple({"MT": tile.mt, "NT": tile.nt, "MODE": int(mode), "SPLIT": split} for tile in TILES for mode in Mode)


SOURCE: Final = Source("grouped", definitions)


def elements_of_word(problem: ConvProblem) -> int:
    """Channels in four bytes."""
    return 4 // problem.dtype.itemsize_bytes


def group_words(problem: ConvProblem) -> int:
    """Words of a group's channels of a pixel."""
    return ceil(problem.c // problem.groups / elements_of_word(problem))


def mode_of(problem: ConvProblem) -> Mode:
    """Words in fours need a multiple of four."""
    if problem.layout is Layout.NCHW:
        return Mode.NCHW
    return Mode.NHWC_ODD if problem.c // problem.groups % (4 * elements_of_word(problem)) else Mode.NHWC


def defines_for(tile: Tile, problem: ConvProblem) -> dict[str, int]:
    """What the source is compiled with."""
    split = int(problem.dtype is DType.FLOAT32)
    return {"MT": tile.mt, "NT": tile.nt, "MODE": int(mode_of(problem)), "SPLIT": split}


@dataclass(frozen=True)
class Runs:
    """Elements or words that a copy moves.

    Parameters
    ----------
    x : int
        Neighbouring pixels of a plane (nchw), or words of a pixel.
    weight : int
        Words of a filter.
    y : int
        Neighbouring pixels of a plane of two-byte elements, by which y is written; else 1.
    lead : int
        Columns ahead of the slab's first, so that runs of x are aligned.
    """

    x: int
    weight: int
    y: int = 1
    lead: int = 0


def runs_of(problem: ConvProblem, cut: Cut) -> Runs:
    """As long as alignment allows."""
    words, elements, mode = group_words(problem), elements_of_word(problem), mode_of(problem)
    chunk, taps = cut.chunk_words, problem.r * problem.s
    if mode is Mode.NCHW:
        is_wide = elements == 1 and words * taps % 4 == 0 and (chunk == words or chunk * taps % 4 == 0)
        x_run, lead = next((run, -problem.pad_w % run) for run in (4, 2, 1) if _has_runs_of_x(problem, cut, run))
        y_run = 1 if elements == 1 else next(run for run in (4, 2, 1) if _has_runs_of_y(problem, cut, run))
        return Runs(x_run, 4 if is_wide else 1, y_run, lead)
    is_copied = elements == 1 or mode is Mode.NHWC
    is_wide = (
        is_copied
        and problem.c % (4 * elements) == 0
        and words * cut.block_groups % 4 == 0 == chunk * cut.block_groups % 4
    )
    return Runs(4 if is_wide else 1, 4 if mode is Mode.NHWC else 1)


def _has_runs_of_x(problem: ConvProblem, cut: Cut, run: int) -> bool:
    """Whether aligned runs of pixels of the slab are such in x, and inside or outside of it as a whole."""
    if run == 1:
        return True
    step, stride, _, columns = _axis(problem.s, problem.stride_w, problem.dilation_w, cut.tile_q)
    if step > 1 or stride > 1:
        return False
    if problem.w % run == 0:
        return cut.tile_q == problem.q or cut.tile_q * problem.stride_w % run == 0
    step, _, _, rows = _axis(problem.r, problem.stride_h, problem.dilation_h, cut.tile_p)
    is_whole = columns == problem.w and step == 1 and problem.pad_h == problem.pad_w == 0
    starts = cut.tile_p * problem.stride_h * problem.w if cut.tile_p < problem.p else 0
    return is_whole and all(size % run == 0 for size in (problem.h * problem.w, rows * columns, starts))


def _has_runs_of_y(problem: ConvProblem, cut: Cut, run: int) -> bool:
    if run == 1:
        return True
    if cut.tile_q < problem.q:
        return problem.q % run == 0 and cut.tile_q % run == 0
    return problem.p * problem.q % run == 0 and cut.tile_p * cut.tile_q % run == 0


def _axis(filter_size: int, stride: int, dilation: int, tile: int) -> tuple[int, int, int, int]:
    """Step of the input, stride and dilation of the slab in steps, and the steps that a tile's windows cover."""
    dilation = dilation if filter_size > 1 else stride
    step = dilation if tile == 1 else gcd(stride, dilation)
    stride, dilation = (1 if tile == 1 else stride // step), dilation // step
    return step, stride, dilation, (tile - 1) * stride + (filter_size - 1) * dilation + 1


def geometry_of(problem: ConvProblem, cut: Cut) -> Geometry:
    """Where things lie in shared memory."""
    step_h, stride_p, dilation_r, rows = _axis(problem.r, problem.stride_h, problem.dilation_h, cut.tile_p)
    step_w, stride_q, dilation_s, covered = _axis(problem.s, problem.stride_w, problem.dilation_w, cut.tile_q)
    runs = runs_of(problem, cut)
    if mode_of(problem) is Mode.NCHW and problem.w % runs.x == 0:
        covered = next_of(covered + runs.lead, 0, runs.x)
    phase_columns = ceil(covered / stride_q)
    columns = phase_columns * stride_q
    pixels = cut.tile_n * rows * columns
    words = cut.block_groups * cut.chunk_words
    mode = mode_of(problem)
    if mode is Mode.NCHW:
        pitch = next_of(pixels, 8, 16)
        slab_words = next_of(words * pitch, 0, 4)
    else:
        pitch = next_of(words, 4, 8)
        slab_words = pixels * pitch
    gemm_k = cut.chunk_words * problem.r * problem.s
    padded_k = next_of(gemm_k, 0, 8)
    weight_pitch = padded_k + 4
    chunks = ceil(group_words(problem) / cut.chunk_words)
    weight_words = cut.block_groups * cut.block_filters * weight_pitch
    total = padded_k + next_of(pixels, 0, 4) + cut.stages * slab_words
    total += weight_words * (cut.stages if chunks > 1 else 1)
    return Geometry(
        *(rows, columns, phase_columns, step_h, step_w, stride_p, stride_q, dilation_r, dilation_s),
        *(pixels, pitch, slab_words, chunks, gemm_k, padded_k, weight_pitch, 4 * total),
    )


def next_of(least: int, rest: int, modulus: int) -> int:
    """The least number from `least` on that leaves the rest."""
    return least + (rest - least) % modulus


def tiles_of(problem: ConvProblem, cut: Cut) -> int:
    """Tiles of pixels."""
    return ceil(problem.n / cut.tile_n) * ceil(problem.p / cut.tile_p) * ceil(problem.q / cut.tile_q)


def columns_of_blocks(problem: ConvProblem, cut: Cut) -> int:
    """Blocks that share a tile of pixels: of groups and of filters."""
    return ceil(problem.groups / cut.block_groups) * ceil(problem.k // problem.groups / cut.block_filters)


def arguments(problem: ConvProblem, cut: Cut) -> list[int]:
    """The kernel's parameters behind the shape."""
    g, runs, is_nchw = geometry_of(problem, cut), runs_of(problem, cut), problem.layout is Layout.NCHW
    words, taps = cut.block_groups * cut.chunk_words, problem.r * problem.s
    tiles_p, tiles_q = ceil(problem.p / cut.tile_p), ceil(problem.q / cut.tile_q)
    columns = columns_of_blocks(problem, cut)
    filter_blocks = columns // ceil(problem.groups / cut.block_groups)
    slab_lanes = min(cut.threads, (g.slab_pixels if is_nchw else words) // runs.x)
    weight_lanes = min(cut.threads, g.padded_k // runs.weight)
    return [
        *(problem.c // problem.groups, problem.k // problem.groups, g.gemm_k, cut.tile_n, cut.tile_p, cut.tile_q),
        *(tiles_of(problem, cut), cut.tile_blocks, tiles_p, tiles_q, columns, filter_blocks),
        *(cut.block_groups, cut.block_filters, cut.warps_m, cut.warps_n, words, g.chunks, cut.stages),
        *(g.rows, g.columns, g.phase_columns, runs.lead, g.step_h, g.step_w),
        *(g.stride_p, g.stride_q, g.dilation_r, g.dilation_s),
        *(g.slab_pixels, g.slab_pitch, g.slab_words, slab_lanes, runs.x, runs.y),
        *(g.weight_pitch, weight_lanes, runs.weight),
        *map(_reciprocal, (g.rows * g.columns, g.columns, g.phase_columns, slab_lanes, weight_lanes)),
        *map(_reciprocal, (taps if is_nchw else cut.chunk_words, problem.s, g.stride_q)),
        *map(_reciprocal, (cut.tile_p * cut.tile_q, cut.tile_q)),
        *(part for divisor in (columns, filter_blocks, tiles_q, tiles_p) for part in _long_reciprocal(divisor)),
    ]


def _reciprocal(divisor: int) -> int:
    """What the kernel multiplies numbers below 2^16 by, instead of dividing."""
    return 0 if divisor == 1 else signed(magic(divisor, 32))


def _long_reciprocal(divisor: int) -> tuple[int, int]:
    """What it multiplies numbers below 2^31 by and shifts them by."""
    multiplier, shift = division(divisor)
    return signed(multiplier), shift
