"""Winograd with tiles of 4x4 outputs on a CPU: launcher and transforms as they are, the products by NumPy."""

from __future__ import annotations

import shutil
from concurrent.futures import Future, ProcessPoolExecutor

import numpy as np
import pytest

from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import reference
from conv_advisor.kernels.cuda.catalog import VARIANTS
from conv_advisor.kernels.cuda.winograd_large import plan as plans
from conv_advisor.kernels.tolerance import tolerance
from tests.kernels import host_cuda
from tests.shapes import EDGE_SHAPES, UNEVEN_SHAPES, edge_problem, uneven_problem

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

HOPPER = Device(id="host", name="host", kind="cuda", capability="9.0", processors=1)
LARGE = [variant for variant in VARIANTS if variant.id.startswith("cuda.winograd_nonfused_4x4")]
WIDTHS = ("27-1-3-4-16", "28-2-3-4-16", "56-1-3-4-5", "150-1-3-4-3", "131-1-3-2-3", "27-1-5-4-20", "7-3-5-4-16")

Case = tuple[str, ConvProblem]


def cases() -> list[Case]:
    """Both filters on every edge shape, and on rows of many lengths, in both layouts."""
    problems = [edge_problem(name, DType.FLOAT32, layout) for name in EDGE_SHAPES for layout in Layout]
    problems += [uneven_problem(name, DType.FLOAT32, layout) for name in UNEVEN_SHAPES for layout in Layout]
    problems += [ConvProblem.parse(layer, layout=layout) for layer in WIDTHS for layout in Layout]
    return [(variant.id, p) for variant in LARGE for p in problems if not variant.why_not(p, HOPPER)]


@pytest.fixture(scope="module")
def errors(pool: ProcessPoolExecutor) -> dict[Case, Future[float]]:
    """The error of every case, all asked for at once."""
    return {case: pool.submit(host_cuda.error_of, *case, device=HOPPER) for case in cases()}


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case[0]}-{case[1].key}")
def test_the_large_tiles_are_right(errors: dict[Case, Future[float]], case: Case) -> None:
    assert errors[case].result() <= tolerance(case[1])


@pytest.mark.parametrize("layout", Layout)
def test_the_least_workspace_is_enough_and_means_many_chunks(pool: ProcessPoolExecutor, layout: Layout) -> None:
    problem = edge_problem("batch", DType.FLOAT32, layout)
    with pytest.raises(WorkspaceExceeded) as raised:
        plans.plan_cut(problem, HOPPER, 64)
    least = raised.value.needed_bytes
    assert plans.plan_cut(problem, HOPPER, least).images < problem.n
    found = pool.submit(host_cuda.error_of, LARGE[0].id, problem, least, device=HOPPER).result()
    assert found <= tolerance(problem)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("layer", ["14-3-3-8-20", "15-2-5-8-20"])
def test_magnitudes_may_differ_widely(pool: ProcessPoolExecutor, layer: str, layout: Layout) -> None:
    """By any factor between images and filters; within them as far as float32 itself would tell."""
    problem = ConvProblem.parse(layer, layout=layout)
    variant = next(each for each in LARGE if not each.why_not(problem, HOPPER))
    found = pool.submit(error_of_mixed_magnitudes, variant.id, problem).result()
    assert found <= tolerance(problem)


@pytest.mark.parametrize("layout", Layout)
def test_what_is_not_finite_makes_its_image_and_its_filter_nan(pool: ProcessPoolExecutor, layout: Layout) -> None:
    problem = ConvProblem.parse("13-3-3-6-20", layout=layout)
    y = pool.submit(result_where_not_finite, LARGE[0].id, problem).result()
    is_nan = np.isnan(y).all(pixels_of(problem))
    assert is_nan[1].all()
    assert is_nan[:, 4].all()
    assert np.isfinite(np.moveaxis(y, channels_of(problem), 1)[[0, 2]][:, [0, 1, 2, 3, 5]]).all()


def channels_of(problem: ConvProblem) -> int:
    """Which axis of x and y channels are."""
    return 1 if problem.layout is Layout.NCHW else 3


def pixels_of(problem: ConvProblem) -> tuple[int, int]:
    """Which axes of x and y are rows and columns."""
    return (2, 3) if problem.layout is Layout.NCHW else (1, 2)


def result_where_not_finite(variant_id: str, problem: ConvProblem) -> np.ndarray:
    """y where an element of image 1 is infinite and one of filter 4 is NaN."""
    x, weight = reference.random_operands(problem, 0)
    x[1, 3, 5, 7], weight[4].flat[0] = np.inf, np.nan
    return host_cuda.result_of(variant_id, problem, x, weight, device=HOPPER)


def error_of_mixed_magnitudes(variant_id: str, problem: ConvProblem) -> float:
    """The largest error of an output plane, relative to the largest output of that plane."""
    random = np.random.default_rng(0)
    x, weight = reference.random_operands(problem, 0)
    ten, two = np.float32(10), np.float32(2)
    of_channels = [problem.c if axis == channels_of(problem) else 1 for axis in range(4)]
    of_pixels = [x.shape[axis] if axis in pixels_of(problem) else 1 for axis in range(4)]
    x = x * ten ** random.integers(-15, 15, (problem.n, 1, 1, 1)) * two ** random.integers(-12, 1, of_channels)
    x = (x * two ** random.integers(-12, 1, of_pixels)).astype(np.float32)
    weight = (weight * ten ** random.integers(-10, 10, (problem.k, 1, 1, 1))).astype(np.float32)
    y = host_cuda.result_of(variant_id, problem, x, weight, device=HOPPER)
    expected = reference.convolve(problem, x, weight)
    errors = np.abs(y - expected).max(pixels_of(problem)) / np.abs(expected).max(pixels_of(problem))
    return float(errors.max())
