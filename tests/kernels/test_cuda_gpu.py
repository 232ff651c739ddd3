"""Every CUDA variant on a real GPU: launched, and replayed from a captured graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conv_advisor.data.errors import NotApplicable, WorkspaceExceeded
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import comparison, reference
from conv_advisor.kernels.cuda.catalog import VARIANTS
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Algorithm
from tests.shapes import EDGE_SHAPES, edge_problem

pytestmark = pytest.mark.gpu

ANY_GPU = Device(id="gpu", name="GPU", kind="cuda", capability="9.0", processors=132)
BY_ID = {variant.id: variant for variant in VARIANTS}
EDGES = [edge_problem(name, dtype, layout) for name in EDGE_SHAPES for dtype in DType for layout in Layout]
CASES = [(id_, p) for id_, variant in BY_ID.items() for p in EDGES if not variant.why_not(p, ANY_GPU)]
LARGE_LAYERS = ("224-8-3-64-64", "56-32-1-64-256", "14-64-3-512-512", "27-32-5-256-96", "512-1-31-1-1", "7-1-1-32-832")
LARGE = [ConvProblem.parse(layer, dtype=dtype) for layer in LARGE_LAYERS for dtype in DType]
LARGE_CASES = [(id_, p) for p in LARGE for id_, variant in BY_ID.items() if not variant.why_not(p, ANY_GPU)]
DEEP_LAYERS = ("14-2-1-2048-64", "14-2-3-512-64", "14-2-5-256-64", "14-2-3-512-64-groups4", "56-2-11-64-4")
CHUNKED = ("cuda.gemm", "cuda.winograd_nonfused", "cuda.winograd_nonfused_4x4_3x3", "cuda.fft")


@lru_cache(maxsize=1)
def sampled(problem: ConvProblem) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x, weight, which outputs to compare, and their float64 values; the cases of one problem follow each other."""
    x, weight = reference.random_operands(problem, 0)
    outputs = comparison.sample_outputs(problem)
    return x, weight, outputs, reference.convolve_at(problem, x, weight, outputs)


@dataclass
class Gpu:
    """A stream of the first GPU."""

    cupy: Any
    device: Device
    stream: Any

    def results(
        self, variant_id: str, problem: ConvProblem, x: np.ndarray, weight: np.ndarray, limit: int
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """y of a plain launch, y of a replayed graph, and the workspace; y is NaN before each."""
        from conv_advisor.kernels.cuda.border import translated
        from conv_advisor.kernels.cuda.prepare import prepare

        with self.stream, translated():
            arrays = [self.cupy.asarray(array.view(storage_of(array))) for array in (x, weight)]
            y = self.cupy.empty(problem.y_shape, arrays[0].dtype)
            launch = prepare(BY_ID[variant_id], problem, self.device, limit)
            poison(y)
            launch.run(*arrays, y)
            launched = self.cupy.asnumpy(y).view(x.dtype)
            self.stream.begin_capture()
            launch.run(*arrays, y)
            graph = self.stream.end_capture()
            poison(y)
            graph.launch(self.stream)
            replayed = self.cupy.asnumpy(y).view(x.dtype)
            return launched, replayed, launch.workspace_bytes


def storage_of(array: np.ndarray) -> Any:
    """What CuPy holds this array as: bfloat16 as its bits."""
    return np.uint16 if array.dtype == ml_dtypes.bfloat16 else array.dtype


def poison(y: Any) -> None:
    """Fill with NaN; 0x7FC0 is one in bfloat16."""
    y.fill(0x7FC0 if y.dtype == np.uint16 else np.nan)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    import cupy

    from conv_advisor.kernels.bench import open_runner

    device = open_runner("cuda:0").device
    yield Gpu(cupy, device, cupy.cuda.Stream(non_blocking=True))
    cupy.get_default_memory_pool().free_all_blocks()


@pytest.mark.parametrize(("variant_id", "problem"), CASES, ids=lambda value: getattr(value, "key", value))
def test_a_variant_is_right_launched_and_replayed(gpu: Gpu, variant_id: str, problem: ConvProblem) -> None:
    x, weight = reference.random_operands(problem, 0)
    expected = reference.convolve(problem, x, weight)
    launched, replayed, _ = gpu.results(variant_id, problem, x, weight, DEFAULT_WORKSPACE_LIMIT_BYTES)
    assert comparison.max_error(launched, expected) <= tolerance(problem)
    assert launched.tobytes() == replayed.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(("variant_id", "problem"), LARGE_CASES, ids=lambda value: getattr(value, "key", value))
def test_a_large_layer_is_right_at_sampled_outputs(gpu: Gpu, variant_id: str, problem: ConvProblem) -> None:
    x, weight, outputs, expected = sampled(problem)
    limit = DEFAULT_WORKSPACE_LIMIT_BYTES
    if (BY_ID[variant_id].workspace_bytes(problem, gpu.device) or 0) > limit:
        with pytest.raises(WorkspaceExceeded):
            gpu.results(variant_id, problem, x, weight, limit)
        return
    launched, replayed, used = gpu.results(variant_id, problem, x, weight, limit)
    assert comparison.max_error(reference.take(problem, launched, outputs), expected) <= tolerance(problem)
    assert np.isfinite(launched.astype(np.float32)).all()
    assert launched.tobytes() == replayed.tobytes()
    assert used <= limit


@pytest.mark.parametrize("variant_id", CHUNKED)
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
def test_a_small_workspace_gives_the_same_in_chunks(gpu: Gpu, variant_id: str, dtype: DType, layout: Layout) -> None:
    problem = ConvProblem.parse("56-64-3-32-32", dtype=dtype, layout=layout)
    if BY_ID[variant_id].why_not(problem, gpu.device):
        return
    x, weight, outputs, expected = sampled(problem)
    limit = 64 * 2**20
    launched, _, used = gpu.results(variant_id, problem, x, weight, limit)
    assert used <= limit
    assert comparison.max_error(reference.take(problem, launched, outputs), expected) <= tolerance(problem)
    assert np.isfinite(launched.astype(np.float32)).all()


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("layer", ["14-8-3-32-48", "27-4-5-16-20", "56-4-3-16-64"])
def test_magnitudes_may_differ_by_any_factor_between_images_and_filters(gpu: Gpu, layer: str, layout: Layout) -> None:
    problem = ConvProblem.parse(layer, layout=layout)
    random = np.random.default_rng(1)
    x, weight = reference.random_operands(problem, 1)
    ten, two = np.float32(10), np.float32(2)
    of_channels = (1, problem.c, 1, 1) if layout is Layout.NCHW else (1, 1, 1, problem.c)
    x = x * ten ** random.integers(-15, 15, (problem.n, 1, 1, 1)) * two ** random.integers(-12, 1, of_channels)
    weight = weight * ten ** random.integers(-10, 10, (problem.k, 1, 1, 1))
    x, weight = x.astype(np.float32), weight.astype(np.float32)
    expected = reference.convolve(problem, x, weight)
    variant_id = f"cuda.winograd_nonfused_4x4_{problem.r}x{problem.r}"
    launched, _, _ = gpu.results(variant_id, problem, x, weight, DEFAULT_WORKSPACE_LIMIT_BYTES)
    pixels = (2, 3) if layout is Layout.NCHW else (1, 2)
    errors = np.abs(launched - expected).max(pixels) / np.abs(expected).max(pixels)
    assert errors.max() <= tolerance(problem)


@pytest.mark.parametrize(("layer", "layout"), [("14-8-3-64-64", Layout.NCHW), ("28-8-7-64-3", Layout.NHWC)])
def test_float32_is_not_rounded_to_tf32(gpu: Gpu, layer: str, layout: Layout) -> None:
    problem = ConvProblem.parse(layer, layout=layout)
    x, weight = reference.random_operands(problem, 0)
    expected = reference.convolve(problem, x, weight)
    for variant_id, variant in BY_ID.items():
        if variant.why_not(problem, gpu.device):
            continue
        launched, _, _ = gpu.results(variant_id, problem, x, weight, DEFAULT_WORKSPACE_LIMIT_BYTES)
        assert comparison.max_error(launched, expected) < 5e-6, variant_id


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("layer", DEEP_LAYERS)
def test_errors_of_deep_float32_sums_lean_to_neither_side(gpu: Gpu, layer: str, layout: Layout) -> None:
    """Sums of tensor cores, which truncate, would be too small by 1e-6 and more of themselves; cuFFT's are by 2e-7."""
    problem = ConvProblem.parse(layer, layout=layout)
    most = {id_: 2**-22 if variant.algorithm is Algorithm.FFT else 2**-23 for id_, variant in BY_ID.items()}
    assert {id_: lean for id_, lean in leanings(gpu, problem).items() if not abs(lean) <= most[id_]} == {}


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("layer", ["14-2-1-256-64", "14-2-1-67-130", "14-2-3-128-64", "14-2-3-512-64-groups4"])
def test_errors_in_tf32_lean_to_neither_side(gpu: Gpu, layer: str, layout: Layout) -> None:
    """Operands that tensor cores cut would make y too small by 7e-4 of itself; of one of them, by half of that."""
    found = leanings(gpu, ConvProblem.parse(layer, dtype=DType.TF32, layout=layout))
    assert {id_: lean for id_, lean in found.items() if not abs(lean) <= 2**-13} == {}


def leanings(gpu: Gpu, problem: ConvProblem) -> dict[str, float]:
    """What each variant's outputs are too large by, all together, relative to their sizes."""
    x, weight = reference.random_operands(problem, 0)
    expected = reference.convolve(problem, x, weight)
    found = {}
    for variant_id, variant in BY_ID.items():
        if not variant.why_not(problem, gpu.device):
            launched, _, _ = gpu.results(variant_id, problem, x, weight, DEFAULT_WORKSPACE_LIMIT_BYTES)
            found[variant_id] = float(((launched - expected) * np.sign(expected)).sum() / np.abs(expected).sum())
    return found


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.TF32])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("layer", ["14-2-1-256-64", "14-2-3-128-64", "28-1-7-64-3", "14-2-3-64-64-groups4"])
def test_small_whole_numbers_are_exact(gpu: Gpu, layer: str, layout: Layout, dtype: DType) -> None:
    """What is made up for is of sums that were cut alone; transforms divide, and are left out."""
    problem = ConvProblem.parse(layer, dtype=dtype, layout=layout)
    random = np.random.default_rng(0)
    x, weight = (random.integers(-4, 5, shape).astype(np.float32) for shape in (problem.x_shape, problem.weight_shape))
    expected = reference.convolve(problem, x, weight)
    for variant_id, variant in BY_ID.items():
        if variant.why_not(problem, gpu.device) or variant.algorithm in (Algorithm.WINOGRAD, Algorithm.FFT):
            continue
        launched, _, _ = gpu.results(variant_id, problem, x, weight, DEFAULT_WORKSPACE_LIMIT_BYTES)
        assert np.array_equal(launched, expected), variant_id


def test_the_filter_sweep_ends_where_only_naive_and_fft_apply(gpu: Gpu) -> None:
    problem = ConvProblem.parse("512-1-512-1-1")
    x, weight, outputs, expected = sampled(problem)
    for variant_id in ("cuda.direct_naive", "cuda.fft"):
        launched, _, _ = gpu.results(variant_id, problem, x, weight, DEFAULT_WORKSPACE_LIMIT_BYTES)
        found = reference.take(problem, launched, outputs)
        assert comparison.max_error(found, expected) <= tolerance(problem)


def test_a_variant_that_does_not_apply_is_not_prepared(gpu: Gpu) -> None:
    problem = ConvProblem.parse("14-1-5-8-8")
    x, weight = reference.random_operands(problem, 0)
    with pytest.raises(NotApplicable, match="5x5"):
        gpu.results("cuda.winograd_fused", problem, x, weight, DEFAULT_WORKSPACE_LIMIT_BYTES)
