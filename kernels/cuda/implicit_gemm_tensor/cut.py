"""How implicit_gemm_tensor.cu cuts a problem: tiles, windows of x, stages, shared memory and the sizes it is given."""

from __future__ import annotations

from enum import IntEnum
from math import ceil
from typing import Any, Final

import numpy as np

from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.implicit_gemm_tensor.menu import Tile
from conv_advisor.kernels.cuda.implicit_gemm_tensor.windows import LINES, Window, unit_of, window_of
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.division import magic
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.shapes import Problems, is_dense

MOST_IMAGES: Final = 65535
"""Images of a batch, which are the blocks in y of the grid."""


class Loading(IntEnum):
    """How a stage of x is copied to shared memory; the numbers are those of the .cu."""

    RUNS = 0
    ROWS = 1
    WINDOWS = 2


def vector_of(problem: ConvProblem) -> int:
    """Elements of 16 bytes."""
    return 16 // problem.dtype.itemsize_bytes


def loadings(problems: Problems) -> Any:
    """The widest copies, by the numbers of `Loading`, that the filter and the planes allow."""
    has_runs = problems.h * problems.w % (16 // problems.dtype.itemsize_bytes) == 0
    rows = np.where(has_runs, int(Loading.RUNS), int(Loading.ROWS))
    return np.where(is_dense(problems), rows, int(Loading.WINDOWS))


def loading_for(problem: ConvProblem) -> Loading:
    """`loadings` for one problem."""
    return Loading(int(loadings(problem)))


def is_gathered(problems: Problems) -> Any:
    """Whether x is too narrow for asynchronous copies: rows with an odd number of two-byte elements."""
    return (problems.w % 2 == 1) & (problems.dtype.itemsize_bytes == 2)


def stage_channels(tile: Tile, loading: Loading) -> int:
    """Channels of a stage."""
    return tile.channels if loading is Loading.WINDOWS else tile.bk


def stage_k(tile: Tile, problem: ConvProblem) -> int:
    """gemm_k of a stage, rounded up to whole steps."""
    return int(stage_k_with(tile, problem.dtype, loading_for(problem), problem.r * problem.s))


def stage_k_with(tile: Tile, dtype: DType, loading: Loading, taps: Any) -> Any:
    """`stage_k` for the taps of one problem, or an array of taps."""
    step = 32 // dtype.itemsize_bytes
    return ceil_div(stage_channels(tile, loading) * taps, step) * step


def stages_of(tile: Tile, problem: ConvProblem) -> int:
    """Stages of gemm_k."""
    return ceil(problem.c / stage_channels(tile, loading_for(problem)))


def weight_pitch(tile: Tile, problem: ConvProblem) -> int:
    """Elements from one row of a stage of weight to the next: an odd number of vectors, to avoid bank conflicts."""
    return int(_odd_vectors(stage_k(tile, problem), vector_of(problem)))


def _odd_vectors(elements: Any, vector: int) -> Any:
    return (elements // vector | 1) * vector


def channel_pitch(tile: Tile, problem: ConvProblem) -> int:
    """Elements from one channel of a stage of x to the next."""
    window = window_of(problem, tile.bn) if loading_for(problem) is Loading.WINDOWS else None
    return window.channel_pitch if window else run_pitch(tile, problem.dtype)


def run_pitch(tile: Tile, dtype: DType) -> int:
    """`channel_pitch` where x is not loaded in WINDOWS."""
    return (tile.bn + 16 // dtype.itemsize_bytes + 7) // 16 * 16 + 8


def stage_elements(tile: Tile, problem: ConvProblem) -> int:
    """Elements of weight and x in shared memory per stage."""
    taps, pitch = problem.r * problem.s, channel_pitch(tile, problem)
    return int(_stage_elements(tile, problem.dtype, loading_for(problem), taps, pitch))


def _stage_elements(tile: Tile, dtype: DType, loading: Loading, taps: Any, pitch: Any) -> Any:
    rows = tile.bm * _odd_vectors(stage_k_with(tile, dtype, loading, taps), 16 // dtype.itemsize_bytes)
    return rows + stage_channels(tile, loading) * pitch


def body_floats(cut: Cut[Tile], problem: ConvProblem) -> int:
    """Floats of the stages that are in shared memory at a time, or of the sums, whichever are more."""
    taps, pitch = problem.r * problem.s, channel_pitch(cut.tile, problem)
    return int(_body_floats(cut.tile, cut.cluster, problem.dtype, loading_for(problem), taps, problem.c, pitch))


def _body_floats(tile: Tile, cluster: Any, dtype: DType, loading: Loading, taps: Any, c: Any, pitch: Any) -> Any:
    all_stages = ceil_div(c, stage_channels(tile, loading))
    stages = np.minimum(tile.stages, ceil_div(all_stages, cluster))
    floats = stages * _stage_elements(tile, dtype, loading, taps, pitch) * dtype.itemsize_bytes // 4
    return np.maximum(floats, tile.warps_k * tile.bm * (tile.bn + 8))


def shared_bytes(cut: Cut[Tile], problem: ConvProblem) -> int:
    """Shared memory of a block: stages or sums, table of places, received sums, in the layout of the .cu."""
    taps, pitch = problem.r * problem.s, channel_pitch(cut.tile, problem)
    return int(shared_bytes_with(cut.tile, cut.cluster, problem.dtype, loading_for(problem), taps, problem.c, pitch))


def shared_bytes_with(tile: Tile, cluster: Any, dtype: DType, loading: Loading, taps: Any, c: Any, pitch: Any) -> Any:
    """`shared_bytes` for the taps, depth and `channel_pitch` of one problem or arrays of them, and cluster sizes."""
    table = stage_k_with(tile, dtype, loading, taps) if loading is Loading.WINDOWS else 0
    received = np.where(np.greater(cluster, 1), cluster * ceil_div(tile.bm, cluster) * tile.bn, 0)
    return 4 * (_body_floats(tile, cluster, dtype, loading, taps, c, pitch) + table + received)


def tiles_n(tile: Tile, problem: ConvProblem) -> int:
    """Tiles of pixels of an image."""
    if loading_for(problem) is not Loading.WINDOWS:
        return ceil(problem.p * problem.q / tile.bn)
    window = window_of(problem, tile.bn)
    return window.tiles * window.strips if window else 0


def grid_for(cut: Cut[Tile], problem: ConvProblem) -> tuple[int, int, int]:
    """Blocks in x, y and z."""
    return cut.cluster * tiles_n(cut.tile, problem), problem.n, ceil(problem.k / cut.tile.bm)


def defines_for(cut: Cut[Tile], problem: ConvProblem) -> dict[str, int]:
    """The source's definitions for a cut and a problem."""
    loading, is_split = loading_for(problem), problem.dtype is DType.FLOAT32
    return {
        **tile_defines(cut.tile, loading, int(unit_of(problem)), is_split=is_split),
        "CLUSTERED": int(cut.cluster > 1),
        "WIDE_WEIGHT": int(problem.gemm_k % vector_of(problem) == 0),
    }


def tile_defines(tile: Tile, loading: Loading, unit: int, *, is_split: bool) -> dict[str, int]:
    """The definitions that all cuts of a tile share."""
    warps = {"WARPS_M": tile.warps_m, "WARPS_N": tile.warps_n, "WARPS_K": tile.warps_k}
    is_window = loading is Loading.WINDOWS
    stage = {"CHANNELS": tile.channels, "LINES": LINES, "UNIT": unit} if is_window else {"BK": tile.bk}
    kind = {"LOADING": int(loading), "SPLIT": int(is_split)}
    return {"BM": tile.bm, "BN": tile.bn, **warps, "STAGES": tile.stages, "BLOCKS": tile.blocks, **kind, **stage}


def sizes_for(cut: Cut[Tile], problem: ConvProblem) -> tuple[int, ...]:
    """The fields of the .cu's Sizes, in their order."""
    tile, loading = cut.tile, loading_for(problem)
    window = window_of(problem, tile.bn) if loading is Loading.WINDOWS else None
    window = window or Window(1, problem.q, 1, 1, 1, 1, 0)
    plane, k = problem.p * problem.q, stage_k(tile, problem)
    stages, more_stages = divmod(stages_of(tile, problem), cut.cluster)
    owned, chunks, taps = ceil(tile.bm / cut.cluster), k // vector_of(problem), problem.r * problem.s
    return (
        *(problem.n, problem.c, problem.h, problem.w, problem.k, problem.q, plane, problem.gemm_k),
        *(stages, more_stages, k, weight_pitch(tile, problem), chunks, magic(chunks, 20)),
        *(owned, magic(owned, 16), taps, magic(taps, 20), problem.s, magic(problem.s, 16)),
        *(problem.stride_h, problem.stride_w, problem.pad_h, problem.pad_w, problem.dilation_h, problem.dilation_w),
        *(window.strip, magic(max(2, window.strip), 32), window.tiles),
        *(window.positions, window.units * window.unit, window.units, magic(window.units, 16), window.channel_pitch),
        *(window.last_place, stage_elements(tile, problem), body_floats(cut, problem)),
        int(window.strip == problem.q and plane % 4 == 0),
    )


def has_divisors(tile: Tile, problems: Problems, k: Any, stages: Any) -> Any:
    """Whether windows suit the kernel: its threads, its steps of gemm_k, and the range of its magic divisions.

    Parameters
    ----------
    tile : Tile
        One tile, or several `stacked`.
    problems : ConvProblem or Shapes
    k : int or int array
        gemm_k of a stage.
    stages : int or int array
        Stages of the whole gemm_k.
    """
    itemsize, taps, s = problems.dtype.itemsize_bytes, problems.r * problems.s, problems.s
    suits = (k // (16 // itemsize) <= tile.threads) & (k * taps < 2**20) & (problems.r * s**2 < 2**16)
    suits = suits & ((tile.channels * taps % (32 // itemsize) == 0) | (stages <= 1))
    return suits & (np.logical_not(is_gathered(problems)) | (tile.channels % (tile.threads // 32) == 0))
