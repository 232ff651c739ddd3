"""One worker of a cluster as its coordinator sees it: a thread hands it jobs, one at a time, and waits for them."""

from __future__ import annotations

import logging
import pickle
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from conv_advisor.app.workers import tasks
from conv_advisor.app.workers.child import JobNotTaken, OnProgress, WorkerKilled, task_name
from conv_advisor.data.errors import ConvAdvisorError, LaunchFailed, WorkerDied, WorkerError
from conv_advisor.data.measurement import Device

if TYPE_CHECKING:
    from distributed import Client
    from distributed import Future as Task

log = logging.getLogger(__name__)

_INTRODUCE_AGAIN_S: Final = 5.0
_FETCH_TICK_S: Final = 1.0


@dataclass(eq=False)
class Job:
    """One job for whichever worker is free.

    Parameters
    ----------
    name : str
    call : bytes
        The pickled function and arguments.
    deadline_s : float or None
        None: the function runs in the worker itself; see `app.workers.cluster.node.execute`.
    on_progress : callable, optional
    """

    name: str
    call: bytes
    deadline_s: float | None
    on_progress: OnProgress | None = None
    future: Future[Any] = field(default_factory=Future)
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    has_begun: bool = False
    is_left: bool = False
    """Whether its worker was ended from outside."""
    n_tries: int = 0

    @classmethod
    def of(
        cls,
        task: Callable[..., Any],
        args: tuple[Any, ...],
        deadline_s: float | None,
        on_progress: OnProgress | None = None,
    ) -> Job:
        """Pickle the call.

        Raises
        ------
        WorkerError
            It cannot be pickled.
        """
        name = task_name(task)
        try:
            call = pickle.dumps((task, args), pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise WorkerError(f"{name} cannot be sent to the worker: {error}") from error
        return cls(name, call, deadline_s, on_progress)


class Desk(Protocol):
    """Where a lane gets its jobs."""

    topic: str
    start_timeout_s: float

    def admit(self, lane: Lane, device: Device) -> bool:
        """Whether a worker with this device is wanted."""
        ...

    def next_job(self, lane: Lane) -> Job | None:
        """Wait for a job; None when the lane is over."""
        ...

    def settle(self, lane: Lane, job: Job, value: Any, error: BaseException | None) -> None:
        """Take the result of a job."""
        ...


class Lane:
    """One Dask worker, which runs one job at a time.

    Parameters
    ----------
    client : Client
    address : str
        The worker's. Jobs are pinned to it, so that Dask runs none of them twice.
    resource : str
        The Dask resource that the worker has one of, ``GPU`` or ``CPU``.
    desk : Desk
    """

    def __init__(self, client: Client, address: str, resource: str, desk: Desk) -> None:
        self.address = address
        self.job: Job | None = None
        self.is_ready = False
        """Whether the worker has the wanted device, and works."""
        self.is_over = False
        self._is_refused = False
        self._client = client
        self._resource = resource
        self._desk = desk
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"lane {address}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Make the thread look at its job again: it was cancelled."""
        self._wake.set()

    def end(self) -> None:
        """End the lane: the worker is gone, or no longer wanted."""
        self.is_over, self.is_ready = True, False
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(timeout_s)

    def _serve(self) -> None:
        while not self.is_over:
            if not (self.is_ready or (not self._is_refused and self._introduce())):
                self._wake.wait(None if self._is_refused else _INTRODUCE_AGAIN_S)
                self._wake.clear()
                continue
            job = self._desk.next_job(self)
            if job:
                self._execute(job)

    def _introduce(self) -> bool:
        """Ask the worker for its device, which opens it; repeated after a failure: no broken worker takes jobs."""
        job = Job.of(tasks.describe_device, (), self._desk.start_timeout_s)
        try:
            device = self._run(job)
        except ConvAdvisorError as error:
            if not self.is_over:
                log.warning("the worker at %s has no usable device: %s", self.address, error)
            return False
        self._is_refused = not self._desk.admit(self, device)
        self.is_ready = not (self._is_refused or self.is_over)
        return self.is_ready

    def _execute(self, job: Job) -> None:
        value: Any = None
        error: ConvAdvisorError | None = None
        try:
            value = self._run(job)
        except ConvAdvisorError as expected:
            error = expected
            if isinstance(error, WorkerError | LaunchFailed):
                self.is_ready = False
        self._desk.settle(self, job, value, error)

    def _run(self, job: Job) -> Any:
        """Run a job on the worker, and wait for it.

        Raises
        ------
        ConvAdvisorError
            The job's own.
        JobNotTaken, WorkerDied, WorkerError
        """
        from conv_advisor.app.workers.cluster import node

        try:
            task = self._client.submit(
                node.execute,
                *(job.call, job.id, self._desk.topic, job.deadline_s),
                key=f"{job.name}-{job.id}",
                workers=[self.address],
                allow_other_workers=False,
                resources={self._resource: 1},
                retries=0,
                pure=False,
            )
            try:
                task.add_done_callback(lambda _: self._wake.set())
                if not self._await(job, task):
                    return None
                ended = self._fetch(job, task)
            finally:
                task.release()
        except ConvAdvisorError:
            raise
        except Exception as error:
            raise self._translated(job, error) from error
        if ended.error:
            raise ended.error
        return ended.value

    def _await(self, job: Job, task: Task) -> bool:
        """Wait until the task is done; False where the job was cancelled, and so stopped."""
        while not task.done():
            if job.future.cancelled():
                self._stop(job)
                return False
            if self.is_over:
                raise self._lost(job)
            self._wake.wait()
            self._wake.clear()
        return True

    def _fetch(self, job: Job, task: Task) -> Any:
        """Fetch the result; if the worker ended before that, Dask itself would wait for ever."""
        while True:
            try:
                return task.result(timeout=_FETCH_TICK_S)
            except TimeoutError:
                if self.is_over:
                    raise self._lost(job) from None

    def _stop(self, job: Job) -> None:
        from conv_advisor.app.workers.cluster import node

        try:
            self._client.run(node.stop, job.id, workers=[self.address])
        except Exception as error:  # of Dask: the worker ends anyway
            log.warning("%s could not be stopped on %s: %r", job.name, self.address, error)

    def _translated(self, job: Job, error: Exception) -> WorkerError:
        """Our error for one of Dask's, by its type."""
        from distributed import KilledWorker
        from distributed.client import FutureCancelledError

        if isinstance(error, KilledWorker | FutureCancelledError | OSError):
            return self._lost(job)
        return WorkerError(f"the worker at {self.address} cannot run {job.name}: {error!r}")

    def _lost(self, job: Job) -> WorkerDied:
        if job.is_left:
            return WorkerKilled(f"the worker at {self.address} was ended during the job")
        if job.has_begun:
            return WorkerDied(f"the worker at {self.address} ended during the job")
        return JobNotTaken(f"the worker at {self.address} ended before it took the job")
