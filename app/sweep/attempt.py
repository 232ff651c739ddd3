"""One layer of a sweep: its problems are tried in order on one device, even if variants crash the worker."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from conv_advisor.app.workers import tasks
from conv_advisor.app.workers.child import WorkerKilled
from conv_advisor.data.errors import ConvAdvisorError, DeadlineExceeded, LaunchFailed, WorkerError
from conv_advisor.data.measurement import LEAST_UNLAUNCHED_SLOWDOWN, Device, Measurement, Outcome, Pick
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.bench import BenchOptions
from conv_advisor.kernels.spent import Spent

log = logging.getLogger(__name__)

LEAST_HOPELESS_MS: Final = 5.0

Report = Callable[[float, str], None]
"""Takes the fraction that is done, 0 to 1, and the key of the problem that begins."""


class Runs(Protocol):
    """Runs a task on a device and waits for it, as `app.workers.engine.Engine` does."""

    @property
    def device_id(self) -> str:
        """The device's name in messages."""
        ...

    def run(self, task: Callable[..., Any], *args: Any, deadline_s: float) -> Any:
        """Run one task; raises as `app.workers.engine.Engine.run` does."""
        ...


@dataclass(frozen=True)
class Terms:
    """Common parameters of the layers of one sweep.

    Parameters
    ----------
    device : Device
        The device that is measured.
    options : BenchOptions
    run_id : str
    deadline_s : float
        Time limit for all variants of one problem together; if that is exceeded, for each of them alone.
    ends_at_s : float, optional
        Seconds since the epoch: no problem starts after this time.
    """

    device: Device
    options: BenchOptions
    run_id: str
    deadline_s: float
    ends_at_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether no further problem may start."""
        return self.ends_at_s is not None and time.time() >= self.ends_at_s


@dataclass(frozen=True)
class Trial:
    """One problem of a layer and the variants to try on it.

    Parameters
    ----------
    problem : ConvProblem
    variant_ids : tuple of str
    has_picks : bool
        Also ask for the picks of the device's library.
    """

    problem: ConvProblem
    variant_ids: tuple[str, ...]
    has_picks: bool


Layer = tuple[Trial, ...]
"""Problems that differ only in their batch size: one shows which variants need not be launched on the next."""


@dataclass(frozen=True)
class Result:
    """The result of one problem.

    Parameters
    ----------
    problem : ConvProblem
    measurements : list of Measurement
        One per variant.
    picks : list of Pick
        Those of the device's library.
    spent : Spent
        Seconds of the worker's process; asking for picks, which builds plans, counts as preparing.
    elapsed_s : float
        Time from the problem's beginning to its result, as the worker's parent sees it.
    """

    problem: ConvProblem
    measurements: list[Measurement]
    picks: list[Pick]
    spent: Spent = field(default_factory=Spent)
    elapsed_s: float = 0.0


def measure_layer(
    engine: Runs, layer: Layer, terms: Terms, on_begin: Callable[[str], None], on_result: Callable[[Result], None]
) -> None:
    """Try every problem of a layer in order.

    Parameters
    ----------
    engine : Runs
    layer : tuple of Trial
    terms : Terms
    on_begin : callable (key)
        Called before each problem.
    on_result : callable (Result)
        Called after each problem.

    Raises
    ------
    WorkerError
        The device is no longer usable.
    """
    hopeless = _Hopeless()
    for trial in layer:
        if terms.is_over:
            return
        begin_s, spent = time.perf_counter(), Spent()
        on_begin(trial.problem.key)
        result = _try(trial, _Attempt(engine, terms, spent), hopeless)
        on_result(replace(result, elapsed_s=time.perf_counter() - begin_s))


def _try(trial: Trial, attempt: _Attempt, hopeless: _Hopeless) -> Result:
    problem = trial.problem
    with attempt.spent.preparing():
        picks = attempt.picks(problem) if trial.has_picks else []
    measurements = attempt.all_of(problem, [name for name in trial.variant_ids if not hopeless.why(problem, name)])
    hopeless.learn(measurements)
    measurements += [
        attempt.pruned(problem, name, why) for name in trial.variant_ids if (why := hopeless.why(problem, name))
    ]
    return Result(problem, measurements, picks, attempt.spent)


@dataclass(frozen=True)
class _Attempt:
    """Tries one problem on an engine, and adds up what that takes its process."""

    engine: Runs
    terms: Terms
    spent: Spent

    def all_of(self, problem: ConvProblem, variant_ids: list[str]) -> list[Measurement]:
        """One measurement per variant; variants that together bring the worker down are then tried one by one."""
        if not variant_ids:
            return []
        try:
            return self._measure(problem, variant_ids)
        except ConvAdvisorError as error:
            self._check_worker(error)
            if len(variant_ids) == 1 and not isinstance(error, WorkerKilled):  # who was killed is not to blame at once
                return [self._failure(problem, variant_ids[0], error)]
            log.warning("%s: %s; its variants are tried one by one", problem.key, error)
        return [self._one(problem, variant_id) for variant_id in variant_ids]

    def picks(self, problem: ConvProblem) -> list[Pick]:
        """The picks of the device's library; none where asking fails."""
        terms = self.terms
        if terms.device.kind == "cpu":
            return []
        try:
            picks: list[Pick] = self.engine.run(
                tasks.picks, problem, terms.options, terms.run_id, deadline_s=terms.deadline_s
            )
        except ConvAdvisorError as error:
            self._check_worker(error)
            log.warning("%s: no picks: %s", problem.key, error)
            return []
        return picks

    def pruned(self, problem: ConvProblem, variant_id: str, why: str) -> Measurement:
        """The record of a variant that is not launched, and the reason."""
        return self._unmeasured(problem, variant_id, Outcome.PRUNED, why)

    def _one(self, problem: ConvProblem, variant_id: str) -> Measurement:
        try:
            return self._measure(problem, [variant_id])[0]
        except ConvAdvisorError as error:
            self._check_worker(error)
            return self._failure(problem, variant_id, error)

    def _measure(self, problem: ConvProblem, variant_ids: list[str]) -> list[Measurement]:
        terms = self.terms
        measurements: list[Measurement]
        measurements, spent = self.engine.run(
            tasks.measure_timed, problem, variant_ids, terms.options, terms.run_id, deadline_s=terms.deadline_s
        )
        self.spent.preparing_s += spent.preparing_s
        self.spent.measuring_s += spent.measuring_s
        return measurements

    def _failure(self, problem: ConvProblem, variant_id: str, error: ConvAdvisorError) -> Measurement:
        return self._unmeasured(problem, variant_id, outcome_of(error), str(error))

    def _unmeasured(self, problem: ConvProblem, variant_id: str, outcome: Outcome, why: str) -> Measurement:
        terms = self.terms
        return Measurement(problem, variant_id, terms.device, outcome, why, l2=terms.options.l2, run_id=terms.run_id)

    def _check_worker(self, error: ConvAdvisorError) -> None:
        """Raise if the device itself is no longer usable: the error then says nothing about a variant."""
        try:
            self.engine.run(tasks.describe_device, deadline_s=self.terms.deadline_s)
        except ConvAdvisorError as lost:
            kind = WorkerKilled if isinstance(lost, WorkerKilled) else WorkerError
            raise kind(f"{self.engine.device_id} is lost ({lost}), after: {error}") from lost


def outcome_of(error: ConvAdvisorError) -> Outcome:
    """The outcome of a variant that ended its task, or the worker, with this error."""
    match error:
        case LaunchFailed():
            return Outcome.LAUNCH_FAILED
        case DeadlineExceeded():
            return Outcome.TIMED_OUT
        case _:
            return Outcome.CRASHED


class _Hopeless:
    """Variants so far behind at one batch size that they need not be launched at larger ones.

    A launch this long fills the device already, so a larger batch takes proportionally longer with every variant; and
    such launches, of seconds each, would take most of a sweep's time.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[ConvProblem, str], tuple[int, str]] = {}

    def learn(self, measurements: list[Measurement]) -> None:
        """Note the hopeless variants of one problem."""
        best_ms = min((m.time_ms for m in measurements if m.time_ms is not None), default=0.0)
        for m in measurements:
            if m.outcome is not Outcome.PRUNED or m.time_ms is None:
                continue
            if m.time_ms >= max(LEAST_HOPELESS_MS, LEAST_UNLAUNCHED_SLOWDOWN * best_ms):
                why = f"{m.time_ms / best_ms:.0f} times slower than the best at batch {m.problem.n} already"
                self._seen.setdefault((replace(m.problem, n=1), m.variant), (m.problem.n, why))

    def why(self, problem: ConvProblem, variant_id: str) -> str | None:
        """Why the variant need not be launched, or None."""
        n, why = self._seen.get((replace(problem, n=1), variant_id), (problem.n, None))
        return why if n < problem.n else None


def sweep_layer(engine: Runs, layer: Layer, terms: Terms, report: Report) -> list[Result]:
    """Measure one layer of a sweep, and report the key of each problem that begins."""
    results: list[Result] = []
    measure_layer(engine, layer, terms, lambda key: report(len(results) / len(layer), key), results.append)
    return results
