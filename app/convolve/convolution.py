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
"""Runs a task in the worker: takes the task and its arguments."""

ADVISED: Final = "advised"
ALL: Final = "all"

_SHARE_OF_MEMORY: Final = 0.25
"""The part of a device's memory for a problem's tensors: variants hold copies and scratch memory besides."""
_MAX_TRIED: Final = 5
"""How far down a ranking it goes where the first do not run."""

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
    """The first that ran of the ranking by the device's model, or by the one it borrows."""
    STORED_TIMES = "stored_times"
    """The fastest one measured before on this device, which has no model and borrows none."""
    MEASURED_NOW = "measured_now"
    """The fastest of all that apply, or of the ranking's first, measured for this answer."""


@dataclass(frozen=True)
class Order:
    """What shall be run.

    Parameters
    ----------
    problem : ConvProblem
    tensors : dict of str to array, or None
        x, weight, and what the epilogue adds of bias and residual; None: random ones, and y is not wanted.
    variant : str
        ``advised``, ``all``, or a variant's id.
    top : int or None
        Where it is advised: how many of the ranking's first are measured, the fastest of which answers.
    measure : Measure or None
        Where that is None, when more than one of them is; see `how_many`.
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
    """One variant that was tried, and the y it gave."""

    measurement: Measurement
    y: np.ndarray | None = None

    @property
    def is_good(self) -> bool:
        """It gave the right output."""
        return self.measurement.outcome in (Outcome.MEASURED, Outcome.PRUNED)

    @property
    def rank(self) -> tuple[int, float]:
        """Smaller is better: timed, right, wrong but with an output, nothing; then by time."""
        order = (Outcome.MEASURED, Outcome.PRUNED, Outcome.WRONG_RESULT)
        outcome, time_ms = self.measurement.outcome, self.measurement.time_ms
        return order.index(outcome) if outcome in order else len(order), time_ms or math.inf


@dataclass(frozen=True)
class Convolution:
    """What was run: the best attempt, all of them, how the variant was chosen, and why their times are not kept.

    The last is empty where they are in the store.
    """

    best: Attempt
    attempts: list[Attempt]
    chosen_by: ChosenBy
    why_not_stored: str = ""


async def convolve(service: Service, run: Run, order: Order) -> Convolution:
    """Run what the order says; what was learned joins the store, if that can be written.

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
    # What a variant makes of somebody's NaN says nothing of the variant: of given tensors the times alone are kept.
    kept = [each.measurement for each in attempts if order.tensors is None or each.measurement.samples_ms]
    why_not_stored = await service.keep(kept) if kept else "no time was measured"
    best = min(attempts, key=lambda attempt: attempt.rank)
    if not best.is_good and best.measurement.outcome is not Outcome.WRONG_RESULT:
        raise _error_of(best.measurement, order.options)
    return Convolution(best, attempts, chosen_by, why_not_stored)


@dataclass(frozen=True)
class _Trial:
    """An order on a device, and what runs tasks there."""

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
        """Every variant of the device that computes the problem, in catalogue order."""
        reasons = {variant: self._why_not(variant) for variant in catalog.for_device_kind(self.device.kind)}
        found = [variant for variant, reason in reasons.items() if reason is None]
        if not found:
            said = {variant.id: reason for variant, reason in reasons.items() if reason}
            raise NoAdvice(f"no variant computes {self.order.problem.key} on {self.device.id}", said)
        return found

    async def one(self, variant: Variant) -> Attempt:
        """Try one variant, on the given tensors if there are any."""
        if self.order.tensors is None:
            return (await self.random([variant]))[0]
        order, problem = self.order, self.order.problem
        try:
            y, measurement = await self.run(
                tasks.convolve, problem, order.tensors, variant.id, order.options, order.run_id
            )
        except tuple(_OUTCOMES) as error:
            needed = error.needed_bytes if isinstance(error, WorkspaceExceeded) else None
            failed = Measurement(problem, variant.id, self.device, _OUTCOMES[type(error)], str(error), (), needed)
            return Attempt(failed)
        return Attempt(measurement, y)

    async def all_of(self, variants: list[Variant]) -> list[Attempt]:
        """Try them all."""
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
    """Note one more attempt; of every y only that of the best is kept."""
    for place, other in enumerate(attempts):
        if other.y is None or attempt.y is None:
            continue
        if attempt.rank < other.rank:
            attempts[place] = Attempt(other.measurement)
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
    ranked = [applicable[attempt.measurement.variant] for attempt in sorted(attempts, key=lambda each: each.rank)]
    return await trial.until_good(ranked), ChosenBy.MEASURED_NOW


def _ranking(service: Service, order: Order, device: Device, applicable: set[str]) -> tuple[list[str], ChosenBy, int]:
    """Ids of variants, best first, and how many to measure: by the model, else by times if all were tried before."""
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
    """The error that an attempt's outcome stands for."""
    if measurement.outcome is Outcome.WORKSPACE_EXCEEDED:
        return WorkspaceExceeded(measurement.workspace_bytes or 0, options.workspace_limit_bytes)
    return _ERRORS.get(measurement.outcome, RunError)(f"{measurement.variant}: {measurement.detail}")
