"""Background work of a service: it runs jobs, and follows the trees that other processes put in charge."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from conv_advisor.app.jobs.job import Job, JobKind, JobState, Key
from conv_advisor.app.jobs.runner import JobRunner, Work
from conv_advisor.app.jobs.table import Jobs
from conv_advisor.app.jobs.works import calibrating, measuring, refreshing, training
from conv_advisor.app.settings import Settings
from conv_advisor.app.workers.any_engine import AnyEngine
from conv_advisor.app.workers.engine import Engine
from conv_advisor.data.errors import ConvAdvisorError
from conv_advisor.data.measurement import Device
from conv_advisor.data.store import Store
from conv_advisor.models.registry.on_disk import Registry
from conv_advisor.models.registry.shared import SharedModels

log = logging.getLogger(__name__)

_CLOSE_S: Final = 5.0

FOLLOW_S: Final = 0.25
"""How long a tree that another process has put in charge, in another home, stays unnoticed."""
_MAKING_TREES: Final = (JobKind.RETRAIN, JobKind.CALIBRATE, JobKind.REFRESH)


class ToldJobs(Jobs):
    """The jobs as this server reports them: a retraining is reported as ended once its tree is in use here.

    The transaction that ends the job puts its tree in charge; a client that sees the end asks for advice next.

    Parameters
    ----------
    store : Store
    models : SharedModels
        The trees in use here.
    """

    def __init__(self, store: Store, models: SharedModels) -> None:
        super().__init__(store)
        self._models = models

    def get(self, job_id: str) -> Job:
        """As `Jobs.get`."""
        return self._followed(super().get(job_id))[0]

    def list(
        self, limit: int = 100, *, before: str | None = None, kind: JobKind | None = None, state: JobState | None = None
    ) -> tuple[Job, ...]:
        """As `Jobs.list`."""
        return self._followed(*super().list(limit, before=before, kind=kind, state=state))

    def _followed(self, *jobs: Job) -> tuple[Job, ...]:
        if any(job.kind in _MAKING_TREES and job.state is JobState.SUCCEEDED for job in jobs):
            with suppress(ConvAdvisorError):  # `Background._follow` logs a tree that cannot be loaded here
                self._models.follow()
        return jobs


class Background:
    """The jobs that this process runs, and the trees that it shares with other processes.

    Parameters
    ----------
    settings : Settings
    store : Store
        For running jobs, which may wait long for the database.
    hurried : Store
        The same database for requests, which must not wait long.
    registry : Registry
    trainer : Engine
        Engine that trains; it needs no device.

    Raises
    ------
    StoreError
    """

    def __init__(self, settings: Settings, store: Store, hurried: Store, registry: Registry, trainer: Engine) -> None:
        self.models = SharedModels(registry, hurried.engine)
        self._registry, self._trainer = registry, trainer
        self.jobs = ToldJobs(hurried, self.models)
        self._running = Jobs(store)
        self._settings = settings
        self._store = store
        self._devices: set[str] = set()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._runners = [self._runner({JobKind.RETRAIN: training(trainer, self.models, settings)})]
        self._follower = threading.Thread(target=self._follow, name="models", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self.models.join()
        self._runners[0].start()
        self._follower.start()

    def offer(self, engine: AnyEngine, device: Device) -> None:
        """Also run the jobs that must be measured on this device."""
        work = measuring(engine, device, self._store, self._settings)
        with self._lock:
            if self._closing.is_set():
                return
            shared = (self._store, self.models, self._registry, self._settings)
            works = {
                JobKind.SWEEP: work,
                JobKind.MEASURE: work,
                JobKind.CALIBRATE: calibrating(engine, device, *shared),
            }
            works[JobKind.REFRESH] = refreshing(engine, device, self._trainer, *shared)
            runner = self._runner(works, lambda: device.id)
            self._runners.append(runner)
            self._devices.add(device.id)
            runner.start()

    def close(self) -> None:
        """Stop; running jobs go back to the queue."""
        with self._lock:
            self._closing.set()
        for runner in self._runners:
            runner.close()
        if self._follower.is_alive():
            self._follower.join(_CLOSE_S)

    def submit(
        self, kind: JobKind, request: dict[str, Any], *, device_id: str | None = None, key: Key | None = None
    ) -> Job:
        """Queue a job, unless one with this key exists.

        Parameters
        ----------
        device_id : str, optional
            The device that must run it.

        Raises
        ------
        KeyReused, QueueFull, StoreError
        """
        before = self.jobs.find(key) if key else None
        if before:
            return before
        is_here = device_id is None or device_id in self._devices
        message = "" if is_here else f"no worker of {device_id} is at this server: it waits for a server that has one"
        most = self._settings.max_queue
        job = self.jobs.create(kind, request, device_id=device_id, key=key, message=message, most=most)
        for runner in self._runners:
            runner.wake()
        return job

    def cancel(self, job_id: str) -> Job:
        """Cancel a queued or running job, of this server or another; a finished one stays as it is.

        Raises
        ------
        UnknownJob, StoreError
        """
        job = self.jobs.cancel(job_id)
        if job.state is JobState.CANCELLED:
            for runner in self._runners:
                runner.stop(job_id)
        return job

    def _runner(self, works: Mapping[JobKind, Work], device_id: Callable[[], str | None] = lambda: None) -> JobRunner:
        lease_s = self._settings.job_lease_s
        return JobRunner(self._running, works, device_id=device_id, lease_s=lease_s, on_finished=self._on_finished)

    def _on_finished(self, job: Job) -> None:
        log.info("job %s (%s) has %s", job.id, job.kind, job.state)

    def _follow(self) -> None:
        is_well = True
        while not self._closing.wait(FOLLOW_S):
            try:
                self.models.follow()
                is_well = True
            except ConvAdvisorError as error:
                if is_well:
                    log.warning("trees of other processes go unnoticed: %s", error)
                is_well = False
