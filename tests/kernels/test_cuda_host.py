"""Every CUDA variant on a CPU: its launcher as it is, its kernels compiled by g++; no GPU is needed."""

from __future__ import annotations

import shutil
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace

import pytest

from conv_advisor.data.errors import NotSupported, WorkspaceExceeded
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import comparison, reference
from conv_advisor.kernels.cuda.catalog import VARIANTS
from conv_advisor.kernels.cuda.fft import plan as fft_plan
from conv_advisor.kernels.cuda.gemm import plan as gemm_plan
from conv_advisor.kernels.cuda.winograd import plan as winograd_plan
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.kernels.variant import parts_of
from tests.kernels import host_cuda
from tests.shapes import EDGE_SHAPES, edge_problem

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

BY_ID = {variant.id: variant for variant in VARIANTS}
BFLOAT16_SHAPES = ("pointwise", "same_3x3", "stride_2", "groups_2", "batch")
CHUNKED = {
    "cuda.gemm": gemm_plan.plan_gemm,
    "cuda.winograd_nonfused": winograd_plan.plan_winograd,
    "cuda.fft": fft_plan.plan_fft,
}
TRANSFORMING = ("cuda.fft", "cuda.winograd_fused", "cuda.winograd_nonfused")
"""Their sums and differences of inputs spread what is not finite to outputs that never saw it."""

TENSOR_CORES = ("cuda.implicit_gemm",)
"""Its two-byte types are multiplied by instructions that no CPU has."""

Case = tuple[str, ConvProblem]


def cases() -> list[Case]:
    """Every variant where it applies: float32 on every edge shape, bfloat16 on a few."""
    problems = [edge_problem(name, DType.FLOAT32, layout) for name in EDGE_SHAPES for layout in Layout]
    problems += [edge_problem(name, DType.BFLOAT16, layout) for name in BFLOAT16_SHAPES for layout in Layout]
    found = [(id_, p) for id_, variant in BY_ID.items() for p in problems if not variant.why_not(p, host_cuda.DEVICE)]
    return [case for case in found if case[0] not in TENSOR_CORES or case[1].dtype is DType.FLOAT32]


@pytest.fixture(scope="module")
def errors(pool: ProcessPoolExecutor) -> dict[Case, Future[float]]:
    """The error of every case, all asked for at once."""
    return {case: pool.submit(host_cuda.error_of, *case) for case in cases()}


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case[0]}-{case[1].key}")
def test_a_variant_is_right_where_it_applies(errors: dict[Case, Future[float]], case: Case) -> None:
    assert errors[case].result() <= tolerance(case[1])


@pytest.mark.parametrize(
    ("variant_id", "name"),
    [
        *[("cuda.gemm", name) for name in ("batch", "groups_2", "stride_2")],
        *[(variant_id, "batch") for variant_id in ("cuda.winograd_nonfused", "cuda.fft")],
    ],
)
def test_the_least_workspace_is_enough_and_means_one_image_at_a_time(
    pool: ProcessPoolExecutor, variant_id: str, name: str
) -> None:
    problem = edge_problem(name, DType.FLOAT32, Layout.NCHW)
    with pytest.raises(WorkspaceExceeded) as raised:
        CHUNKED[variant_id](problem, 64)
    least = raised.value.needed_bytes
    assert CHUNKED[variant_id](problem, least).images == 1
    assert pool.submit(host_cuda.error_of, variant_id, problem, least).result() <= tolerance(problem)


@pytest.mark.parametrize("variant_id", sorted({id_ for id_, _ in cases()} - set(TRANSFORMING)))
def test_infinities_and_nan_spread_as_they_should(pool: ProcessPoolExecutor, variant_id: str) -> None:
    names = {"cuda.grouped": "groups_odd", "cuda.depthwise": "depthwise", "cuda.few_inputs": "first_layer"}
    names |= {"cuda.few_outputs": "few_filters"}
    layout = Layout.NHWC if variant_id in ("cuda.few_inputs", "cuda.few_outputs") else Layout.NCHW
    problem = edge_problem(names.get(variant_id, "same_3x3"), DType.FLOAT32, layout)
    found = pool.submit(host_cuda.error_of, variant_id, problem, is_finite=False).result()
    assert found <= tolerance(problem)


UNEVEN_SHAPES = ("pointwise", "same_3x3_aligned", "stride_2", "groups_odd", "depthwise", "depthwise_scale")


def uneven_cases() -> list[Case]:
    """Variants with more padding at the bottom and on the right than they have on the other sides, offered or not."""
    even = [edge_problem(name, DType.FLOAT32, layout) for name in UNEVEN_SHAPES for layout in Layout]
    uneven = [replace(each, pad_h_end=each.pad_h + 1, pad_w_end=each.pad_w + 2) for each in even]
    return [
        (id_, problem)
        for id_, variant in BY_ID.items()
        for problem in uneven
        if not any(rule(problem, host_cuda.DEVICE) for rule in parts_of(variant.why_not)[1:])  # the first is of padding
    ]


def uneven_error_of(variant_id: str, problem: ConvProblem) -> float:
    """Run a variant, whether it offers this padding or not, and compare with float64."""
    operands = reference.random_operands(problem, 0)
    y = host_cuda.ended_result_of(variant_id, problem, operands)
    return comparison.max_error(y, reference.convolve(problem, *operands))


@pytest.mark.parametrize("case", uneven_cases(), ids=lambda case: f"{case[0]}-{case[1].key}")
def test_sides_may_be_padded_differently(pool: ProcessPoolExecutor, case: Case) -> None:
    assert pool.submit(uneven_error_of, *case).result() <= tolerance(case[1])


def is_lent(variant_id: str, problem: ConvProblem) -> bool:
    """Whether other scratch memory can be lent to each run, as those on several streams need it."""
    launch = BY_ID[variant_id].prepare(problem, host_cuda.DEVICE, 2**30)
    try:
        for scratch in launch.scratch:
            scratch.free()
    except NotSupported:
        return False
    return True


@pytest.mark.parametrize("variant_id", ["cuda.direct_naive", "cuda.direct_constant", "cuda.gemm"])
def test_constant_memory_alone_cannot_be_lent(pool: ProcessPoolExecutor, variant_id: str) -> None:
    lent = pool.submit(is_lent, variant_id, edge_problem("same_3x3", DType.FLOAT32, Layout.NCHW)).result()
    assert lent == (variant_id != "cuda.direct_constant")
