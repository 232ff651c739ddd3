"""Measure many problems with many variants: one row an attempt, resumable, and ended by no failure."""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from app import worker
from app.engine import Engine
from data.errors import ConvAdvisorError, DeadlineExceeded, LaunchFailed, WorkerError
from data.measurement import LEAST_UNLAUNCHED_SLOWDOWN, Device, Measurement, Outcome, Pick
from data.problem import ConvProblem
from data.store import Store
from kernels.bench import BenchOptions

log = logging.getLogger(__name__)

DEFAULT_DEADLINE_S: Final = 120.0

LEAST_HOPELESS_MS: Final = 5.0

OnProblem = Callable[[int, int, str], None]
"""Takes the problems done, all problems, and the one that is measured now."""


@dataclass
class SweepReport:
    """What a sweep did.

    Parameters
    ----------
    run_id : str
    device : Device
    n_problems : int
        Problems asked for.
    n_attempts : int
        Rows added.
    n_skipped : int
        Attempts that an earlier part of the run had made already.
    outcomes : dict of Outcome to int
        Of the rows added.
    is_complete : bool
        False where the time limit came first.
    elapsed_s : float
    """

    run_id: str
    device: Device
    n_problems: int
    n_attempts: int = 0
    n_skipped: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    is_complete: bool = True
    elapsed_s: float = 0.0


def default_run_id(device: Device, options: BenchOptions) -> str:
    """The run that a sweep continues unless told otherwise: one a device, its libraries, and the options."""
    digest = hashlib.sha256(repr(options).encode()).hexdigest()[:8]
    return f"{device.id}-{device.fingerprint}-{digest}"


def drawn(problems: Sequence[ConvProblem], at_most: int | None, seed: int) -> list[ConvProblem]:
    """So many of the problems at random, in the order in which they are drawn; all, as they are, without a limit."""
    if at_most is None:
        return list(problems)
    return random.Random(seed).sample(problems, min(at_most, len(problems)))  # noqa: S311 - no secret


def shard_of(problems: Sequence[ConvProblem], index: int, count: int) -> list[ConvProblem]:
    """Every count-th problem from index on: shards are disjoint, and together they are everything."""
    return list(problems[index::count])


def sweep(
    store: Store,
    engine: Engine,
    problems: Iterable[ConvProblem],
    variant_ids: Sequence[str],
    *,
    options: BenchOptions,
    run_id: str = "",
    deadline_s: float = DEFAULT_DEADLINE_S,
    time_limit_s: float | None = None,
    on_progress: OnProblem | None = None,
) -> SweepReport:
    """Measure what the run has not attempted yet.

    Parameters
    ----------
    store : Store
    engine : Engine
    problems : iterable of ConvProblem
        Measured in this order; repeated ones once.
    variant_ids : sequence of str
    options : BenchOptions
    run_id : str
        Empty: `default_run_id`, so that a repeated sweep goes on where it ended.
    deadline_s : float
        For the variants of one problem together; where that is not enough, for each of them.
    time_limit_s : float, optional
        No problem is begun after this time.
    on_progress : callable, optional

    Raises
    ------
    WorkerError
        The device can no longer be used.
    StoreError
    """
    started = time.monotonic()
    device = engine.run(worker.describe_device, deadline_s=deadline_s)
    todo = list(dict.fromkeys(problems))
    report = SweepReport(run_id or default_run_id(device, options), device, len(todo))
    attempt = _Attempt(engine, device, options, report.run_id, deadline_s)
    attempted = store.attempted(report.run_id)
    hopeless = _Hopeless()
    with ThreadPoolExecutor(1, "sweep-store") as writer:  # the device works on while rows are written
        written: Future[None] | None = None
        for number, problem in enumerate(todo):
            missing = [name for name in variant_ids if (problem.key, name) not in attempted]
            report.n_skipped += len(variant_ids) - len(missing)
            if not missing:
                continue
            if time_limit_s is not None and time.monotonic() - started >= time_limit_s:
                report.is_complete = False
                break
            if on_progress:
                on_progress(number, len(todo), problem.key)
            picks = attempt.picks(problem) if len(missing) == len(variant_ids) else []
            measurements = attempt.all_of(problem, [name for name in missing if not hopeless.why(problem, name)])
            hopeless.learn(measurements)
            measurements += [
                attempt.pruned(problem, name, why) for name in missing if (why := hopeless.why(problem, name))
            ]
            report.n_attempts += len(measurements)
            report.outcomes.update(measurement.outcome for measurement in measurements)
            if written:
                written.result()
            written = writer.submit(_write, store, measurements, picks)
        if written:
            written.result()
    if on_progress and report.is_complete:
        on_progress(len(todo), len(todo), "done")
    report.elapsed_s = time.monotonic() - started
    return report


@dataclass(frozen=True)
class _Attempt:
    """How one problem is tried."""

    engine: Engine
    device: Device
    options: BenchOptions
    run_id: str
    deadline_s: float

    def all_of(self, problem: ConvProblem, variant_ids: list[str]) -> list[Measurement]:
        """One measurement a variant; where they bring the worker down together, each is tried alone."""
        if not variant_ids:
            return []
        try:
            return self._measure(problem, variant_ids)
        except ConvAdvisorError as error:
            self._check_worker(error)
            if len(variant_ids) == 1:
                return [self._failure(problem, variant_ids[0], error)]
            log.warning("%s: %s; its variants are tried one by one", problem.key, error)
        return [self._one(problem, variant_id) for variant_id in variant_ids]

    def picks(self, problem: ConvProblem) -> list[Pick]:
        """What the device's library would choose; nothing where asking fails."""
        if self.device.kind == "cpu":
            return []
        try:
            return self.engine.run(worker.picks, problem, self.options, self.run_id, deadline_s=self.deadline_s)
        except ConvAdvisorError as error:
            self._check_worker(error)
            log.warning("%s: no picks: %s", problem.key, error)
            return []

    def pruned(self, problem: ConvProblem, variant_id: str, why: str) -> Measurement:
        """A variant that is not launched at all, and why."""
        return Measurement(
            problem, variant_id, self.device, Outcome.PRUNED, why, l2=self.options.l2, run_id=self.run_id
        )

    def _one(self, problem: ConvProblem, variant_id: str) -> Measurement:
        try:
            return self._measure(problem, [variant_id])[0]
        except ConvAdvisorError as error:
            self._check_worker(error)
            return self._failure(problem, variant_id, error)

    def _measure(self, problem: ConvProblem, variant_ids: list[str]) -> list[Measurement]:
        return self.engine.run(
            worker.measure, problem, variant_ids, self.options, self.run_id, deadline_s=self.deadline_s
        )

    def _failure(self, problem: ConvProblem, variant_id: str, error: ConvAdvisorError) -> Measurement:
        match error:
            case LaunchFailed():
                outcome = Outcome.LAUNCH_FAILED
            case DeadlineExceeded():
                outcome = Outcome.TIMED_OUT
            case _:
                outcome = Outcome.CRASHED
        return Measurement(
            problem, variant_id, self.device, outcome, str(error), l2=self.options.l2, run_id=self.run_id
        )

    def _check_worker(self, error: ConvAdvisorError) -> None:
        """Say nothing about a variant where the device itself can no longer be used."""
        try:
            self.engine.run(worker.describe_device, deadline_s=self.deadline_s)
        except ConvAdvisorError as lost:
            raise WorkerError(f"{self.engine.device_id} is lost ({lost}), after: {error}") from lost


class _Hopeless:
    """Variants so far behind at one batch size that they need not be launched at larger ones.

    A launch this long fills the device already, so that a larger batch takes proportionally longer with every variant;
    and these launches, of seconds each, would take most of a sweep's time.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[ConvProblem, str], tuple[int, str]] = {}

    def learn(self, measurements: list[Measurement]) -> None:
        """Note who was hopeless on one problem."""
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


def _write(store: Store, measurements: list[Measurement], picks: list[Pick]) -> None:
    store.append_picks(picks)
    store.append(measurements)
