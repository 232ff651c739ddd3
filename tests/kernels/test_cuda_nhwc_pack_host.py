"""The packing before the channels-innermost implicit GEMM, on a CPU: its kernel compiled by g++; no GPU is needed."""

from __future__ import annotations

import shutil
from concurrent.futures import ProcessPoolExecutor
from math import ceil
from multiprocessing import get_context

import numpy as np
import pytest

from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import reference
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import packing
from tests.kernels import host_cuda
from tests.shapes import EDGE_SHAPES

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

SHAPES = ("one_element", "pointwise", "same_3x3", "same_3x3_aligned", "same_3x3_deep", "rectangle_filter", "batch")


def bits(array: np.ndarray) -> np.ndarray:
    """As kernels take it: bfloat16 as its bits."""
    return array.view(np.uint16) if array.itemsize == 2 else array


def packed(problem: ConvProblem) -> tuple[np.ndarray, np.ndarray]:
    """What nhwc_pack.cu makes of random x and weight, in the process of the stand-in for CuPy."""
    from conv_advisor.kernels.cuda.compile import load_kernel

    channels = packing.packed_channels(problem)
    x, weight = (bits(array) for array in reference.random_operands(problem, 0))
    arrays = []
    for source in (x, weight):
        arrays.append(host_cuda.empty(source.shape, source.dtype))
        arrays[-1].values[...] = source
    pixels, filter_taps = problem.n * problem.h * problem.w, problem.k * problem.r * problem.s
    targets = [host_cuda.empty((positions, channels), x.dtype) for positions in (pixels, filter_taps)]
    x_tiles = packing.pack_tiles(problem, pixels)
    sizes = (x_tiles, pixels, problem.h * problem.w, filter_taps, problem.r * problem.s, problem.c, channels)
    kernel = load_kernel(packing.PACK_SOURCE, "nhwc_pack", problem.dtype, **packing.pack_defines(problem))
    grid = (x_tiles + packing.pack_tiles(problem, filter_taps),)
    kernel(grid, (packing.PACK_THREADS,), (*arrays, *targets, *(np.int32(size) for size in sizes)))
    assert all(array.is_guard_intact() for array in (*arrays, *targets))
    return targets[0].values.copy(), targets[1].values.copy()


def expected(source: np.ndarray, layout: Layout, channels: int) -> np.ndarray:
    """(positions, channels): channels innermost, padded with zeros."""
    rows = np.moveaxis(source, 1, -1) if layout is Layout.NCHW else source
    rows = rows.reshape(-1, rows.shape[-1])
    return np.pad(rows, ((0, 0), (0, channels - rows.shape[-1])))


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT32])
def test_channels_come_to_lie_innermost_and_padded_with_zeros(dtype: DType, layout: Layout) -> None:
    problems = [ConvProblem(**EDGE_SHAPES[name], dtype=dtype, layout=layout) for name in SHAPES]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=host_cuda.install) as pool:
        for problem, found in zip(problems, pool.map(packed, problems), strict=True):
            for source, target in zip(reference.random_operands(problem, 0), found, strict=True):
                np.testing.assert_array_equal(target, expected(bits(source), layout, packing.packed_channels(problem)))


def test_a_large_plane_takes_as_many_blocks_as_its_positions_need() -> None:
    problem = ConvProblem.parse("224-8-3-64-3", dtype="float16")
    assert packing.pack_tiles(problem, 8 * 224 * 224) == ceil(8 * 224 * 224 / 512)
