"""Verify, then time: what each way to fail becomes, on a runner whose launches are scripted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.errors import (
    CompileFailed,
    InvalidTensor,
    LaunchFailed,
    NotApplicable,
    NotSupported,
    OutOfMemory,
    UnknownDevice,
    WorkspaceExceeded,
)
from conv_advisor.data.measurement import Device, L2State, Measurement, Outcome, Pick
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.bench import BenchOptions, convolve, measure, open_runner
from conv_advisor.kernels.runner import FirstRun, Operands, Samples
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.kernels.variant import Algorithm, Backend, Ending, Launch, Variant, no_workspace

PROBLEM = ConvProblem.parse("8-1-3-4-2")
DEVICE = Device("scripted", "Scripted", "cpu")


def variant(name: str, reason: str | None = None) -> Variant:
    """A variant that applies, or that says why not."""
    return Variant(name, Algorithm.DIRECT, Backend.CPU, True, lambda _p, _d: reason, no_workspace, "a test")


@dataclass
class ScriptedRunner:
    """A runner whose prepare, errors and times are given by variant id."""

    times_ms: dict[str, float] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    sampled: list[str] = field(default_factory=list)
    operands_error: Exception | None = None
    device: Device = DEVICE
    floor_ms: float = 0.001

    def make_operands(self, problem: ConvProblem, _seed: int) -> Operands:
        if self.operands_error is not None:
            raise self.operands_error
        return self.upload(problem, {name: np.zeros(shape) for name, shape in problem.shapes.items()})

    def upload(self, problem: ConvProblem, inputs: dict[str, np.ndarray]) -> Operands:
        y, outputs = np.zeros(problem.y_shape), np.zeros((0, 4), np.int64)
        return Operands(y=y, outputs=outputs, reference=np.zeros(0), **inputs)

    def download(self, _problem: ConvProblem, operands: Operands) -> np.ndarray:
        return operands.y

    def prepare(self, variant: Variant, _problem: ConvProblem, _workspace_limit_bytes: int) -> Launch:
        if variant.id in self.failures:
            raise self.failures[variant.id]
        return Launch(lambda _x, _w, _y: None, workspace_bytes=64, plan={"name": variant.id})

    def first_run(self, _problem: ConvProblem, launch: Launch, _operands: Operands) -> FirstRun:
        name = launch.plan["name"]
        return FirstRun(self.errors.get(name, 0.0), self.times_ms.get(name, 1.0))

    def sample(
        self, _p: ConvProblem, launch: Launch, _o: Operands, launch_ms: float, rule: StopRule, _l2: L2State
    ) -> Samples:
        self.sampled.append(launch.plan["name"])
        return Samples((launch_ms,) * rule.min_samples, 1980, 1950)

    def picks(self, _problem: ConvProblem, _workspace_limit_bytes: int) -> list[Pick]:
        return []

    def release(self) -> None:
        return


def test_a_verified_variant_is_measured_with_everything_known_about_it() -> None:
    runner = ScriptedRunner(times_ms={"fast": 0.25}, errors={"fast": 1e-7})
    [measured] = measure(runner, PROBLEM, [variant("fast")], run_id="r1")
    assert (measured.outcome, measured.variant, measured.run_id) == (Outcome.MEASURED, "fast", "r1")
    assert measured.samples_ms == (0.25,) * 5
    assert (measured.workspace_bytes, measured.plan, measured.max_error) == (64, {"name": "fast"}, 1e-7)
    assert (measured.clock_start_mhz, measured.clock_end_mhz, measured.floor_ms) == (1980, 1950, 0.001)
    assert measured.device == DEVICE


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (NotSupported("no such engine"), Outcome.NOT_SUPPORTED),
        (OutOfMemory("full"), Outcome.OUT_OF_MEMORY),
        (CompileFailed("syntax"), Outcome.COMPILE_FAILED),
        (WorkspaceExceeded(2000, 1000), Outcome.WORKSPACE_EXCEEDED),
    ],
)
def test_a_failure_is_an_outcome_and_the_rest_goes_on(failure: Exception, outcome: Outcome) -> None:
    runner = ScriptedRunner(failures={"broken": failure})
    broken, fine = measure(runner, PROBLEM, [variant("broken"), variant("fine")])
    assert (broken.outcome, broken.detail) == (outcome, str(failure))
    assert fine.outcome is Outcome.MEASURED
    assert broken.workspace_bytes == (2000 if outcome is Outcome.WORKSPACE_EXCEEDED else None)


def test_an_unusable_context_is_not_an_outcome() -> None:
    runner = ScriptedRunner(failures={"broken": LaunchFailed("illegal address")})
    with pytest.raises(LaunchFailed, match="illegal address"):
        measure(runner, PROBLEM, [variant("broken")])


@pytest.mark.parametrize("error", [0.5, math.inf, math.nan])
def test_a_wrong_result_is_never_timed(error: float) -> None:
    runner = ScriptedRunner(errors={"wrong": error})
    [wrong] = measure(runner, PROBLEM, [variant("wrong")])
    assert wrong.outcome is Outcome.WRONG_RESULT
    assert runner.sampled == []


def test_a_rule_that_says_no_is_recorded_with_its_reason() -> None:
    [row] = measure(ScriptedRunner(), PROBLEM, [variant("picky", "stride is 2x2, not 1x1")])
    assert (row.outcome, row.detail) == (Outcome.NOT_APPLICABLE, "stride is 2x2, not 1x1")


def test_a_hopeless_variant_is_pruned_with_its_one_sample() -> None:
    runner = ScriptedRunner(times_ms={"fast": 1.0, "slow": 5.5, "near": 4.5})
    rows = measure(runner, PROBLEM, [variant("fast"), variant("slow"), variant("near")])
    assert [row.outcome for row in rows] == [Outcome.MEASURED, Outcome.PRUNED, Outcome.MEASURED]
    assert rows[1].samples_ms == (5.5,)
    assert runner.sampled == ["fast", "near"]


def test_progress_is_told_before_each_variant_and_at_the_end() -> None:
    told: list[tuple[float, str]] = []
    measure(
        ScriptedRunner(failures={"b": NotSupported("no engine")}),
        PROBLEM,
        [variant("a"), variant("b")],
        on_progress=lambda share, doing: told.append((share, doing)),
    )
    assert told == [(0.0, "a"), (0.5, "b"), (1.0, "")]


def test_cheap_launches_are_never_pruned() -> None:
    runner = ScriptedRunner(times_ms={"fast": 0.002, "slow": 0.4})
    rows = measure(runner, PROBLEM, [variant("fast"), variant("slow")])
    assert [row.outcome for row in rows] == [Outcome.MEASURED, Outcome.MEASURED]


def test_operands_that_do_not_fit_are_one_outcome_a_variant() -> None:
    runner = ScriptedRunner(operands_error=OutOfMemory("2 GB free"))
    rows = measure(runner, PROBLEM, [variant("a"), variant("b")])
    assert [(row.variant, row.outcome) for row in rows] == [
        ("a", Outcome.OUT_OF_MEMORY),
        ("b", Outcome.OUT_OF_MEMORY),
    ]


def test_nothing_is_allocated_where_nothing_applies() -> None:
    runner = ScriptedRunner(operands_error=OutOfMemory("must not be asked"))
    [row] = measure(runner, PROBLEM, [variant("picky", "no")])
    assert row.outcome is Outcome.NOT_APPLICABLE


def run_convolve(runner: ScriptedRunner, chosen: Variant, x_shape: tuple[int, ...]) -> tuple[np.ndarray, Measurement]:
    x, weight = np.zeros(x_shape, np.float32), np.zeros(PROBLEM.weight_shape, np.float32)
    return convolve(runner, PROBLEM, {"x": x, "weight": weight}, chosen, options=BenchOptions())


def test_convolve_refuses_tensors_that_contradict_the_parameters() -> None:
    with pytest.raises(InvalidTensor, match=r"x\.shape is \(1, 2, 8, 9\); allowed: \(1, 2, 8, 8\)"):
        run_convolve(ScriptedRunner(), variant("v"), (1, 2, 8, 9))


def test_convolve_wants_what_the_epilogue_adds_and_nothing_else() -> None:
    problem = replace(PROBLEM, epilogue=Epilogue(bias=True))
    chosen = replace(variant("v"), ending=Ending.FUSED)
    inputs = {name: np.zeros(shape, np.float32) for name, shape in problem.shapes.items()}
    _, measurement = convolve(ScriptedRunner(), problem, inputs, chosen)
    assert measurement.outcome is Outcome.MEASURED
    without = {name: inputs[name] for name in ("x", "weight")}
    with pytest.raises(InvalidTensor, match=r"^bias is None; allowed: a tensor of shape \(4,\)"):
        convolve(ScriptedRunner(), problem, without, chosen)
    with pytest.raises(InvalidTensor, match=r"^bias is \(4,\); allowed: nothing where the epilogue does not add it"):
        convolve(ScriptedRunner(), PROBLEM, inputs, chosen)


def test_convolve_refuses_a_variant_that_does_not_apply() -> None:
    with pytest.raises(NotApplicable, match="v does not apply: too large"):
        run_convolve(ScriptedRunner(), variant("v", "too large"), PROBLEM.x_shape)


def test_convolve_returns_y_and_says_when_it_is_wrong() -> None:
    y, measurement = run_convolve(ScriptedRunner(errors={"v": 1.0}), variant("v"), PROBLEM.x_shape)
    assert y.shape == PROBLEM.y_shape
    assert measurement.outcome is Outcome.WRONG_RESULT


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:-1", ""])
def test_an_unknown_device_is_named(device: str) -> None:
    with pytest.raises(UnknownDevice):
        open_runner(device)
