"""Every cuDNN variant on a real GPU: right where it runs, a recorded refusal where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.errors import NotSupported, WorkspaceExceeded
from conv_advisor.data.measurement import L2State
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import comparison, reference
from conv_advisor.kernels.bench import open_runner
from conv_advisor.kernels.cudnn.epilogue import IMPLICIT_PRECOMP_GEMM, in_fused_call
from conv_advisor.kernels.cudnn.variants import FUSED_PRODUCTS, VARIANTS, legacy_id
from conv_advisor.kernels.runner import Operands, Runner
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Backend, Launch, Variant
from tests.shapes import EDGE_SHAPES, UNEVEN_SHAPES, edge_problem

pytestmark = pytest.mark.gpu

BY_ID = {variant.id: variant for variant in VARIANTS}
PLAIN_SHAPES = ("pointwise_aligned", "same_3x3_aligned", "same_5x5_aligned", "first_layer", "stride_2")


@pytest.fixture(scope="module")
def runner() -> Runner:
    return open_runner("cuda:0")


def operands_of(runner: Runner, problem: ConvProblem) -> tuple[Operands, np.ndarray]:
    """Random operands on the device, and their float64 result."""
    x, weight = reference.random_operands(problem, 0)
    return runner.upload(problem, {"x": x, "weight": weight}), reference.convolve(problem, x, weight)


def output_of(runner: Runner, problem: ConvProblem, launch: Launch, operands: Operands) -> np.ndarray:
    """What a launch writes to a poisoned y."""
    runner.first_run(problem, launch, operands)
    return runner.download(problem, operands)


def launches(runner: Runner, problem: ConvProblem, backend: Backend | None = None) -> Iterator[tuple[Variant, Launch]]:
    """Every variant that applies to the problem and can be prepared for it."""
    for variant in VARIANTS:
        if backend not in (None, variant.backend) or variant.why_not(problem, runner.device):
            continue
        try:
            yield variant, runner.prepare(variant, problem, DEFAULT_WORKSPACE_LIMIT_BYTES)
        except (NotSupported, WorkspaceExceeded):
            continue


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("name", EDGE_SHAPES)
def test_what_runs_is_right_and_repeats_where_it_says_so(
    runner: Runner, name: str, dtype: DType, layout: Layout
) -> None:
    problem = edge_problem(name, dtype, layout)
    operands, expected = operands_of(runner, problem)
    allowed = tolerance(problem)
    wrong, ran = [], []
    for variant, launch in launches(runner, problem):
        try:
            y = output_of(runner, problem, launch, operands)
        except NotSupported:
            continue
        ran.append(variant.id)
        error = comparison.max_error(y, expected)
        if not error <= allowed:
            wrong.append(f"{variant.id} {launch.plan}: error {error:.3g}, allowed {allowed:.3g}")
        elif variant.is_deterministic and y.tobytes() != output_of(runner, problem, launch, operands).tobytes():
            wrong.append(f"{variant.id} {launch.plan}: two runs differ")
    assert wrong == []
    assert ran


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("name", PLAIN_SHAPES)
def test_implicit_precomp_gemm_and_an_engine_run_on_plain_shapes(
    runner: Runner, name: str, dtype: DType, layout: Layout
) -> None:
    problem = edge_problem(name, dtype, layout)
    prepared = {variant.id for variant, _ in launches(runner, problem)}
    assert legacy_id(IMPLICIT_PRECOMP_GEMM, dtype is not DType.FLOAT32) in prepared
    assert any(BY_ID[found].backend is Backend.CUDNN_GRAPH for found in prepared)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
def test_a_stored_plan_is_rebuilt_and_gives_the_same_bits(runner: Runner, dtype: DType, layout: Layout) -> None:
    from conv_advisor.kernels.cudnn.graph import prepare_plan

    problem = edge_problem("same_3x3_aligned", dtype, layout)
    operands, _ = operands_of(runner, problem)
    rebuilt = []
    for variant, launch in launches(runner, problem, Backend.CUDNN_GRAPH):
        again = prepare_plan(problem, launch.plan, DEFAULT_WORKSPACE_LIMIT_BYTES)
        assert (again.plan["engine"], again.plan["knobs"]) == (launch.plan["engine"], launch.plan["knobs"])
        assert again.workspace_bytes == launch.workspace_bytes
        if variant.is_deterministic:
            first = output_of(runner, problem, launch, operands)
            assert output_of(runner, problem, again, operands).tobytes() == first.tobytes(), variant.id
        rebuilt.append(variant.id)
    assert rebuilt


@pytest.mark.parametrize("plan", [{"engine": 9999, "knobs": {}}, {"engine": 0, "knobs": {"22": 99}}])
def test_a_plan_that_does_not_exist_is_not_supported(runner: Runner, plan: dict[str, object]) -> None:
    from conv_advisor.kernels.cudnn.graph import prepare_plan

    assert runner.device.kind == "cuda"
    with pytest.raises(NotSupported):
        prepare_plan(edge_problem("same_3x3", DType.FLOAT32, Layout.NCHW), plan, DEFAULT_WORKSPACE_LIMIT_BYTES)


def test_float32_engines_use_no_tensor_cores(runner: Runner) -> None:
    """Accurate to float32, where a product rounded to tf32 errs by 1e-4 and more."""
    problem = ConvProblem.parse("14-4-3-64-64")
    operands, expected = operands_of(runner, problem)
    errors = {
        variant.id: comparison.max_error(output_of(runner, problem, launch, operands), expected)
        for variant, launch in launches(runner, problem, Backend.CUDNN_GRAPH)
    }
    assert errors
    assert max(errors.values()) < 2e-5, errors


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("name", EDGE_SHAPES)
def test_heuristics_pick_variants_of_the_catalogue(runner: Runner, name: str, dtype: DType, layout: Layout) -> None:
    problem = edge_problem(name, dtype, layout)
    picks = runner.picks(problem, DEFAULT_WORKSPACE_LIMIT_BYTES)
    assert {pick.source for pick in picks} <= {
        "cudnn.heuristic_v7",
        "cudnn.graph.heuristic_a",
        "cudnn.graph.heuristic_b",
    }
    for pick in picks:
        assert pick.variant in BY_ID
        assert BY_ID[pick.variant].why_not(problem, runner.device) is None


def test_the_engines_offered_are_in_the_catalogue(runner: Runner) -> None:
    from conv_advisor.kernels.cudnn.graph import engines

    assert runner.device.kind == "cuda"
    problems = [
        ConvProblem.parse(layer, dtype=dtype, layout=layout)
        for layer in ("14-1-3-256-128", "7-32-1-32-832", "28-8-5-32-16", "224-8-3-64-3", "56-256-3-192-64")
        for dtype in DType
        for layout in Layout
    ]
    offered = {f"cudnn.graph.eng{engine}" for problem in problems for engine in engines(problem)}
    assert offered <= set(BY_ID)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
@pytest.mark.parametrize("residual", [False, True])
def test_the_engine_of_fused_products_is_right_and_repeats(runner: Runner, residual: bool, dtype: DType) -> None:
    epilogue = Epilogue(bias=True, residual=residual, activation=Activation.RELU)
    ran = 0
    for layer in ("28-1-1-512-128", "14-32-1-256-1024", "7-1-1-512-2048"):
        problem = replace(ConvProblem.parse(layer, dtype=dtype, layout=Layout.NHWC), epilogue=epilogue)
        operands = runner.make_operands(problem, 0)
        try:
            launch = runner.prepare(BY_ID[f"cudnn.graph.eng{FUSED_PRODUCTS}"], problem, DEFAULT_WORKSPACE_LIMIT_BYTES)
        except NotSupported:
            continue
        outputs = []
        for _ in range(3):
            assert runner.first_run(problem, launch, operands).max_error <= tolerance(problem)
            outputs.append(operands.y.get().tobytes())
        assert len(set(outputs)) == 1
        ran += 1
    assert ran


ALIGNED_UNEVEN: dict[str, dict[str, Any]] = {
    "aligned": {"n": 2, "c": 32, "h": 16, "w": 16, "k": 64, "r": 3, "s": 3, "pad_h": 1, "pad_w": 0, "pad_w_end": 2},
    "aligned_stride_2": {"n": 2, "c": 64, "h": 28, "w": 28, "k": 64, "r": 3, "s": 3, "pad_h_end": 1, "pad_w_end": 1}
    | {"stride_h": 2, "stride_w": 2},
    "depthwise": {"n": 1, "c": 16, "h": 14, "w": 14, "k": 16, "r": 3, "s": 3, "pad_h": 2, "pad_w": 1, "groups": 16}
    | {"pad_h_end": 0},
}


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("name", [*UNEVEN_SHAPES, *ALIGNED_UNEVEN])
def test_engines_that_run_with_uneven_padding_are_right(
    runner: Runner, name: str, dtype: DType, layout: Layout
) -> None:
    """Some engine runs an ordinary layer of half precision."""
    problem = ConvProblem(**(UNEVEN_SHAPES | ALIGNED_UNEVEN)[name], dtype=dtype, layout=layout)
    operands = runner.make_operands(problem, 0)
    errors = {
        variant.id: runner.first_run(problem, launch, operands).max_error
        for variant, launch in launches(runner, problem, Backend.CUDNN_GRAPH)
    }
    assert {variant: error for variant, error in errors.items() if not error <= tolerance(problem)} == {}
    assert errors or name not in ALIGNED_UNEVEN or dtype is not DType.FLOAT16


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
@pytest.mark.parametrize("activation", [Activation.NONE, Activation.RELU, Activation.RELU6, Activation.SIGMOID])
def test_an_engine_ends_with_a_bias_a_residual_and_an_activation(
    runner: Runner, activation: Activation, dtype: DType
) -> None:
    """Some engine of the catalogue runs it, as none does of cuDNN 9.19 with the activations that are left out.

    That those which run are right, `test_cuda_epilogue_gpu` looks at.
    """
    epilogue = Epilogue(bias=True, residual=True, activation=activation)
    problem = replace(edge_problem("same_3x3_aligned", dtype, Layout.NHWC), epilogue=epilogue)
    launch = next(launch for _, launch in launches(runner, problem, Backend.CUDNN_GRAPH))
    found = runner.first_run(problem, launch, runner.make_operands(problem, 0))
    assert found.max_error <= tolerance(problem)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("name", ["pointwise_aligned", "same_3x3_aligned", "stride_2", "groups_48"])
def test_the_fused_call_is_right_where_its_rule_says(runner: Runner, name: str, dtype: DType, layout: Layout) -> None:
    """Every algorithm that runs the convolution alone, with what it computes in the call; from a poisoned y."""
    plain = edge_problem(name, dtype, layout)
    alone = [variant for variant, _ in launches(runner, plain, Backend.CUDNN_LEGACY)]
    troubles = []
    for epilogue in sorted(in_fused_call(IMPLICIT_PRECOMP_GEMM), key=str):
        problem = replace(plain, epilogue=epilogue)
        operands = runner.make_operands(problem, 0)
        for variant in alone:
            if epilogue not in variant.in_library_call:
                continue
            try:
                launch = runner.prepare(variant, problem, DEFAULT_WORKSPACE_LIMIT_BYTES)
                error = runner.first_run(problem, launch, operands).max_error
            except NotSupported as refusal:
                troubles.append(f"{variant.id} {epilogue}: {refusal}")
                continue
            if not error <= tolerance(problem):
                troubles.append(f"{variant.id} {epilogue}: error {error:.3g}")
    assert not troubles, "\n".join(troubles)
    assert alone


def test_too_small_a_workspace_limit_says_what_is_needed(runner: Runner) -> None:
    problem = edge_problem("same_5x5_aligned", DType.FLOAT32, Layout.NCHW)
    with pytest.raises(WorkspaceExceeded) as caught:
        runner.prepare(BY_ID["cudnn.fft"], problem, 0)
    assert caught.value.needed_bytes > caught.value.limit_bytes == 0


def test_an_algorithm_that_was_never_implemented_is_not_supported(runner: Runner) -> None:
    problem = edge_problem("same_3x3_aligned", DType.FLOAT32, Layout.NCHW)
    with pytest.raises(NotSupported, match="NOT_SUPPORTED"):
        runner.prepare(BY_ID["cudnn.direct"], problem, DEFAULT_WORKSPACE_LIMIT_BYTES)


@pytest.mark.gpu_exclusive
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
def test_a_captured_launch_computes_when_it_is_replayed(runner: Runner, dtype: DType) -> None:
    problem = edge_problem("same_3x3_aligned", dtype, Layout.NCHW)
    operands, expected = operands_of(runner, problem)
    replayed = []
    for variant, launch in launches(runner, problem):
        runner.first_run(problem, launch, operands)
        operands.y.fill(0)
        rule = StopRule(min_samples=2, max_samples=2, max_noise=0.0)
        samples = runner.sample(problem, launch, operands, 0.01, rule, L2State.WARM)
        assert min(samples.samples_ms) > 0
        error = comparison.max_error(runner.download(problem, operands), expected)
        assert error <= tolerance(problem), variant.id
        replayed.append(variant.id)
    assert replayed
