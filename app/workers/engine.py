"""The only access to a device: jobs queue here, and a supervised child process runs them one at a time."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, TypeVar

from conv_advisor.app.workers import tasks
from conv_advisor.app.workers.any_engine import EngineState
from conv_advisor.app.workers.child import Child, JobNotTaken, OnProgress, task_name
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import ConvAdvisorError, QueueFull, WorkerDied, WorkerError

log = logging.getLogger(__name__)

T = TypeVar("T")

NO_DEVICE: Final = "none"
"""Device id of an engine whose worker opens no device: it trains. Its child starts with its first job."""
DEFAULT_OPENER: Final = "conv_advisor.kernels.bench:open_runner"
_IDLE_CHECK_S: Final = 1.0
_CLOSE_TIMEOUT_S: Final = 10.0


@dataclass(eq=False)
class _Job:
    task: Callable[..., Any]
    args: tuple[Any, ...]
    deadline_s: float
    on_progress: OnProgress | None
    future: Future[Any] = field(default_factory=Future)


class Engine:
    """Runs jobs one at a time in a supervised child process.

    Parameters
    ----------
    device_id : str
        ``cpu``, ``cuda:0`` ..., or `NO_DEVICE`.
    max_queue : int
        Jobs that may wait.
    start_timeout_s : float
        Longest start of a child.
    has_spare : bool
        Keep a second child, its imports done, that takes over at once. It starts once the engine has been idle for a
        moment, so that it delays no start, or with the first task. A sweep keeps none: its start disturbs timings.
    opener : str
        ``module:function`` that opens the device, as `kernels.bench.open_runner` does; tests name a fake.
    """

    def __init__(
        self,
        device_id: str,
        *,
        max_queue: int = 64,
        start_timeout_s: float = 60.0,
        has_spare: bool = True,
        opener: str = DEFAULT_OPENER,
    ) -> None:
        self.device_id = device_id
        self._max_queue = max_queue
        self._start_timeout_s = start_timeout_s
        self._has_device = device_id != NO_DEVICE
        self._has_spare = has_spare and self._has_device
        self._opener = opener
        self._changed = threading.Condition(threading.RLock())
        self._waiting: deque[_Job] = deque()
        self._running: tuple[_Job, Child] | None = None
        self._child: Child | None = None
        self._spare: Child | None = None
        self._is_used = False
        self._is_settled = False
        self._state = EngineState.STARTING if self._has_device else EngineState.IDLE
        self._restarts = 0
        self._is_suspect = False
        # Children are started on this one thread: on Linux a child ends with the thread that started it.
        self._supervisor = threading.Thread(target=self._supervise, name=f"engine {device_id}", daemon=True)
        self._supervisor.start()

    def submit(
        self, task: Callable[..., T], *args: Any, deadline_s: float, on_progress: OnProgress | None = None
    ) -> Future[T]:
        """Queue one job.

        Parameters
        ----------
        task : callable
            A module-level function, as in `app.workers.tasks`; it, its arguments and its result must pickle.
        deadline_s : float
            Limit counted from the start of its run; after it, the process is killed.
        on_progress : callable (fraction, message)
            Called on the engine's thread.

        Returns
        -------
        future : Future
            It raises the task's own ConvAdvisorError, DeadlineExceeded, WorkerDied, or WorkerError around anything
            unforeseen. Its ``cancel()`` works until the job is done: the process of a running one is killed.

        Raises
        ------
        QueueFull
        WorkerError
            The engine is closed.
        """
        job = _Job(task, args, deadline_s, on_progress)
        with self._changed:
            if self._state is EngineState.CLOSED:
                raise WorkerError(f"the engine of {self.device_id} is closed")
            if len(self._waiting) >= self._max_queue:
                raise QueueFull(f"{counted(len(self._waiting), 'job waits', 'jobs wait')} for {self.device_id} already")
            self._waiting.append(job)
            self._changed.notify_all()
        job.future.add_done_callback(self._drop_cancelled)
        return job.future

    def run(self, task: Callable[..., T], *args: Any, deadline_s: float, on_progress: OnProgress | None = None) -> T:
        """Submit one job and wait for its result; an interrupted wait cancels it."""
        future = self.submit(task, *args, deadline_s=deadline_s, on_progress=on_progress)
        try:
            return future.result()
        finally:
            future.cancel()

    @property
    def state(self) -> EngineState:
        """What the worker is doing now."""
        return self._state

    @property
    def is_alive(self) -> bool:
        """Whether a job would be taken at once, or is being run."""
        child = self._child
        is_up = self._state in (EngineState.IDLE, EngineState.BUSY)
        return is_up and (not self._has_device or (child is not None and child.is_alive))

    @property
    def queued(self) -> int:
        """Jobs that wait."""
        return len(self._waiting)

    @property
    def restarts(self) -> int:
        """How often a child took over from one that ended."""
        return self._restarts

    @property
    def pid(self) -> int | None:
        """Process id of the child; None where there is none."""
        child = self._child
        return child.pid if child else None

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait for the end of the first start; False where it takes longer or fails."""
        with self._changed:
            self._changed.wait_for(lambda: self._state is not EngineState.STARTING, timeout_s)
        return self.is_alive

    def close(self) -> None:
        """Cancel everything and end the children; never hangs, and may be called twice."""
        with self._changed:
            self._state = EngineState.CLOSED
            jobs = [*self._waiting, *([self._running[0]] if self._running else [])]
            for child in (self._child, self._spare):
                if child:
                    child.kill()
            self._changed.notify_all()
        for job in jobs:
            job.future.cancel()
        self._supervisor.join(_CLOSE_TIMEOUT_S)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drop_cancelled(self, future: Future[Any]) -> None:
        """Take a cancelled job out of the queue, or out of the child that runs it.

        A future keeps its callbacks: a callback that held the job would keep the job's tensors in memory until the
        next garbage collection.
        """
        if not future.cancelled():
            return
        with self._changed:
            waiting = next((job for job in self._waiting if job.future is future), None)
            if waiting:
                self._waiting.remove(waiting)
                future.set_running_or_notify_cancel()
            elif self._running and self._running[0].future is future:
                self._running[1].kill()

    def _supervise(self) -> None:
        while self._state is not EngineState.CLOSED:
            if self._has_device:
                self._keep_children()  # a child that is down is tried again here: readiness checks send no job
            job = self._next_job()
            if job:
                self._execute(job)
            elif self._state is EngineState.IDLE:
                self._is_settled = True
            del job  # free it now: the next may be long in coming
        for child in (self._child, self._spare):
            if child:
                child.bury()

    def _keep_children(self) -> None:
        was_down = self._state is EngineState.DOWN
        try:
            self._ready_child()
        except WorkerError as error:
            if self._state is not EngineState.CLOSED and not was_down:
                log.error("the worker of %s does not start: %s", self.device_id, error)  # noqa: TRY400 - expected: no traceback

    def _next_job(self) -> _Job | None:
        """The next job; None once in a while, so that a child that died while idle is replaced."""
        with self._changed:
            if not self._waiting and self._state is not EngineState.CLOSED:
                self._changed.wait(_IDLE_CHECK_S)
            return self._waiting.popleft() if self._waiting else None

    def _execute(self, job: _Job) -> None:
        result, error = None, None
        try:
            result = self._run_on_child(job)
        except ConvAdvisorError as expected:
            error = expected
        except Exception as unforeseen:
            log.exception("%s failed", task_name(job.task))
            error = WorkerError(f"{task_name(job.task)} failed: {unforeseen!r}")
        with self._changed:
            self._running = None
        if self._child and not self._has_device:
            self._child.kill()  # training leaves much memory behind
        if self._state is EngineState.BUSY:
            is_ready = not self._has_device or (self._child is not None and self._child.is_alive)
            self._enter(EngineState.IDLE if is_ready else EngineState.STARTING)
        settle(job.future, result, error)

    def _run_on_child(self, job: _Job) -> Any:
        try:
            return self._try(job)
        except JobNotTaken:  # the child died while idle, and the job has not begun
            return self._try(job)

    def _try(self, job: _Job) -> Any:
        self._is_used |= job.task is not tasks.describe_device
        child = self._ready_child()
        with self._changed:
            self._enter(EngineState.BUSY)
            self._running = (job, child)
            if job.future.cancelled():
                return None
        return child.run(job.task, job.args, job.deadline_s, job.on_progress)

    def _ready_child(self) -> Child:
        """The child, its start awaited, with a spare beside it where one is kept.

        Raises
        ------
        WorkerError
            It does not start.
        """
        child = self._child
        if child is None or not child.is_alive:
            child = self._take_over()
        if self._has_spare and (self._is_used or self._is_settled):
            self._ready_spare()
        return child

    def _ready_spare(self) -> None:
        """Start a spare where there is none; a warm one, which takes much memory, only after the first task."""
        spare = self._spare
        if spare and spare.is_alive and (spare.is_warm or not self._wants_warm):
            return
        if spare:
            spare.kill()
            spare.bury()
        with self._changed:
            self._spare = self._start_child()

    @property
    def _wants_warm(self) -> bool:
        return self._is_used and self.device_id == "cpu"

    def _take_over(self) -> Child:
        """Replace a child that ended by the spare, or else by a new one."""
        self._enter(EngineState.STARTING)
        ended = self._child
        try:
            with self._changed:
                self._child = None
                child = self._spare if self._spare and self._spare.is_alive else self._start_child()
                if child is self._spare:
                    self._spare = None
                self._child = child
        finally:
            if ended:
                ended.bury()
                self._restarts += 1
                self._is_suspect = True
        try:
            child.await_start(self._start_timeout_s)
            if self._is_suspect and self._has_device:
                self._open_device(child)
        except WorkerError:
            self._child = None
            self._enter(EngineState.DOWN)
            raise
        self._enter(EngineState.IDLE)
        return child

    def _open_device(self, child: Child) -> None:
        """Open the device: the end of the last child may have made it unusable, and the next job needs it anyway.

        Raises
        ------
        WorkerError
            It does not open.
        """
        try:
            child.run(tasks.describe_device, (), self._start_timeout_s, None)
        except ConvAdvisorError as error:
            child.bury()
            raise WorkerError(f"{self.device_id} cannot be opened again: {error}") from error
        self._is_suspect = False

    def _start_child(self) -> Child:
        # Called under the lock: close() either came before, and no child starts, or comes after, and kills it.
        if self._state is EngineState.CLOSED:
            raise WorkerError(f"the engine of {self.device_id} is closed")
        try:
            return Child(self.device_id, self._opener, is_warm=self._wants_warm)
        except OSError as error:
            self._enter(EngineState.DOWN)
            raise WorkerDied(f"no worker process can be started: {error}") from error

    def _enter(self, state: EngineState) -> None:
        with self._changed:
            if self._state is not EngineState.CLOSED:
                self._state = state
            self._changed.notify_all()


def resolve_device(device: str, *, start_timeout_s: float = 60.0) -> str:
    """``cpu`` or ``cuda:N``; for ``auto``, ``cuda:0`` where a process of its own can use it."""
    if device != "auto":
        return device
    with Engine(NO_DEVICE, start_timeout_s=start_timeout_s) as engine:
        return engine.run(tasks.find_device, deadline_s=start_timeout_s)


def settle(future: Future[Any], result: Any, error: BaseException | None) -> None:
    """Give a future its result or its error, unless it was cancelled.

    The error loses its traceback: its frames hold the job, and with it the future that holds the error.
    """
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(result)
    else:
        error.__traceback__ = error.__context__ = None
        future.set_exception(error)
