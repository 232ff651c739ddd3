"""Every CPU variant on every edge shape against the float64 reference, and what prepare promises."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from functools import cache

import numpy as np
import pytest

from conv_advisor.data.errors import InvalidTensor, NotApplicable, OutOfMemory, WorkspaceExceeded
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.comparison import max_error
from conv_advisor.kernels.cpu import direct, plans
from conv_advisor.kernels.cpu.prepare import prepare
from conv_advisor.kernels.cpu.variants import PLANS, VARIANTS
from conv_advisor.kernels.reference import convolve, random_operands
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.kernels.variant import Algorithm
from tests.shapes import EDGE_SHAPES, edge_problem

CPU = Device(id="cpu", name="cpu", kind="cpu")
BY_ID = {variant.id: variant for variant in VARIANTS}
GROUPED = {name for name, shape in EDGE_SHAPES.items() if shape.get("groups", 1) > 1}
SAME_3X3 = {"r": 3, "s": 3, "pad_h": 1, "pad_w": 1}
FURTHER_SHAPES = {
    "rows_longer_than_a_block": {"n": 2, "c": 2, "h": 3, "w": 1100, "k": 5, "r": 3, "s": 7, "pad_h": 1, "pad_w": 3},
    "many_blocks": {"n": 2, "c": 9, "h": 61, "w": 53, "k": 7, **SAME_3X3},
    "stride_beyond_filter": {"n": 1, "c": 3, "h": 13, "w": 17, "k": 2, "r": 2, "s": 1, "stride_h": 3, "stride_w": 5},
    "stride_in_padding": {"n": 1, "c": 2, "h": 5, "w": 4, "k": 3, "r": 2, "s": 2, "pad_h": 4, "pad_w": 5}
    | {"stride_h": 3, "stride_w": 2},
    "stride_and_dilation": {"n": 1, "c": 4, "h": 19, "w": 23, "k": 6, "r": 3, "s": 2, "pad_h": 3, "pad_w": 1}
    | {"stride_h": 2, "stride_w": 3, "dilation_h": 3, "dilation_w": 2, "groups": 2},
}


@pytest.fixture(autouse=True)
def _three_threads_however_little_the_work(monkeypatch):
    monkeypatch.setattr("conv_advisor.kernels.cpu.prepare.available_cores", lambda: 3)
    monkeypatch.setattr("conv_advisor.kernels.cpu.threads.LEAST_FLOPS", 1)


@cache
def case(problem):
    """Operands, and the y that they should give; not to be written to."""
    x, weight = random_operands(problem, seed=1)
    return x, weight, convolve(problem, x, weight)


def error_of(variant, problem, launch=None):
    """The error of one run over a poisoned y."""
    x, weight, expected = case(problem)
    y = np.full(problem.y_shape, np.nan, x.dtype)
    (launch or prepare(variant, problem)).run(x, weight, y)
    return max_error(y, expected)


def small_layer(**changes):
    return ConvProblem(**({"n": 2, "c": 5, "h": 9, "w": 8, "k": 6, **SAME_3X3} | changes))


def test_the_eight_variants():
    names = [f"cpu.{name}{suffix}" for name in ("direct", "gemm", "fft", "winograd") for suffix in ("", "_parallel")]
    assert list(BY_ID) == names


@pytest.mark.parametrize("name", [*EDGE_SHAPES, *FURTHER_SHAPES])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_it_is_right_wherever_it_claims_to_apply(variant, name):
    for dtype in DType:
        for layout in Layout:
            if name in EDGE_SHAPES:
                problem = edge_problem(name, dtype, layout)
            else:
                problem = ConvProblem(**FURTHER_SHAPES[name], dtype=dtype, layout=layout)
            reason = variant.why_not(problem, CPU)
            if reason is None:
                assert error_of(variant, problem) <= tolerance(problem), problem.key
            else:
                with pytest.raises(NotApplicable, match=reason):
                    prepare(variant, problem)


@pytest.mark.parametrize(
    ("algorithm", "refused"),
    [
        (Algorithm.DIRECT, set()),
        (Algorithm.GEMM, set()),
        (Algorithm.FFT, GROUPED),
        (
            Algorithm.WINOGRAD,
            {name for name, shape in EDGE_SHAPES.items() if (shape["r"], shape["s"]) != (3, 3)}
            | {"stride_2", "dilation_2", *GROUPED},
        ),
    ],
)
def test_where_it_applies(algorithm, refused):
    for variant in VARIANTS:
        if variant.algorithm is algorithm:
            problems = {name: edge_problem(name, DType.FLOAT16, Layout.NHWC) for name in EDGE_SHAPES}
            assert {name for name, problem in problems.items() if variant.why_not(problem, CPU)} == refused


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_blocks_join_without_seams(variant, layout, dtype, monkeypatch):
    monkeypatch.setattr(plans, "BLOCK_BYTES", 2**16)
    monkeypatch.setattr(plans, "BAND_BYTES", 2**13)
    problem = small_layer(n=7, h=21, w=20, dtype=dtype, layout=layout)
    plan = PLANS[variant.algorithm](problem)
    assert plan.images < 7 or 0 < plan.rows < problem.p
    launch = prepare(variant, problem)
    assert error_of(variant, problem, launch) <= tolerance(problem)
    assert error_of(variant, problem, launch) <= tolerance(problem)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_equal_inputs_give_bitwise_equal_outputs(variant):
    assert variant.is_deterministic
    problem = small_layer(n=3, c=40, h=30, w=31, k=33)
    x, weight = random_operands(problem, seed=2)
    launch, again = prepare(variant, problem), prepare(variant, problem)
    outputs = [np.full(problem.y_shape, fill, np.float32) for fill in (0, 1, np.nan)]
    for y, chosen in zip(outputs, (launch, launch, again), strict=True):
        chosen.run(x, weight, y)
    assert outputs[0].tobytes() == outputs[1].tobytes() == outputs[2].tobytes()


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_workspace_is_what_the_formula_says(variant, dtype):
    problem = small_layer(n=4, c=30, h=60, w=60, k=40, dtype=dtype)
    x, weight = random_operands(problem, seed=0)
    y = np.empty(problem.y_shape, x.dtype)
    prepare(variant, problem).run(x, weight, y)
    tracemalloc.start()
    launch = prepare(variant, problem)
    launch.run(x, weight, y)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert launch.workspace_bytes == variant.workspace_bytes(problem, CPU)
    # The copy that SciPy's inverse makes of the spectra is not traced.
    untraced_bytes = plans.fft(problem).buffers["y"].bytes if variant.algorithm is Algorithm.FFT else 0
    assert peak_bytes == pytest.approx(launch.workspace_bytes - untraced_bytes, rel=0.02, abs=2**16)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_too_much_workspace_is_refused_before_it_is_allocated(variant):
    problem = ConvProblem.parse("256-64-3-64-64", dtype=DType.FLOAT16)
    needed_bytes = variant.workspace_bytes(problem, CPU)
    tracemalloc.start()
    with pytest.raises(WorkspaceExceeded) as caught:
        prepare(variant, problem, needed_bytes - 1)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.needed_bytes == needed_bytes
    assert caught.value.limit_bytes == needed_bytes - 1
    assert peak_bytes < 2**16


def test_too_little_memory_is_said_so(monkeypatch):
    def allocate(_plan):
        raise MemoryError("Unable to allocate 1 GiB")

    monkeypatch.setattr(direct, "allocate", allocate)
    with pytest.raises(OutOfMemory, match="Unable to allocate"):
        prepare(BY_ID["cpu.direct"], small_layer())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
@pytest.mark.parametrize("name", ["cpu.direct", "cpu.direct_parallel", "cpu.gemm", "cpu.gemm_parallel"])
def test_sums_of_products_spread_special_values_as_ieee_says(name, dtype, value):
    problem = small_layer(dtype=dtype)
    x, weight = random_operands(problem, seed=3)
    x[0, 1, 4, 4] = value
    weight[2, 3, 1, 1] = value
    y = np.empty(problem.y_shape, x.dtype)
    prepare(BY_ID[name], problem).run(x, weight, y)
    assert not np.isfinite(y).all()
    assert max_error(y, convolve(problem, x, weight)) <= tolerance(problem)


def test_a_result_beyond_the_range_of_float16_is_infinite():
    problem = small_layer(dtype=DType.FLOAT16)
    x, weight = np.full(problem.x_shape, 300, np.float16), np.full(problem.weight_shape, 300, np.float16)
    for variant in VARIANTS:
        y = np.empty(problem.y_shape, np.float16)
        prepare(variant, problem).run(x, weight, y)
        assert (y == np.inf).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["cpu.winograd", "cpu.fft"])
def test_transforms_spread_special_values_no_further_than_documented(name, value):
    problem = small_layer(h=16, w=16)
    x, weight = random_operands(problem, seed=3)
    expected = convolve(problem, x, weight)
    x[0, 1, 8, 8] = value
    y = np.empty(problem.y_shape, np.float32)
    prepare(BY_ID[name], problem).run(x, weight, y)
    assert not np.isfinite(y[0, :, 7:10, 7:10]).any()
    assert max_error(y[1], expected[1]) <= tolerance(problem)
    if name == "cpu.winograd":
        assert max_error(y[0, :, :6], expected[0, :, :6]) <= tolerance(problem)
    else:
        assert np.isnan(y[0]).all()


def test_read_only_and_unaligned_operands_are_fine():
    problem = small_layer()
    x, weight = random_operands(problem, seed=4)
    body = b"-" + x.tobytes() + weight.tobytes()
    x_view = np.frombuffer(body, np.float32, x.size, 1).reshape(x.shape)
    weight_view = np.frombuffer(body, np.float32, weight.size, 1 + x.nbytes).reshape(weight.shape)
    assert not x_view.flags.aligned
    assert not x_view.flags.writeable
    for variant in VARIANTS:
        y = np.full(problem.y_shape, np.nan, np.float32)
        prepare(variant, problem).run(x_view, weight_view, y)
        assert max_error(y, convolve(problem, x, weight)) <= tolerance(problem)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("x", lambda x: x[:, :, :-1]),
        ("x", lambda x: x.astype(np.float64)),
        ("weight", np.asfortranarray),
        ("y", lambda y: y[..., ::2]),
    ],
)
def test_tensors_that_contradict_the_problem_are_refused(field, change):
    problem = small_layer()
    x, weight = random_operands(problem, seed=5)
    operands = {"x": x, "weight": weight, "y": np.empty(problem.y_shape, np.float32)}
    operands[field] = change(operands[field])
    for variant in VARIANTS:
        with pytest.raises(InvalidTensor) as caught:
            prepare(variant, problem).run(**operands)
        assert caught.value.field == field


def test_the_catalogue_imports_neither_numba_nor_scipy():
    check = (
        "import conv_advisor.kernels.cpu.variants, sys\n"
        "assert not {'numba', 'scipy', 'threadpoolctl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
