"""Measure many problems with many variants: one row per attempt, resumable, spread over workers, robust to failures."""

from __future__ import annotations

import hashlib
import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Final

from conv_advisor.app.sweep.attempt import Layer, Result, Terms, Trial
from conv_advisor.app.sweep.expected import expected_ms
from conv_advisor.app.sweep.fleet import Fleet
from conv_advisor.app.sweep.spread import fleet_of
from conv_advisor.app.sweep.writer import Writer
from conv_advisor.app.workers.child import JobNotTaken, WorkerKilled
from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.errors import WorkerError
from conv_advisor.data.measurement import Device, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.store import Store
from conv_advisor.kernels.bench import BenchOptions

if TYPE_CHECKING:
    from conv_advisor.app.workers.any_engine import AnyEngine

log = logging.getLogger(__name__)

DEFAULT_DEADLINE_S: Final = 120.0
MAX_LOST: Final = 3
"""Workers that one layer may lose before it counts as the cause. A loss does not count if the layer has made progress,
or if the worker was ended from outside."""
_TICK_S: Final = 0.2

OnProblem = Callable[[int, int, str], None]
"""Takes the number of problems done, the number of all problems, and the current one."""


@dataclass
class WorkersTime:
    """Where the time of a sweep's workers went: seconds, added up over all workers from the sweep's start to its end.

    Parameters
    ----------
    measuring_s : float
        Operands and their reference, verified launches, timed launches.
    preparing_s : float
        Choosing configurations, compiling or loading kernels, building plans, asking the library for its picks.
    store_s : float
        Waiting for the writer of rows.
    host_s : float
        The rest of a problem's time: messages, checks, and what a process that ended had done.
    waiting_s : float
        No problem in hand: before the first, between two, and after the last while others still measure.
    longest_s : float
        Time of the problem that took longest.
    """

    measuring_s: float = 0.0
    preparing_s: float = 0.0
    store_s: float = 0.0
    host_s: float = 0.0
    waiting_s: float = 0.0
    longest_s: float = 0.0

    def add(self, result: Result, store_s: float) -> None:
        """Count one problem, and how long its worker waited for the store."""
        spent = result.spent
        self.measuring_s += spent.measuring_s
        self.preparing_s += spent.preparing_s
        self.store_s += store_s
        self.host_s += max(0.0, result.elapsed_s - spent.measuring_s - spent.preparing_s)
        self.longest_s = max(self.longest_s, result.elapsed_s)

    def end(self, workers_s: float) -> None:
        """Take what is left of all the workers' time for waiting."""
        self.waiting_s = max(0.0, workers_s - self.measuring_s - self.preparing_s - self.store_s - self.host_s)


@dataclass
class SweepReport:
    """The result of a sweep.

    Parameters
    ----------
    run_id : str
    device : Device
    n_problems : int
        Number of problems requested.
    n_attempts : int
        Rows added.
    n_skipped : int
        Attempts that an earlier part of the run had already made.
    outcomes : dict of Outcome to int
        How many of the added rows have each outcome.
    is_complete : bool
        False if the time limit came first.
    elapsed_s : float
    n_workers : int
        Workers at the start.
    time : WorkersTime
    """

    run_id: str
    device: Device
    n_problems: int
    n_attempts: int = 0
    n_skipped: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    is_complete: bool = True
    elapsed_s: float = 0.0
    n_workers: int = 0
    time: WorkersTime = field(default_factory=WorkersTime)


def default_run_id(device: Device, options: BenchOptions) -> str:
    """The default run id of a sweep: one for each device, set of libraries, and options."""
    digest = hashlib.sha256(repr(options).encode()).hexdigest()[:8]
    return f"{device.id}-{device.fingerprint}-{digest}"


def drawn(problems: Sequence[ConvProblem], at_most: int | None, seed: int) -> list[ConvProblem]:
    """At most `at_most` of the problems, drawn at random, in the order of drawing; without a limit all, as they are."""
    if at_most is None:
        return list(problems)
    return random.Random(seed).sample(problems, min(at_most, len(problems)))  # noqa: S311 - no secret


def with_epilogues(problems: Iterable[ConvProblem], epilogues: Sequence[Epilogue]) -> list[ConvProblem]:
    """The problems with each of the epilogues; a problem with an epilogue of its own keeps only that.

    Parameters
    ----------
    problems : iterable of ConvProblem
    epilogues : sequence of Epilogue
        `PLAIN` among them if the convolution alone is to be measured too.
    """
    return [
        replace(problem, epilogue=epilogue)
        for problem in problems
        for epilogue in ((problem.epilogue,) if problem.epilogue else epilogues)
    ]


def shard_of(problems: Sequence[ConvProblem], index: int, count: int) -> list[ConvProblem]:
    """Every count-th problem from index on: shards are disjoint, and together they contain all problems."""
    return list(problems[index::count])


def sweep(
    store: Store,
    engine: AnyEngine | Sequence[AnyEngine],
    problems: Iterable[ConvProblem],
    variant_ids: Sequence[str],
    *,
    options: BenchOptions,
    run_id: str = "",
    deadline_s: float = DEFAULT_DEADLINE_S,
    time_limit_s: float | None = None,
    has_picks: bool = True,
    on_progress: OnProblem | None = None,
    stopping: threading.Event | None = None,
) -> SweepReport:
    """Measure everything that the run has not attempted yet.

    Parameters
    ----------
    store : Store
    engine : Engine or ClusterEngine, or sequence of Engine
        One device; several equal ones of this host; or the workers of a cluster, including those that join later.
    problems : iterable of ConvProblem
        Duplicates are measured once. One worker measures the problems of a layer, which differ only in the batch size,
        in this order. A single worker also takes the layers in this order; several start with the longest.
    variant_ids : sequence of str
    options : BenchOptions
    run_id : str
        Empty: `default_run_id`, so that a repeated sweep continues where it ended.
    deadline_s : float
        Time limit for all variants of one problem together; if that is exceeded, for each of them alone.
    time_limit_s : float, optional
        No problem starts after this time.
    has_picks : bool
        Ask the device's library for its picks, on problems that every variant is tried on. On an H200 that took 1.6 s
        for each of a worker's first five grouped layers, and cuDNN's variants took 0.4 s.
    on_progress : callable, optional
        Called by one thread at a time; what it raises ends the sweep.
    stopping : threading.Event, optional
        Once it is set, running work is stopped.

    Raises
    ------
    CancelledError
        The sweep was stopped.
    InvalidInput
        The engines have different devices.
    WorkerError
        No worker with a usable device is left. The measurements are in the store, and a repeated sweep continues.
    StoreError
    """
    started = time.monotonic()
    ends_at_s = None if time_limit_s is None else time.time() + time_limit_s
    fleet = fleet_of(engine)
    try:
        device = fleet.describe(deadline_s)
        todo = list(dict.fromkeys(problems))
        report = SweepReport(run_id or default_run_id(device, options), device, len(todo), n_workers=fleet.n_workers)
        terms = Terms(device, options, report.run_id, deadline_s, ends_at_s)
        layers = _layers(todo, variant_ids, store.attempted(report.run_id), has_picks)
        missing = [trial for layer in layers for trial in layer]
        report.n_skipped = len(todo) * len(variant_ids) - sum(len(trial.variant_ids) for trial in missing)
        if report.n_workers > 1:
            layers.sort(key=lambda layer: expected_ms(layer, device), reverse=True)
        with _Book(store, report, len(missing), on_progress) as book:
            _spread(layers, fleet, terms, book, stopping or threading.Event())
        report.is_complete = len(book.measured) == len(missing)
    finally:
        fleet.stop()
    if on_progress and report.is_complete:
        on_progress(len(todo), len(todo), "done")
    report.elapsed_s = time.monotonic() - started
    report.time.end(report.n_workers * report.elapsed_s)
    return report


class _Book:
    """Results of a sweep so far; the devices go on while rows are written.

    Parameters
    ----------
    store : Store
    report : SweepReport
        Updated with every result.
    n_todo : int
        Number of problems that are not measured yet.
    on_progress : callable, optional
    """

    def __init__(self, store: Store, report: SweepReport, n_todo: int, on_progress: OnProblem | None) -> None:
        self.measured: set[ConvProblem] = set()
        self.report = report
        self._n_before = report.n_problems - n_todo
        self._on_progress = on_progress
        self._counting, self._telling = threading.Lock(), threading.Lock()
        self._writer = Writer(store)

    def begin(self, key: str) -> None:
        """Note that a problem is being measured; whoever counts a result does not wait for it."""
        with self._telling:
            if self._on_progress:
                self._on_progress(self._n_before + len(self.measured), self.report.n_problems, key)

    def take(self, result: Result) -> None:
        """Count the result of a problem, and hand it to the writer."""
        begin_s = time.perf_counter()
        self._writer.put(result)
        store_s = time.perf_counter() - begin_s
        with self._counting:
            self.report.n_attempts += len(result.measurements)
            self.report.outcomes.update(measurement.outcome for measurement in result.measurements)
            self.report.time.add(result, store_s)
            self.measured.add(result.problem)

    def left_of(self, layer: Layer) -> Layer:
        """The problems of a layer that are not measured yet."""
        return tuple(trial for trial in layer if trial.problem not in self.measured)

    def __enter__(self) -> _Book:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        if error is None:
            self._writer.check()


def _layers(
    problems: list[ConvProblem], variant_ids: Sequence[str], attempted: set[tuple[str, str]], has_picks: bool
) -> list[Layer]:
    """The missing attempts, grouped by layer, in the order of the problems."""
    trials_by_layer: dict[ConvProblem, list[Trial]] = {}
    for problem in problems:
        missing = tuple(name for name in variant_ids if (problem.key, name) not in attempted)
        if missing:
            trial = Trial(problem, missing, has_picks=has_picks and len(missing) == len(variant_ids))
            trials_by_layer.setdefault(replace(problem, n=1), []).append(trial)
    return [tuple(trials) for trials in trials_by_layer.values()]


def _spread(layers: list[Layer], fleet: Fleet, terms: Terms, book: _Book, stopping: threading.Event) -> None:
    """Hand layers to free workers until all are measured; a layer whose worker was lost goes to another worker.

    Raises
    ------
    CancelledError, WorkerError
    """
    waiting, losses = deque(layers), _Losses(fleet.patience_s)
    running: dict[Future[None], Layer] = {}
    while running or (waiting and not terms.is_over):
        if stopping.is_set():
            raise CancelledError
        while waiting and not terms.is_over and len(running) < fleet.n_places:
            layer = waiting.popleft()
            running[fleet.delegate(layer, terms, book.begin, book.take)] = layer
        if not running:
            losses.check_patience(fleet.n_places)
            time.sleep(_TICK_S)
        for future in wait(running, _TICK_S, FIRST_COMPLETED).done:
            layer = running.pop(future)
            try:
                future.result()
            except WorkerError as error:
                left = book.left_of(layer)
                losses.note(layer, error, has_progress=len(left) < len(layer))
                waiting.extendleft(filter(None, [left]))


class _Losses:
    """Lost workers, and how long there has been no worker."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._by_layer: Counter[ConvProblem] = Counter()
        self._last: WorkerError | None = None
        self._nobody_since: float | None = None

    def note(self, layer: Layer, error: WorkerError, *, has_progress: bool) -> None:
        """Note that a layer has lost its worker; raise if the layer may be the cause and has lost too many."""
        log.warning("%s: its worker was lost: %s", layer[0].problem.key, error)
        self._last = (self._last or error) if isinstance(error, JobNotTaken) else error
        if has_progress or isinstance(error, JobNotTaken | WorkerKilled):
            return
        first = replace(layer[0].problem, n=1)
        self._by_layer[first] += 1
        if self._by_layer[first] >= MAX_LOST:
            raise WorkerError(f"{first.key} has lost {MAX_LOST} workers, the last one by: {error}") from error

    def check_patience(self, n_places: int) -> None:
        """Raise if there has been no worker for too long."""
        now = time.monotonic()
        if n_places or self._nobody_since is None:
            self._nobody_since = None if n_places else now
        if self._nobody_since is not None and now >= self._nobody_since + self._patience_s:
            why = f" ({self._last})" if self._last else ""
            raise WorkerError(
                f"no worker is left{why}; what was measured is in the store, and the same sweep, run again, goes on"
            ) from self._last
