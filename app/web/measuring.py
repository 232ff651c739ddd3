"""Measures the variants of one layer while a page shows it: one after the other, each stored at once."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from conv_advisor.app.convolve.convolution import check_fits
from conv_advisor.app.service.service import Service
from conv_advisor.app.sweep.attempt import outcome_of
from conv_advisor.app.wire.errors import problem_of
from conv_advisor.app.workers import tasks
from conv_advisor.app.workers.any_engine import AnyEngine
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import (
    ConvAdvisorError,
    DeadlineExceeded,
    NoAdvice,
    QueueFull,
    RunError,
    UnknownJob,
    WorkerDied,
)
from conv_advisor.data.measurement import Device, Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels import catalog
from conv_advisor.kernels.bench import BenchOptions

log = logging.getLogger(__name__)

MAX_RUNNING: Final = 4
"""Runs at once, which take turns on one device."""
MAX_KEPT: Final = 32


class RunState(StrEnum):
    """Where a run is; a closed list."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(eq=False)
class Run:
    """The measuring of one layer.

    Parameters
    ----------
    problem : ConvProblem
    device : Device
    variants : tuple of str
        In the order in which they are measured.
    predicted_ms : dict of str to float
        Times that the device's tree predicted beforehand; empty where it has none.
    options : BenchOptions
    """

    problem: ConvProblem
    device: Device
    variants: tuple[str, ...]
    predicted_ms: dict[str, float]
    options: BenchOptions
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    state: RunState = RunState.RUNNING
    error: dict[str, object] | None = None
    measurements: list[Measurement] = field(default_factory=list)
    started_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    why_not_stored: str = ""
    """Why some of the measurements are not in the store; empty where all of them are."""

    @property
    def current(self) -> str | None:
        """The variant that is being measured."""
        n_done = len(self.measurements)
        return self.variants[n_done] if self.state is RunState.RUNNING and n_done < len(self.variants) else None

    @property
    def best_ms(self) -> float | None:
        """Time of the fastest variant measured so far."""
        times = [
            measurement.time_ms
            for measurement in self.measurements
            if measurement.outcome is Outcome.MEASURED and measurement.time_ms
        ]
        return min(times, default=None)

    @property
    def elapsed_s(self) -> float:
        """Time since the run began; for one that has ended, until then."""
        return (time.monotonic() if self.ended_s is None else self.ended_s) - self.started_s


class Measuring:
    """The runs of one service, newest last; they live as long as it does.

    Each stores its measurements, or has the reason why not.

    To be used on the event loop alone.
    """

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(
        self, service: Service, problem: ConvProblem, options: BenchOptions, most: int | None = None
    ) -> Run:
        """Measure the variants that apply to a problem on the worker's device.

        Parameters
        ----------
        service : Service
        problem : ConvProblem
        options : BenchOptions
        most : int, optional
            Only so many: those predicted fastest, where the device has a tree.

        Raises
        ------
        QueueFull, WorkerError, NoAdvice, OutOfMemory
        """
        engine, device = await service.worker.opened()
        check_fits(problem, device)
        variants, predicted_ms = await asyncio.to_thread(_planned, service, problem, device, options)
        running = sum(run.state is RunState.RUNNING for run in self._runs.values())
        if running >= MAX_RUNNING:
            raise QueueFull(
                f"{counted(running, 'measurement is', 'measurements are')} running already; wait for one, or cancel it"
            )
        run = Run(problem, device, variants[:most], predicted_ms, options)
        self._forget()
        self._runs[run.id] = run
        self._tasks[run.id] = asyncio.create_task(_execute(run, service, engine))
        return run

    def get(self, run_id: str) -> Run:
        """The run of this id.

        Raises
        ------
        UnknownJob
            There is none, or it is no longer kept.
        """
        if run_id not in self._runs:
            raise UnknownJob(run_id)
        return self._runs[run_id]

    def list(self) -> Sequence[Run]:
        """Every run that is kept, newest first."""
        return list(self._runs.values())[::-1]

    async def cancel(self, run_id: str) -> Run:
        """Stop a run: the process of the variant that is being measured is killed; one that has ended stays as it is.

        Raises
        ------
        UnknownJob
        """
        run = self.get(run_id)
        task = self._tasks[run_id]
        task.cancel()
        await asyncio.wait([task])
        if run.state is RunState.RUNNING:  # its task had not begun
            run.state, run.ended_s = RunState.CANCELLED, time.monotonic()
        return run

    async def close(self) -> None:
        """Stop every run."""
        for run_id in self._runs:
            await self.cancel(run_id)

    def _forget(self) -> None:
        ended = [run_id for run_id, run in self._runs.items() if run.state is not RunState.RUNNING]
        for run_id in ended[: max(len(self._runs) - MAX_KEPT + 1, 0)]:
            del self._runs[run_id], self._tasks[run_id]


def _planned(
    service: Service, problem: ConvProblem, device: Device, options: BenchOptions
) -> tuple[tuple[str, ...], dict[str, float]]:
    """The variants to measure, those predicted fastest first, and their predicted times."""
    reasons = {variant.id: variant.why_not(problem, device) for variant in catalog.for_device_kind(device.kind)}
    applicable = [name for name, reason in reasons.items() if reason is None]
    if not applicable:
        why_not = {name: reason for name, reason in reasons.items() if reason}
        raise NoAdvice(f"no variant computes {problem.key} on {device.id}", why_not)
    predicted_ms: dict[str, float] = {}
    advisor = service.advisor(device.id)
    if advisor.model is not None:
        try:
            advice = advisor.advise(problem, max_workspace_bytes=options.workspace_limit_bytes)
            predicted_ms = {choice.variant: choice.time_ms for choice in advice.ranking if choice.variant in applicable}
        except NoAdvice as error:  # the variants are then measured in the catalogue's order
            log.info("nothing is predicted: %s", error)
    rest = [name for name in applicable if name not in predicted_ms]
    return (*predicted_ms, *rest), predicted_ms


async def _execute(run: Run, service: Service, engine: AnyEngine) -> None:
    try:
        for variant in run.variants:
            run.measurements.append(await _measure(run, variant, service, engine))
        run.state = RunState.DONE
    except asyncio.CancelledError:
        run.state = RunState.CANCELLED
    except ConvAdvisorError as error:
        run.state, run.error = RunState.FAILED, problem_of(error)
    finally:
        run.ended_s = time.monotonic()


async def _measure(run: Run, variant: str, service: Service, engine: AnyEngine) -> Measurement:
    """Measure one variant and store the result; if it brings the worker down, the measurement has that as its outcome.

    Raises
    ------
    QueueFull, WorkerError
    """
    deadline_s = service.settings.convolution_deadline_s
    run_id = f"page-{run.id}"
    arguments = (run.problem, [variant], run.options, run_id, run.best_ms)
    try:
        future = engine.submit(tasks.measure, *arguments, deadline_s=deadline_s)
        (measurement,) = await asyncio.wrap_future(future)
    except (RunError, WorkerDied, DeadlineExceeded) as error:
        failure = outcome_of(error), str(error)
        measurement = Measurement(run.problem, variant, run.device, *failure, l2=run.options.l2, run_id=run_id)
    run.why_not_stored = await service.keep([measurement]) or run.why_not_stored
    return measurement
