"""The packing before products with channels innermost, on a CPU: its kernel compiled by g++; no GPU is needed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
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
LAYERS = (
    "7-2-3-5-64",  # whole planes of 49 pixels
    "7-1-1-5-67",  # two tiles of channels, the last of three
    "1-3-1-70-130",  # planes of a pixel: many images in a tile, several tiles of channels
    "5-9-5-20-17",  # filters of 25 taps, several in a tile
    "13-2-3-3-72",  # planes cut into three parts, of an odd size
    "27-1-1-3-9",
    "31-1-1-2-3",  # planes cut into parts, three channels
    "10-2-3-9-70",  # planes of whole fours
    "12-2-2-9-70",  # planes of whole eights; filters of four taps
    "4-5-9-3-70",  # filters of 81 taps, cut into parts
    "24-1-3-2-5",  # planes of whole eights, but a single run
)
"""Each way to read x and weight, with tiles that stick out."""


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """A process of the stand-in for CuPy."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=host_cuda.install) as process:
        yield process


def bits(array: np.ndarray) -> np.ndarray:
    """As kernels take it: bfloat16 as its bits."""
    return array.view(np.uint16) if array.itemsize == 2 else array


def packed(problem: ConvProblem, skipped: int) -> tuple[np.ndarray, np.ndarray]:
    """What nhwc_pack.cu makes of random x, without its first images, and weight, in the stand-in's process."""
    from conv_advisor.kernels.cuda.implicit_gemm_nhwc.launch import start_packing

    channels = packing.packed_channels(problem)
    arrays = []
    for source in (bits(array) for array in reference.random_operands(problem, 0)):
        arrays.append(host_cuda.empty(source.shape, source.dtype))
        arrays[-1].values[...] = source
    images = problem.n - skipped
    positions = (images * problem.h * problem.w, problem.k * problem.r * problem.s)
    targets = [host_cuda.empty((count, channels), arrays[0].values.dtype) for count in positions]
    x, weight, packed_x, packed_weight = (array.data.ptr for array in (*arrays, *targets))
    x += skipped * arrays[0].values[0].nbytes
    start_packing(problem, images, has_weight=True)(x, weight, packed_x, packed_weight)
    assert all(array.is_guard_intact() for array in (*arrays, *targets))
    return targets[0].values.copy(), targets[1].values.copy()


def expected(source: np.ndarray, layout: Layout, channels: int) -> np.ndarray:
    """(positions, channels): channels innermost, padded with zeros."""
    rows = np.moveaxis(source, 1, -1) if layout is Layout.NCHW else source
    rows = rows.reshape(-1, rows.shape[-1])
    return np.pad(rows, ((0, 0), (0, channels - rows.shape[-1])))


def check(problem: ConvProblem, pool: ProcessPoolExecutor, skipped: int = 0) -> None:
    """Compare with NumPy, bit for bit."""
    x, weight = reference.random_operands(problem, 0)
    for source, target in zip((x[skipped:], weight), pool.submit(packed, problem, skipped).result(), strict=True):
        wanted = expected(bits(source), problem.layout, packing.packed_channels(problem))
        np.testing.assert_array_equal(target, wanted, err_msg=str(problem))


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT32])
def test_channels_come_to_lie_innermost_and_padded_with_zeros(
    dtype: DType, layout: Layout, pool: ProcessPoolExecutor
) -> None:
    for name in SHAPES:
        check(ConvProblem(**EDGE_SHAPES[name], dtype=dtype, layout=layout), pool)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.TF32])
@pytest.mark.parametrize("layer", LAYERS)
def test_every_way_to_read_takes_tiles_that_stick_out(layer: str, dtype: DType, pool: ProcessPoolExecutor) -> None:
    check(ConvProblem.parse(layer, dtype=dtype), pool)


@pytest.mark.parametrize("layer", ["8-2-1-3-3", "3-9-3-7-67", "2-5-1-2-130"])
def test_channels_that_lie_innermost_are_padded(layer: str, pool: ProcessPoolExecutor) -> None:
    check(ConvProblem.parse(layer, dtype="float16", layout="nhwc"), pool)


@pytest.mark.parametrize("layer", ["7-3-1-3-5", "13-3-3-3-67", "1-9-1-3-3"])
def test_images_may_begin_anywhere(layer: str, pool: ProcessPoolExecutor) -> None:
    check(ConvProblem.parse(layer, dtype="float16"), pool, skipped=1)


@pytest.mark.parametrize(
    ("layer", "dtype", "pixels"),
    [
        ("56-8-3-64-64", "float16", 8),
        ("14-8-3-64-64", "float16", 4),
        ("7-8-3-64-64", "float16", 0),
        ("224-8-3-64-3", "float16", 0),
        ("56-8-3-64-64", "tf32", 4),
    ],
)
def test_planes_of_whole_vectors_are_transposed_in_registers(layer: str, dtype: str, pixels: int) -> None:
    assert packing.pack_pixels(ConvProblem.parse(layer, dtype=dtype)) == pixels


def test_tiles_take_whole_planes_or_equal_parts_of_one() -> None:
    problem = ConvProblem.parse("13-8-3-70-64", dtype="float16")
    assert packing.pack_cut(problem, 8, 13 * 13).tiles == 8 * 3
    assert packing.pack_cut(problem, 8, 13 * 13).pixels == 57
    assert packing.pack_cut(problem, 70, 9).tiles == 12
    assert packing.pack_cut(problem, 70, 9).planes == 6


def test_a_tile_fits_shared_memory_and_what_its_threads_read() -> None:
    """The sizes in nhwc_pack.cu: 640 pieces of 16 bytes, two of them read by each thread."""
    for dtype in (DType.FLOAT16, DType.FLOAT32):
        run = packing.run_elements(dtype)
        for c in (1, run, 3 * run, 8 * run - 1, 8 * run, 8 * run + 1, 100 * run):
            for plane in range(1, 1200):
                problem = ConvProblem.parse(f"{plane}x1-1-1-1-{c}", dtype=dtype)
                cut, channels = packing.pack_cut(problem, 10**4, plane), packing.pack_runs(problem) * run
                segments = 1 if cut.is_whole else min(c, channels) if cut.parts > 1 else cut.planes
                assert segments * cut.pieces <= packing.PACK_PIECES
                pairs = ceil(cut.planes / 2) if plane == 1 else cut.planes * ceil(cut.pixels / 2)
                assert pairs <= packing.PACK_THREADS // packing.pack_runs(problem)
                images = cut.planes - (plane > 1)
                last = run + images * cut.image_pitch + (channels - 1) * cut.row + cut.pixels
                assert max(last, run - 1 + (segments - 1) * cut.pitch + cut.pieces * run) <= 640 * run
