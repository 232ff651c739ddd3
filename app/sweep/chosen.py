"""Measures chosen problems, some variants of each at a time, until all are done or the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from conv_advisor.app.sweep.attempt import Result, Runs, Terms, Trial, measure_layer
from conv_advisor.app.sweep.sweep import DEFAULT_DEADLINE_S
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.store import Store
from conv_advisor.kernels.bench import BenchOptions

OnProgress = Callable[[float, str], None]
"""Takes the elapsed share of the time, 0 to 1, and the current problem."""

Wanted = Iterable[tuple[ConvProblem, tuple[str, ...]]]
"""Problems, and the variants to measure on each."""


class Measuring:
    """Attempts at chosen problems; each joins the store at once, and none is repeated within a run.

    Parameters
    ----------
    store : Store
    engine : Runs
        Owns the device.
    device : Device
    options : BenchOptions
    run_id : str
    limit_s : float
        No problem starts after this time.
    on_progress : callable, optional
    guard : callable, optional
        Called before each problem; what it raises ends the measuring.
    on_result : callable (Result), optional
        Called once the result of a problem is in the store.

    Attributes
    ----------
    outcomes : dict of str to int
        Outcomes of the attempts.
    """

    def __init__(
        self,
        store: Store,
        engine: Runs,
        device: Device,
        options: BenchOptions,
        run_id: str,
        limit_s: float,
        *,
        on_progress: OnProgress | None = None,
        guard: Callable[[], None] | None = None,
        on_result: Callable[[Result], None] | None = None,
    ) -> None:
        self.outcomes: dict[str, int] = {}
        self._store, self._engine, self._limit_s = store, engine, limit_s
        self._device, self._options, self._run_id = device, options, run_id
        self._tell, self._guard, self._on_result = on_progress, guard, on_result
        self._attempted, self._began_s = store.attempted(run_id), time.time()

    def run(self, wanted: Wanted, share: float = 1.0) -> bool:
        """Measure these problems until this share of the time is over; False if it was over before the end.

        Raises
        ------
        WorkerError
            The device is lost.
        """
        ends_at_s = self._began_s + share * self._limit_s
        terms = Terms(self._device, self._options, self._run_id, DEFAULT_DEADLINE_S, ends_at_s)
        for problem, names in wanted:
            if terms.is_over:
                return False
            if self._guard:
                self._guard()
            missing = tuple(name for name in names if (problem.key, name) not in self._attempted)
            if not missing:
                continue
            self._attempted.update((problem.key, name) for name in missing)
            if self._tell:
                self._tell(min(1.0, (time.time() - self._began_s) / self._limit_s), problem.brief)
            measure_layer(self._engine, (Trial(problem, missing, has_picks=False),), terms, _nobody, self._take)
        return True

    def _take(self, result: Result) -> None:
        self._store.append(result.measurements)
        for measurement in result.measurements:
            self.outcomes[measurement.outcome] = self.outcomes.get(measurement.outcome, 0) + 1
        if self._on_result:
            self._on_result(result)


def _nobody(_key: str) -> None:
    """Ignore the start of a problem."""
