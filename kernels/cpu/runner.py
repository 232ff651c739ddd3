"""The local CPU as a runner: the same interface as a GPU, with the host's clock."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device, L2State, Pick
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels import comparison, reference
from conv_advisor.kernels.device import cpu_device
from conv_advisor.kernels.rotation import operand_sets
from conv_advisor.kernels.runner import FirstRun, Operands, Samples
from conv_advisor.kernels.stopping import StopRule, launches_per_region
from conv_advisor.kernels.variant import Launch, Variant

LEAST_REGION_MS: Final = 0.2
MOST_LAUNCHES: Final = 1024
SLOW_LAUNCH_MS: Final = 50.0
"""A first launch shorter than this says too little of the time: threads start, and the scheduler interferes."""
ASSUMED_CACHE_BYTES: Final = 2**26
"""Last-level cache that cold operands must exceed; 64 MiB covers most hosts, and no portable call tells the size."""


class CpuRunner:
    """Runs and times launches on the local CPU."""

    @cached_property
    def device(self) -> Device:
        """The fingerprint of the CPU."""
        return cpu_device()

    @cached_property
    def floor_ms(self) -> float:
        """Time of an empty call, ms."""
        nothing = Launch(lambda _x, _weight, _y: None)
        return min(_region_ms(nothing, [_NOTHING], 1000) for _ in range(5))

    def make_operands(self, problem: ConvProblem, seed: int) -> Operands:
        """Random operands, uniform in (-1, 1)."""
        x, weight = reference.random_operands(problem, seed)
        ends = reference.random_ends(problem, seed)
        outputs = comparison.sample_outputs(problem)
        return _operands(problem, x, weight, ends, outputs, is_finite=True)

    def upload(self, problem: ConvProblem, inputs: Mapping[str, np.ndarray]) -> Operands:
        """Operands from host arrays, which are not copied."""
        x, weight, ends = inputs["x"], inputs["weight"], (inputs.get("bias"), inputs.get("residual"))
        outputs = comparison.given_outputs(problem, x, weight)
        return _operands(problem, x, weight, ends, outputs, is_finite=False)

    def download(self, _problem: ConvProblem, operands: Operands) -> np.ndarray:
        """The output."""
        y: np.ndarray = operands.y
        return y

    def prepare(
        self,
        variant: Variant,
        problem: ConvProblem,
        workspace_limit_bytes: int,
        _plan: Mapping[str, Any] | None = None,
    ) -> Launch:
        """Compile and allocate; a variant has one plan here."""
        from conv_advisor.kernels.cpu.prepare import prepare  # here: an idle worker does not need Numba's 100 MB

        return prepare(variant, problem, workspace_limit_bytes)

    def plans(self, _problem: ConvProblem) -> Sequence[tuple[str, dict[str, Any]]]:
        """Nothing: no library here offers plans."""
        return ()

    def first_run(self, problem: ConvProblem, launch: Launch, operands: Operands) -> FirstRun:
        """Poison y, launch, compare; further launches, with warm caches and threads, give the time."""
        operands.y.fill(np.nan)
        launch_ms = _region_ms(launch, [operands], 1)
        compared = reference.take(problem, operands.y, operands.outputs)
        error = comparison.max_error(compared, operands.reference, operands.scale)
        if operands.is_finite and not np.isfinite(operands.y).all():
            error = np.inf
        elif not operands.is_finite and len(operands.outputs) < operands.y.size:
            error = max(error, _error_of_infinite(problem, operands))
        if launch_ms < SLOW_LAUNCH_MS:
            launch_ms = min(launch_ms, *(_region_ms(launch, [operands], 1) for _ in range(2)))
        return FirstRun(float(error), launch_ms)

    def sample(
        self, problem: ConvProblem, launch: Launch, operands: Operands, launch_ms: float, rule: StopRule, l2: L2State
    ) -> Samples:
        """Time regions of launches on the host's monotonic clock."""
        sets = [operands]
        for index in range(1, operand_sets(problem, l2, ASSUMED_CACHE_BYTES)):
            x, weight = reference.random_operands(problem, seed=index)
            bias, residual = reference.random_ends(problem, seed=index)
            y = np.empty_like(operands.y)
            sets.append(replace(operands, x=x, weight=weight, y=y, bias=bias, residual=residual))
        launches = max(len(sets), launches_per_region(launch_ms, LEAST_REGION_MS, MOST_LAUNCHES))
        samples: list[float] = []
        while not rule.is_done(samples, sum(samples) * launches):
            samples.append(_region_ms(launch, sets, launches))
        return Samples(tuple(samples), None, None)

    def picks(self, _problem: ConvProblem, _workspace_limit_bytes: int) -> Sequence[Pick]:
        """Nothing: no library here chooses."""
        return ()

    def release(self) -> None:
        """Nothing is cached."""


def _operands(
    problem: ConvProblem,
    x: np.ndarray,
    weight: np.ndarray,
    ends: tuple[np.ndarray | None, np.ndarray | None],
    outputs: np.ndarray,
    *,
    is_finite: bool,
) -> Operands:
    expected, scale = reference.expected_at(problem, x, weight, outputs, *ends)
    y = np.empty(problem.y_shape, x.dtype)
    return Operands(x, weight, y, outputs, expected, is_finite, *ends, scale)


def _error_of_infinite(problem: ConvProblem, operands: Operands) -> float:
    """The error at the first `comparison.SAMPLES` non-finite outputs: infinite where one of them should be finite."""
    places = comparison.not_finite(problem, operands.y)
    if not len(places):
        return 0.0
    ends = operands.bias, operands.residual
    expected, scale = reference.expected_at(problem, operands.x, operands.weight, places, *ends)
    return comparison.max_error(reference.take(problem, operands.y, places), expected, scale)


def _region_ms(launch: Launch, sets: Sequence[Operands], launches: int) -> float:
    start = time.perf_counter_ns()
    for index in range(launches):
        operands = sets[index % len(sets)]
        launch.run(*operands.tensors)
    return (time.perf_counter_ns() - start) / 1e6 / launches


_NOTHING: Final = Operands(None, None, None, np.empty((0, 4), np.int64), np.empty(0))
