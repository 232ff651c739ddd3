"""The CUDA runner on a real GPU: its operands, its reference, its clock, its graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conv_advisor.data.errors import NotSupported, UnknownDevice, WorkspaceExceeded
from conv_advisor.data.measurement import L2State
from conv_advisor.data.problem import DType, Layout
from conv_advisor.kernels import reference
from conv_advisor.kernels.bench import open_runner
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.runner import Runner
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Launch
from tests.shapes import EDGE_SHAPES, edge_problem

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def runner() -> Runner:
    return open_runner("cuda:0")


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("name", EDGE_SHAPES)
def test_the_device_reference_is_the_host_reference(runner: Runner, name: str, dtype: DType, layout: Layout) -> None:
    problem = edge_problem(name, dtype, layout)
    x, weight = reference.random_operands(problem, 1)
    operands = runner.upload(problem, {"x": x, "weight": weight})
    expected = reference.take(problem, reference.convolve(problem, x, weight), operands.outputs)
    np.testing.assert_allclose(operands.reference, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DType)
def test_random_operands_are_uniform_and_differ(runner: Runner, dtype: DType) -> None:
    problem = edge_problem("same_3x3_deep", dtype, Layout.NCHW)
    first, second = (runner.make_operands(problem, seed) for seed in (0, 1))
    values = []
    for operands in (first, second):
        operands.y = operands.x
        values.append(runner.download(problem, operands).astype(np.float64).ravel())
    assert abs(values[0].mean()) < 0.02
    assert values[0].std() == pytest.approx(3**-0.5, rel=0.02)
    assert abs(np.corrcoef(*values)[0, 1]) < 0.02


def test_an_output_that_is_not_written_is_an_infinite_error(runner: Runner) -> None:
    problem = edge_problem("same_3x3", DType.FLOAT32, Layout.NCHW)
    nothing = Launch(lambda _x, _weight, _y: None)
    first = runner.first_run(problem, nothing, runner.make_operands(problem, 0))
    assert not first.max_error < 1e9


@pytest.mark.parametrize(
    ("taken_ms", "kept_ms"),
    [([30.0, 2.0, 0.03, 0.04], 0.03), ([69.0, 0.03, 2.0, 0.04], 0.03), ([12.0, 40.0], 12.0), ([300.0], 300.0)],
)
def test_a_host_that_is_busy_for_a_moment_does_not_make_a_launch_look_slow(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, taken_ms: list[float], kept_ms: float
) -> None:
    problem = edge_problem("same_3x3", DType.FLOAT32, Layout.NCHW)
    left = iter(taken_ms)
    monkeypatch.setattr(runner, "_launch_ms", lambda _launch, _operands: next(left))
    first = runner.first_run(problem, Launch(lambda _x, _weight, _y: None), runner.make_operands(problem, 0))
    assert first.launch_ms == kept_ms
    assert next(left, None) is None


@pytest.mark.gpu_exclusive
@pytest.mark.parametrize("l2", L2State)
def test_samples_are_positive_bounded_in_number_and_have_clocks(runner: Runner, l2: L2State) -> None:
    problem = edge_problem("same_3x3_aligned", DType.FLOAT32, Layout.NCHW)
    operands = runner.make_operands(problem, 0)
    copy = Launch(lambda x, _weight, y: y.ravel()[: x.size].__setitem__(slice(None), x.ravel()[: y.size]))
    rule = StopRule(min_samples=4, max_samples=9, max_noise=0.0)
    samples = runner.sample(problem, copy, operands, 0.01, rule, l2)
    assert len(samples.samples_ms) == 9
    assert min(samples.samples_ms) > 0
    assert samples.clock_start_mhz > 0
    assert samples.clock_end_mhz > 0


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
def test_a_plan_that_the_library_offers_is_prepared_as_it_is_named(
    runner: Runner, dtype: DType, layout: Layout
) -> None:
    problem = edge_problem("same_3x3_aligned", dtype, layout)
    prepared = 0
    for variant_id, plan in runner.plans(problem):
        variant = VARIANTS.get(variant_id)
        if variant is None or variant.why_not(problem, runner.device):
            continue
        try:
            launch = runner.prepare(variant, problem, DEFAULT_WORKSPACE_LIMIT_BYTES, plan)
        except (NotSupported, WorkspaceExceeded):
            continue
        assert (launch.plan["engine"], launch.plan["knobs"]) == (plan["engine"], plan["knobs"])
        prepared += 1
    assert prepared


@pytest.mark.gpu_exclusive
def test_cold_operands_are_made_once_and_given_back(runner: Runner) -> None:
    problem = edge_problem("same_3x3_aligned", DType.FLOAT32, Layout.NCHW)
    operands = runner.make_operands(problem, 0)
    seen: list[set[int]] = []

    def note(x: Any, _weight: Any, y: Any) -> None:
        seen[-1].add(x.data.ptr)
        y.fill(0)

    for _ in range(2):
        seen.append(set())
        runner.sample(problem, Launch(note), operands, 0.01, StopRule(max_samples=2), L2State.COLD)
    assert len(seen[0]) > 100
    assert seen[0] == seen[1]
    runner.release()
    assert not runner._turns


def test_the_floor_is_positive(runner: Runner) -> None:
    assert 0 < runner.floor_ms < 1


def test_the_fingerprint_names_the_libraries(runner: Runner) -> None:
    assert {"driver", "cuda", "cupy", "cudnn"} <= set(runner.device.versions)
    assert runner.device.processors > 0


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(UnknownDevice):
        open_runner("cuda:99")
