"""The access to a cluster, as `app.workers.engine.Engine` is that to one device of this host."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from conv_advisor.app.settings import Settings
from conv_advisor.app.workers.any_engine import EngineState
from conv_advisor.app.workers.child import JobNotTaken, OnProgress, call
from conv_advisor.app.workers.cluster.lane import Job, Lane
from conv_advisor.app.workers.cluster.link import Link, link_from
from conv_advisor.app.workers.engine import settle
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import QueueFull, WorkerError
from conv_advisor.data.measurement import Device

if TYPE_CHECKING:
    from distributed import Client

log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_S: Final = 0.5
_ANSWER_S: Final = 5.0
"""Longest wait for an answer of the scheduler."""
_KNOCK_S: Final = 2.0
"""Longest wait for the scheduler to take a connection."""
_CLOSE_TIMEOUT_S: Final = 10.0
_MAX_TRIES: Final = 2
"""How often a job is handed out if workers end before they take it."""
_LARGE_BYTES: Final = "1 GiB"
"""Size from which Dask warns: jobs carry their tensors, and its default, 10 MB, would warn of usual ones."""


class ClusterEngine:
    """Runs jobs on the workers of a Dask cluster that have one kind of device, one at a time on each.

    Parameters
    ----------
    link : Link
    device : str
        ``cpu``: workers on CPUs; ``cuda:N``: on GPUs; ``auto``: on GPUs if any of the first workers seen has one.
        The first such worker that answers decides the device; workers with another device get no jobs.
    max_queue : int
        Jobs that may wait.
    start_timeout_s : float
        How long jobs wait while there is no worker.
    """

    def __init__(self, link: Link, *, device: str = "auto", max_queue: int = 64, start_timeout_s: float = 60.0) -> None:
        self.device_id = link.address
        self.start_timeout_s = start_timeout_s
        self.topic = f"conv-advisor-{secrets.token_hex(8)}"
        self._link = link
        self._resource = {"auto": "", "cpu": "CPU"}.get(device, "GPU")
        self._max_queue = max_queue
        self._changed = threading.Condition(threading.RLock())
        self._waiting: deque[Job] = deque()
        self._lanes: dict[str, Lane] = {}
        self._device: Device | None = None
        self._client: Client | None = None
        self._problem = "no worker has joined"
        self._is_unanswered = False
        self._nobody_since = time.monotonic()
        self._n_lost = 0
        self._closing = threading.Event()
        self._notices = ThreadPoolExecutor(1, "cluster-progress")
        self._watcher = threading.Thread(target=self._watch, name=f"engine {self.device_id}", daemon=True)
        self._watcher.start()

    def submit(
        self, task: Callable[..., T], *args: Any, deadline_s: float, on_progress: OnProgress | None = None
    ) -> Future[T]:
        """Queue one job, exactly as `app.workers.engine.Engine.submit` does.

        Raises
        ------
        QueueFull
        WorkerError
            The engine is closed.
        """
        return self._queue(task, args, deadline_s, on_progress)

    def run(self, task: Callable[..., T], *args: Any, deadline_s: float, on_progress: OnProgress | None = None) -> T:
        """Submit one job and wait for its result; an interrupted wait cancels it."""
        future = self.submit(task, *args, deadline_s=deadline_s, on_progress=on_progress)
        try:
            return future.result()
        finally:
            future.cancel()

    def delegate(self, function: Callable[..., T], *args: Any, on_progress: OnProgress | None = None) -> Future[T]:
        """Queue a function that runs beside a worker's device and not in its child; see `node.execute`."""
        return self._queue(function, args, None, on_progress)

    @property
    def state(self) -> EngineState:
        """Busy while no worker is free; down once there has been none for `start_timeout_s`."""
        ready = self._ready()
        if self._closing.is_set():
            return EngineState.CLOSED
        if ready:
            return EngineState.BUSY if all(lane.job for lane in ready) else EngineState.IDLE
        return EngineState.STARTING if self._is_patient() else EngineState.DOWN

    @property
    def is_alive(self) -> bool:
        """Whether there is a worker."""
        return self.n_workers > 0

    @property
    def n_workers(self) -> int:
        """Number of working workers with the engine's device."""
        return 0 if self._closing.is_set() else len(self._ready())

    @property
    def queued(self) -> int:
        """Jobs that wait."""
        return len(self._waiting)

    @property
    def restarts(self) -> int:
        """How many workers have gone."""
        return self._n_lost

    @property
    def pid(self) -> int | None:
        """None: the processes are elsewhere."""
        return None

    def wait_ready(self, timeout_s: float, n_workers: int = 1) -> bool:
        """Wait until so many workers are ready; False where that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self.n_workers >= n_workers or self._closing.is_set(), timeout_s)

    def close(self) -> None:
        """Cancel everything; never hangs, and may be called twice. The workers go on for others."""
        with self._changed:
            self._closing.set()
            lanes = list(self._lanes.values())
            jobs = [*self._waiting, *(lane.job for lane in lanes if lane.job)]
        for job in jobs:
            job.future.cancel()
        until = time.monotonic() + _CLOSE_TIMEOUT_S
        with self._changed:
            for lane in lanes:
                lane.end()
            self._changed.notify_all()
        self._watcher.join(_CLOSE_TIMEOUT_S)
        for lane in lanes:
            lane.join(max(until - time.monotonic(), 0.1))
        self._notices.shutdown(wait=False, cancel_futures=True)
        self._disconnect()

    def __enter__(self) -> ClusterEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def admit(self, lane: Lane, device: Device) -> bool:
        """Whether a lane's device is that of this engine, which the first lane decides."""
        with self._changed:
            first = self._device = self._device or device
            if device.fingerprint == first.fingerprint:
                self._changed.notify_all()
                return True
        log.warning(
            "the worker at %s gets nothing: it has %s, and the others %s", lane.address, device.name, first.name
        )
        return False

    def next_job(self, lane: Lane) -> Job | None:
        """Wait for a job; None when the lane is over."""
        with self._changed:
            lane.job = None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or lane.is_over)
            if lane.is_over:
                return None
            lane.job = self._waiting.popleft()
            return lane.job

    def settle(self, lane: Lane, job: Job, value: Any, error: BaseException | None) -> None:
        """Take the result of a job; a job that had not begun goes to another worker."""
        with self._changed:
            lane.job = None
            job.n_tries += 1
            if isinstance(error, JobNotTaken) and job.n_tries < _MAX_TRIES and not self._closing.is_set():
                self._waiting.appendleft(job)
                self._changed.notify_all()
                return
        if not self._closing.is_set():
            self._notices.submit(int).result()  # all progress is reported before the end
        settle(job.future, value, error)

    def _queue(
        self, task: Callable[..., T], args: tuple[Any, ...], deadline_s: float | None, on_progress: OnProgress | None
    ) -> Future[T]:
        try:
            job = Job.of(task, args, deadline_s, on_progress)
        except WorkerError as error:
            failed: Future[T] = Future()
            failed.set_exception(error)
            return failed
        with self._changed:
            if self._closing.is_set():
                raise WorkerError(f"the engine of {self.device_id} is closed")
            if deadline_s is not None and len(self._waiting) >= self._max_queue:
                raise QueueFull(f"{counted(len(self._waiting), 'job waits', 'jobs wait')} for {self.device_id} already")
            self._waiting.append(job)
            self._changed.notify_all()
        job.future.add_done_callback(self._drop_cancelled)
        return job.future

    def _drop_cancelled(self, future: Future[Any]) -> None:
        """Take a cancelled job out of the queue, or out of its worker; the callback holds no job, as in `Engine`."""
        if not future.cancelled():
            return
        with self._changed:
            waiting = next((job for job in self._waiting if job.future is future), None)
            if waiting:
                self._waiting.remove(waiting)
                future.set_running_or_notify_cancel()
            for lane in self._lanes.values():
                if lane.job and lane.job.future is future:
                    lane.wake()

    def _ready(self) -> list[Lane]:
        with self._changed:
            return [lane for lane in self._lanes.values() if lane.is_ready]

    def _is_patient(self) -> bool:
        return time.monotonic() < self._nobody_since + self.start_timeout_s

    def _watch(self) -> None:
        while not self._closing.is_set():
            self._keep_lanes(self._find_workers())
            self._fail_the_waiting()
            self._closing.wait(_POLL_S)

    def _find_workers(self) -> set[str]:
        """Addresses of the workers with the wanted kind of device; empty where the scheduler does not answer."""
        try:
            if self._client is None or self._client.status != "running":
                self._disconnect()
                self._client = self._connect()
            identity = self._client.scheduler.identity
            workers = self._client.sync(identity, n_workers=-1, callback_timeout=_ANSWER_S)["workers"]
        except Exception as error:  # of Dask, of TLS, of the network: any of them may be gone at the next look
            self._problem = f"no scheduler answers: {error or type(error).__name__}"
            self._is_unanswered = True
            return set()
        self._is_unanswered = False
        kinds = [kind for kind in ("GPU", "CPU") if any(kind in worker["resources"] for worker in workers.values())]
        self._resource = self._resource or (kinds[0] if kinds else "")
        self._problem = f"no worker with a {self._resource} has joined" if self._resource else "no worker has joined"
        return {address for address, worker in workers.items() if self._resource in worker["resources"]}

    def _keep_lanes(self, addresses: set[str]) -> None:
        """A lane for every worker, and none for those that have gone."""
        with self._changed:
            for address in set(self._lanes) - addresses:
                self._lanes.pop(address).end()
                self._n_lost += not self._closing.is_set()
            for address in addresses - set(self._lanes):
                if self._client and not self._closing.is_set():
                    self._lanes[address] = Lane(self._client, address, self._resource, self)
            if self._ready():
                self._nobody_since = time.monotonic()
            self._changed.notify_all()

    def _fail_the_waiting(self) -> None:
        """Fail the waiting jobs once no worker has come for `start_timeout_s`."""
        if self._ready() or self._is_patient():
            return
        with self._changed:
            waiting, self._waiting = list(self._waiting), deque()
            problem = f"of {len(self._lanes)} none has opened its device" if self._lanes else self._problem
        for job in waiting:
            error = f"no worker of {self.device_id} in {self.start_timeout_s:g} s: {problem}"
            is_layer = job.deadline_s is None  # a sweep takes such a job back, and does not blame its layer
            settle(job.future, None, JobNotTaken(error) if is_layer else WorkerError(error))

    def _connect(self) -> Client:
        import dask
        from distributed import Client

        socket.create_connection(
            (self._link.host, self._link.port), _KNOCK_S
        ).close()  # Dask itself would retry for long
        dask.config.set({"distributed.admin.large-graph-warning-threshold": _LARGE_BYTES})
        client = Client(self._link.address, security=self._link.security(), timeout=_ANSWER_S, set_as_default=False)
        client.subscribe_topic(self.topic, self._on_event)
        return client

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client:
            self._keep_lanes(set())  # what was sent through this connection is lost with it
            client.close(timeout=1)

    def _on_event(self, event: tuple[float, dict[str, Any]]) -> None:
        """Note that a job has begun, or how far it is; on Dask's own thread, which must not wait."""
        _, notice = event
        with self._changed:
            job = next((lane.job for lane in self._lanes.values() if lane.job and lane.job.id == notice["job"]), None)
        if job is None:
            return
        job.has_begun = True
        job.is_left = job.is_left or "left" in notice
        if job.on_progress and "fraction" in notice and not self._closing.is_set():
            self._notices.submit(call, job.on_progress, notice["fraction"], notice["message"])


def open_cluster(settings: Settings) -> ClusterEngine:
    """The engine of the cluster that the settings name.

    Raises
    ------
    InvalidInput
    """
    return ClusterEngine(
        link_from(settings),
        device=settings.device,
        max_queue=settings.max_queue,
        start_timeout_s=settings.start_timeout_s,
    )
