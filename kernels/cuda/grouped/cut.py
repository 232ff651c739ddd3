"""The layout of a cut of the grouped convolution in shared memory, and the parameters of its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np

from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.candidates import row_of
from conv_advisor.kernels.cuda.parts.division import division, magic
from conv_advisor.kernels.cuda.parts.shapes import Ints, Problems
from conv_advisor.kernels.cuda.parts.source import ARCHITECTURES, BorneSpill, Defines, Source

MOST_WARPS: Final = 8
"""Warps of a block."""
MOST_SHARED_BYTES: Final = 96 * 1024
"""Shared memory of a block: every device has as much, and a Hopper multiprocessor holds two such blocks."""


class Mode(IntEnum):
    """The order of words in the slab, and how they are copied; the numbers are those of the .cu."""

    NCHW = 0
    NHWC = 1
    NHWC_ODD = 2


@dataclass(frozen=True)
class Tile:
    """The outputs of a warp: 16 `mt` pixels of 8 `nt` filters.

    Parameters
    ----------
    mt, nt : int
    """

    mt: Ints
    nt: Ints

    @property
    def blocks(self) -> Ints:
        """Blocks of MOST_WARPS that a multiprocessor's registers have room for."""
        fragments = self.mt * self.nt
        return np.where(np.less(fragments, 4), 3, np.where(np.less_equal(fragments, 12), 2, 1))


_PIXELS_BY_FILTERS: Final = {1: (1, 2, 4), 2: (1, 2, 4), 3: (1, 2, 4), 4: (2, 4), 6: (1, 2, 4)}
TILES: Final = tuple(Tile(mt, nt) for nt, every_mt in _PIXELS_BY_FILTERS.items() for mt in every_mt)


@dataclass(frozen=True)
class Cut:
    """How a problem is divided among blocks; many cuts are one `Cut` of arrays.

    Parameters
    ----------
    tile : Tile
    warps_m, warps_n : int
        Warps that a block has per group, over pixels and over filters.
    block_groups, block_filters : int
        Groups of a block, and filters of each group.
    tile_n, tile_p, tile_q : int
        Images, rows and columns of a block's tile of pixels.
    chunk_words : int
        Words of channels of a group that are staged at a time.
    stages : int
    tile_blocks : int
        Blocks that share the tiles of pixels.
    """

    tile: Tile
    warps_m: Ints
    warps_n: Ints
    block_groups: Ints
    block_filters: Ints
    tile_n: Ints
    tile_p: Ints
    tile_q: Ints
    chunk_words: Ints
    stages: Ints
    tile_blocks: Ints = 1

    @property
    def threads(self) -> Ints:
        """Threads of a block."""
        return 32 * self.warps_m * self.warps_n * self.block_groups

    @property
    def tile_pixels(self) -> Ints:
        """Pixels of a block's tile."""
        return self.tile_n * self.tile_p * self.tile_q


@dataclass(frozen=True)
class Geometry:
    """The layout of a block's shared memory.

    Parameters
    ----------
    rows, columns, phase_columns : int
        Size of an image of the slab; each phase of the stride has `phase_columns`.
    step_h, step_w : int
        Rows and columns of the input between neighbouring rows and columns of the slab.
    stride_p, stride_q, dilation_r, dilation_s : int
        In rows and columns of the slab.
    slab_pixels, slab_pitch, slab_words : int
        The pitch is the distance between neighbouring pixels (nhwc) or words of channels (nchw), in words.
    chunks : int
    gemm_k, padded_k, weight_pitch : int
        Words of a chunk of a filter.
    """

    rows: Ints
    columns: Ints
    phase_columns: Ints
    step_h: Ints
    step_w: Ints
    stride_p: Ints
    stride_q: Ints
    dilation_r: Ints
    dilation_s: Ints
    slab_pixels: Ints
    slab_pitch: Ints
    slab_words: Ints
    chunks: Ints
    gemm_k: Ints
    padded_k: Ints
    weight_pitch: Ints


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions that a launcher may use for this precision."""
    split = int(dtype is DType.FLOAT32)
    return tuple({"MT": tile.mt, "NT": tile.nt, "MODE": int(mode), "SPLIT": split} for tile in TILES for mode in Mode)


_GELU: Final = "once a tile, the error function of 48 sums, with the 128 registers that the bound of two blocks leaves"
_AROUND_STEPS: Final = (
    "addresses of a tile, around the loop over steps of gemm_k, none of which loads or stores any: sums, parts of"
    " fragments and what tensor cores add up take nearly all registers"
)
_SPILLED_BYTES: Final = {2: 28, 3: 128, 4: 112, 6: 272}
"""Bytes that float32 spills, by the number of filter tiles of a warp."""
SOURCE: Final = Source(
    "grouped",
    definitions,
    spills=(
        BorneSpill("grouped", "sm_90", 28, _GELU, storage="FLOAT16", defines=(("MT", 4), ("NT", 3), ("ACTIVATION", 5))),
        *(
            BorneSpill("grouped", arch, most, _AROUND_STEPS, storage="FLOAT32", defines=(("NT", nt), ("SPLIT", 1)))
            for arch in ARCHITECTURES
            for nt, most in _SPILLED_BYTES.items()
        ),
    ),
)


def elements_of_word(problems: Problems) -> int:
    """Channels in four bytes."""
    return 4 // problems.dtype.itemsize_bytes


def group_words(problems: Problems) -> Any:
    """Words of one group's channels of a pixel."""
    return ceil_div(problems.c // problems.groups, elements_of_word(problems))


def modes_of(problems: Problems) -> Any:
    """The `Mode` of each problem, as numbers: copies of four words need a multiple of four words per group."""
    if problems.layout is Layout.NCHW:
        return int(Mode.NCHW)
    is_odd = problems.c // problems.groups % (4 * elements_of_word(problems)) > 0
    return np.where(is_odd, int(Mode.NHWC_ODD), int(Mode.NHWC))


def mode_of(problem: ConvProblem) -> Mode:
    """`modes_of` for one problem."""
    return Mode(int(modes_of(problem)))


def defines_for(tile: Tile, problem: ConvProblem) -> dict[str, int]:
    """The source's definitions for a tile and a problem."""
    split = int(problem.dtype is DType.FLOAT32)
    return {"MT": tile.mt, "NT": tile.nt, "MODE": int(mode_of(problem)), "SPLIT": split}


@dataclass(frozen=True)
class Runs:
    """How many elements or words one copy moves.

    Parameters
    ----------
    x : int or int array
        Neighbouring pixels of a plane (nchw), or words of a pixel.
    weight : int or int array
        Words of a filter.
    y : int or int array
        Neighbouring pixels of a plane of two-byte elements that are written to y together; else 1.
    lead : int or int array
        Columns before the slab's first, so that runs of x are aligned.
    """

    x: Any
    weight: Any
    y: Any
    lead: Any


def runs_of(problems: Problems, cut: Cut) -> Runs:
    """The longest runs that alignment allows."""
    words, elements, chunk = group_words(problems), elements_of_word(problems), cut.chunk_words
    if problems.layout is Layout.NCHW:
        taps = problems.r * problems.s
        has_fours = (words * taps % 4 == 0) & (np.equal(chunk, words) | (chunk * taps % 4 == 0))
        x_run = _longest(*(_has_runs_of_x(problems, cut, run) for run in (4, 2)))
        y_run = 1 if elements == 1 else _longest(*(_has_runs_of_y(problems, cut, run) for run in (4, 2)))
        return Runs(x_run, np.where((elements == 1) & has_fours, 4, 1), y_run, -problems.pad_w % x_run)
    is_aligned = modes_of(problems) == Mode.NHWC
    has_fours = (words * cut.block_groups % 4 == 0) & (chunk * cut.block_groups % 4 == 0)
    is_wide = (is_aligned | (elements == 1)) & (problems.c % (4 * elements) == 0) & has_fours
    return Runs(np.where(is_wide, 4, 1), np.where(is_aligned, 4, 1), 1, 0)


def _longest(has_fours: Any, has_twos: Any) -> Any:
    return np.where(has_fours, 4, np.where(has_twos, 2, 1))


def _has_runs_of_x(problems: Problems, cut: Cut, run: int) -> Any:
    """Whether aligned runs of slab pixels are aligned runs of x too, and each lies wholly inside or outside of x."""
    step_w, stride, _, columns = _axis(problems.s, problems.stride_w, problems.dilation_w, cut.tile_q)
    step_h, _, _, rows = _axis(problems.r, problems.stride_h, problems.dilation_h, cut.tile_p)
    in_rows = np.equal(cut.tile_q, problems.q) | (cut.tile_q * problems.stride_w % run == 0)
    is_whole = (columns == problems.w) & (step_h == 1) & (problems.pad_h == 0) & (problems.pad_w == 0)
    starts = np.where(np.less(cut.tile_p, problems.p), cut.tile_p * problems.stride_h * problems.w, 0)
    in_planes = is_whole & (problems.h * problems.w % run == 0) & (rows * columns % run == 0) & (starts % run == 0)
    return (step_w <= 1) & (stride <= 1) & np.where(problems.w % run == 0, in_rows, in_planes)


def _has_runs_of_y(problems: Problems, cut: Cut, run: int) -> Any:
    in_rows = (problems.q % run == 0) & (cut.tile_q % run == 0)
    in_planes = (problems.p * problems.q % run == 0) & (cut.tile_p * cut.tile_q % run == 0)
    return np.where(np.less(cut.tile_q, problems.q), in_rows, in_planes)


def _axis(filter_size: Any, stride: Any, dilation: Any, tile: Any) -> tuple[Any, Any, Any, Any]:
    """Step of the input, stride and dilation of the slab in steps, and the steps that a tile's windows cover."""
    dilation, is_one = np.where(np.greater(filter_size, 1), dilation, stride), np.equal(tile, 1)
    step = np.where(is_one, dilation, np.gcd(stride, dilation))
    stride, dilation = np.where(is_one, 1, stride // step), dilation // step
    return step, stride, dilation, (tile - 1) * stride + (filter_size - 1) * dilation + 1


def geometry_of(problems: Problems, cut: Cut, runs: Runs | None = None) -> Geometry:
    """The layout of shared memory; ``runs`` saves computing the cut's `runs_of` again."""
    runs = runs or runs_of(problems, cut)
    step_h, stride_p, dilation_r, rows = _axis(problems.r, problems.stride_h, problems.dilation_h, cut.tile_p)
    step_w, stride_q, dilation_s, covered = _axis(problems.s, problems.stride_w, problems.dilation_w, cut.tile_q)
    is_nchw = problems.layout is Layout.NCHW
    if is_nchw:
        covered = np.where(problems.w % runs.x == 0, next_of(covered + runs.lead, 0, runs.x), covered)
    phase_columns = ceil_div(covered, stride_q)
    columns = phase_columns * stride_q
    pixels = cut.tile_n * rows * columns
    words = cut.block_groups * cut.chunk_words
    pitch = next_of(pixels, 8, 16) if is_nchw else next_of(words, 4, 8)
    slab_words = next_of(words * pitch, 0, 4) if is_nchw else pixels * pitch
    gemm_k = cut.chunk_words * problems.r * problems.s
    padded_k = next_of(gemm_k, 0, 8)
    chunks = ceil_div(group_words(problems), cut.chunk_words)
    return Geometry(
        *(rows, columns, phase_columns, step_h, step_w, stride_p, stride_q, dilation_r, dilation_s),
        *(pixels, pitch, slab_words, chunks, gemm_k, padded_k, padded_k + 4),
    )


def shared_bytes_of(g: Geometry, cut: Cut, stages: Any) -> Any:
    """Shared memory of a block with ``stages`` stages."""
    weight_words = cut.block_groups * cut.block_filters * g.weight_pitch * np.where(g.chunks > 1, stages, 1)
    return 4 * (g.padded_k + next_of(g.slab_pixels, 0, 4) + stages * g.slab_words + weight_words)


def shared_bytes(problem: ConvProblem, cut: Cut) -> int:
    """Shared memory of a block of one cut."""
    return int(shared_bytes_of(geometry_of(problem, cut), cut, cut.stages))


def next_of(least: Any, remainder: Any, modulus: Any) -> Any:
    """The least number, not below `least`, that has this remainder modulo `modulus`."""
    return least + (remainder - least) % modulus


def tiles_of(problems: Problems, cut: Cut) -> Any:
    """Tiles of pixels."""
    in_planes = ceil_div(problems.p, cut.tile_p) * ceil_div(problems.q, cut.tile_q)
    return ceil_div(problems.n, cut.tile_n) * in_planes


def columns_of_blocks(problems: Problems, cut: Cut) -> Any:
    """Blocks that share a tile of pixels: those of all groups and filters."""
    filters = problems.k // problems.groups
    return ceil_div(problems.groups, cut.block_groups) * ceil_div(filters, cut.block_filters)


def arguments(problem: ConvProblem, cut: Cut) -> list[int]:
    """The kernel's parameters after those of the shape."""
    array_runs = runs_of(problem, cut)
    g, runs, is_nchw = row_of(geometry_of(problem, cut, array_runs)), row_of(array_runs), problem.layout is Layout.NCHW
    words, taps = cut.block_groups * cut.chunk_words, problem.r * problem.s
    tiles_p, tiles_q = ceil_div(problem.p, cut.tile_p), ceil_div(problem.q, cut.tile_q)
    columns = columns_of_blocks(problem, cut)
    filter_blocks = columns // ceil_div(problem.groups, cut.block_groups)
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
        *(part for divisor in (columns, filter_blocks, tiles_q, tiles_p) for part in division(divisor)),
    ]


def _reciprocal(divisor: int) -> int:
    """The factor by which the kernel multiplies numbers below 2^16 instead of dividing them."""
    return 0 if divisor == 1 else magic(divisor, 32)
