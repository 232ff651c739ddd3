"""One convolution on the worker's device: choosing the variants to run, running them, and the outcome."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np

from conv_advisor.app.advice.advise import advise_one
from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.service.service import Service
from conv_advisor.app.workers import tasks
from conv_advisor.data.errors import (
    CompileFailed,
    NoAdvice,
    NotApplicable,
    NotSupported,
    OutOfMemory,
    RunError,
    WorkspaceExceeded,
)
from conv_advisor.data.measurement import Device, Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels import catalog
from conv_advisor.kernels.bench import BenchOptions
from conv_advisor.kernels.variant import Variant, why_not
from conv_advisor.models.advice.unsure import Measure, how_many

Run = Callable[..., Awaitable[Any]]
"""Runs a task in the worker; takes the task and its arguments."""

ADVISED: Final = "advised"
ALL: Final = "all"

_SHARE_OF_MEMORY: Final = 0.25
"""Share of a device's memory for a problem's tensors: variants need the rest for copies and scratch memory."""
_MAX_TRIED: Final = 5
"""How far down a ranking to go where the first variants do not run."""

_OUTCOMES: Final[dict[type[RunError], Outcome]] = {
    NotSupported: Outcome.NOT_SUPPORTED,
    OutOfMemory: Outcome.OUT_OF_MEMORY,
    WorkspaceExceeded: Outcome.WORKSPACE_EXCEEDED,
    CompileFailed: Outcome.COMPILE_FAILED,
}
_ERRORS: Final = {outcome: error for error, outcome in _OUTCOMES.items() if error is not WorkspaceExceeded}


class ChosenBy(StrEnum):
    """How the variant was chosen; a closed list."""

    NAMED = "named"
    ADVICE = "advice"
    """The first variant that ran, in the ranking of the device's own or borrowed model."""
    STORED_TIMES = "stored_times"
    """The fastest variant measured before on this device, which has no model and borrows none."""
    MEASURED_NOW = "measured_now"
    """The fastest of all applicable variants, or of the ranking's first, measured for this answer."""


@dataclass(frozen=True)
class Order:
    """What to run.

    Parameters
    ----------
    problem : ConvProblem
    tensors : dict of str to array, or None
        x, weight, and bias and residual where the epilogue adds them; None: random ones, and no y is returned.
    variant : str
        ``advised``, ``all``, or a variant's id.
    top : int or None
        How many of the ranking's first variants to measure where it is ``advised``; the fastest of them answers.
    measure : Measure or None
        Where `top` is None, when to measure more than one; see `how_many`.
    options : BenchOptions
    is_deterministic : bool
    run_id : str
    """

    problem: ConvProblem
    tensors: dict[str, np.ndarray] | None
    variant: str
    top: int | None
    measure: Measure | None
    options: BenchOptions
    is_deterministic: bool
    run_id: str


@dataclass(frozen=True)
class Attempt:
    """One variant that was tried, and its y."""

    measurement: Measurement
    y: np.ndarray | None = None

    @property
    def is_good(self) -> bool:
        """Whether the variant gave the right output."""
        return self.measurement.outcome in (Outcome.MEASURED, Outcome.PRUNED)

    @property
    def rank(self) -> tuple[int, float]:
        """Smaller is better: timed, right, wrong but with an output, nothing; then by time."""
        order = (Outcome.MEASURED, Outcome.PRUNED, Outcome.WRONG_RESULT)
        outcome, time_ms = self.measurement.outcome, self.measurement.time_ms
        return order.index(outcome) if outcome in order else len(order), time_ms or math.inf


@dataclass(frozen=True)
class Convolution:
    """The best attempt, all attempts, how the variant was chosen, and why the times are not stored.

    `why_not_stored` is empty where the times are in the store.
    """

    best: Attempt
    attempts: list[Attempt]
    chosen_by: ChosenBy
    why_not_stored: str = ""


async def convolve(service: Service, run: Run, order: Order) -> Convolution:
    """Run an order; the measurements join the store, if it can be written.

    Raises
    ------
    UnknownVariant, NotApplicable, NoAdvice, RunError, WorkerError
    """
    _, device = await service.worker.opened()
    check_fits(order.problem, device)
    trial = _Trial(run, order, device)
    if order.variant == ALL:
        attempts, chosen_by = await trial.all_of(trial.applicable()), ChosenBy.MEASURED_NOW
    elif order.variant == ADVISED:
        attempts, chosen_by = await _try_advised(service, trial)
    else:
        attempts, chosen_by = [await trial.one(trial.named())], ChosenBy.NAMED
    # A result on somebody's NaN says nothing about the variant: for given tensors only the times are stored.
    measurements = [
        attempt.measurement for attempt in attempts if order.tensors is None or attempt.measurement.samples_ms
    ]
    why_not_stored = await service.keep(measurements) if measurements else "no time was measured"
    best = min(attempts, key=lambda attempt: attempt.rank)
    if not best.is_good and best.measurement.outcome is not Outcome.WRONG_RESULT:
        raise _error_of(best.measurement, order.options)
    return Convolution(best, attempts, chosen_by, why_not_stored)


@dataclass(frozen=True)
class _Trial:
    """An order on a device, and the function that runs tasks there."""

    run: Run
    order: Order
    device: Device

    def named(self) -> Variant:
        """The variant that the order names."""
        variant = catalog.get(self.order.variant)
        reason = self._why_not(variant)
        if reason is not None:
            raise NotApplicable(variant.id, reason)
        return variant

    def applicable(self) -> list[Variant]:
        """Every variant of the device that can compute the problem, in catalogue order."""
        reasons = {variant: self._why_not(variant) for variant in catalog.for_device_kind(self.device.kind)}
        variants = [variant for variant, reason in reasons.items() if reason is None]
        if not variants:
            reason_by_id = {variant.id: reason for variant, reason in reasons.items() if reason}
            raise NoAdvice(f"no variant computes {self.order.problem.key} on {self.device.id}", reason_by_id)
        return variants

    async def one(self, variant: Variant) -> Attempt:
        """Try one variant, on the order's tensors if it has any."""
        if self.order.tensors is None:
            return (await self.random([variant]))[0]
        order, problem = self.order, self.order.problem
        try:
            y, measurement = await self.run(
                tasks.convolve, problem, order.tensors, variant.id, order.options, order.run_id
            )
        except tuple(_OUTCOMES) as error:
            needed = error.needed_bytes if isinstance(error, WorkspaceExceeded) else None
            failure = Measurement(problem, variant.id, self.device, _OUTCOMES[type(error)], str(error), (), needed)
            return Attempt(failure)
        return Attempt(measurement, y)

    async def all_of(self, variants: list[Variant]) -> list[Attempt]:
        """Try all of these variants."""
        if self.order.tensors is None:
            return await self.random(variants)
        attempts: list[Attempt] = []
        for variant in variants:
            _add(attempts, await self.one(variant))
        return attempts

    async def until_good(self, variants: list[Variant]) -> list[Attempt]:
        """Try one after the other until one gives the right output."""
        attempts: list[Attempt] = []
        for variant in variants[:_MAX_TRIED]:
            _add(attempts, await self.one(variant))
            if attempts[-1].is_good:
                break
        return attempts

    async def random(self, variants: list[Variant]) -> list[Attempt]:
        """Measure variants on random tensors, in one task."""
        names = [variant.id for variant in variants]
        measurements = await self.run(tasks.measure, self.order.problem, names, self.order.options, self.order.run_id)
        return [Attempt(measurement) for measurement in measurements]

    def _why_not(self, variant: Variant) -> str | None:
        if self.order.is_deterministic and not variant.is_deterministic:
            return "equal inputs may give unequal bits"
        return why_not(variant, self.order.problem, self.device)


def _add(attempts: list[Attempt], attempt: Attempt) -> None:
    """Add an attempt; among all attempts only the best keeps its y."""
    for index, other in enumerate(attempts):
        if other.y is None or attempt.y is None:
            continue
        if attempt.rank < other.rank:
            attempts[index] = Attempt(other.measurement)
        else:
            attempt = Attempt(attempt.measurement)
    attempts.append(attempt)


async def _try_advised(service: Service, trial: _Trial) -> tuple[list[Attempt], ChosenBy]:
    applicable = {variant.id: variant for variant in trial.applicable()}
    names, chosen_by, top = await asyncio.to_thread(_ranking, service, trial.order, trial.device, set(applicable))
    ranked = [applicable[name] for name in names if name in applicable]
    if ranked and top == 1:
        return await trial.until_good(ranked), chosen_by
    if ranked:
        attempts = await trial.all_of(ranked[:top])
        is_found = any(attempt.is_good for attempt in attempts)
        return attempts if is_found else attempts + await trial.until_good(ranked[top:]), ChosenBy.MEASURED_NOW
    attempts = await trial.random(list(applicable.values()))
    if trial.order.tensors is None:
        return attempts, ChosenBy.MEASURED_NOW
    ranked = [applicable[attempt.measurement.variant] for attempt in sorted(attempts, key=lambda attempt: attempt.rank)]
    return await trial.until_good(ranked), ChosenBy.MEASURED_NOW


def _ranking(service: Service, order: Order, device: Device, applicable: set[str]) -> tuple[list[str], ChosenBy, int]:
    """Ids of variants, best first, and how many to measure: by the model, else by times if all were measured before."""
    limits = Limits(device.id, order.options.workspace_limit_bytes, order.is_deterministic)
    has_model = service.advisor(device.id).model is not None
    if not has_model:
        tried = service.records.summaries([order.problem], device.id).get(order.problem.key, {})
        if not applicable <= set(tried):
            return [], ChosenBy.MEASURED_NOW, 1
    advice = advise_one(service, order.problem, limits)
    names = [choice.variant for choice in advice.ranking]
    return names, ChosenBy.ADVICE if has_model else ChosenBy.STORED_TIMES, how_many(advice, order.top, order.measure)


def check_fits(problem: ConvProblem, device: Device) -> None:
    """Refuse a problem whose tensors alone would fill the device, or the host."""
    allowed = int(device.memory_bytes * _SHARE_OF_MEMORY)
    if device.memory_bytes and problem.bytes > allowed:
        raise OutOfMemory(f"x, weight and y take {problem.bytes} bytes; allowed on {device.id}: {allowed}")


def _error_of(measurement: Measurement, options: BenchOptions) -> RunError:
    """The error for the outcome of an attempt."""
    if measurement.outcome is Outcome.WORKSPACE_EXCEEDED:
        return WorkspaceExceeded(measurement.workspace_bytes or 0, options.workspace_limit_bytes)
    return _ERRORS.get(measurement.outcome, RunError)(f"{measurement.variant}: {measurement.detail}")
