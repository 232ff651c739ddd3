"""One worker process as its parent sees it: started, driven over its own pipe, and killed when need be."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Pipe
from pickle import PicklingError
from typing import Any, Final

from conv_advisor.app.workers.messages import receive, send
from conv_advisor.data.errors import DeadlineExceeded, WorkerDied, WorkerError

log = logging.getLogger(__name__)

OnProgress = Callable[[float, str], None]
"""Callback of progress: takes the done fraction, 0 to 1, and what is being done."""

_BOOT: Final = "from conv_advisor.app.workers.tasks import main; main()"
_LAST_BREATH_S: Final = 0.2
"""Wait for the exit status of a process whose pipe has closed: it is ending by itself."""
_KILL_TIMEOUT_S: Final = 5.0
_LOOK_S: Final = 1.0
"""Interval at which a stopped process (SIGSTOP) is looked for."""


def task_name(task: Callable[..., Any]) -> str:
    """What to call a task in a message."""
    function = task.func if isinstance(task, partial) else task
    return str(getattr(function, "__name__", function))


class JobNotTaken(WorkerDied):
    """The process ended before it took the job, which has therefore not begun."""


class WorkerKilled(WorkerDied):
    """A signal from outside ended the process during the job; the job did not cause it.

    The kernel's signal where memory runs out counts too: it cannot be told from an operator's.
    """


_SENT_BY_OTHERS: Final = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}
"""Exit statuses of processes that a signal from outside ended."""


class Child:
    """A plain Python process that owns one device.

    Parameters
    ----------
    device_id : str
    opener : str
        ``module:function`` that opens the device.
    is_warm : bool
        Whether the CPU kernels are imported at the start, and not with the first task: a spare is to take over at once.

    Notes
    -----
    Children share nothing, so a killed one leaves no lock or half-written queue to the next. It is no
    `multiprocessing.Process`, which would import the parent's main module again; nor a pool of pebble (5.2), which
    breaks when its idle worker is killed, and takes 3 s to stop one that ignores SIGTERM, as one in a C loop does.
    """

    def __init__(self, device_id: str, opener: str, *, is_warm: bool = True) -> None:
        self.is_warm = is_warm
        self._pipe, theirs = Pipe()
        self._killed_for: WorkerError | None = None
        self._is_killed = False
        self._is_ready = False
        warmth = ["warm"] if is_warm else []
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, on this package
                # -P: the folder it is started in may have its own modules of any name
                [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno()), device_id, opener, *warmth],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a library prints must not end up in a command's output
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs, and was neither killed nor stopped: a stopped process takes no job, and never reports it."""
        return not self._is_killed and not self._has_ended and not self._is_stopped

    @property
    def _has_ended(self) -> bool:
        # Popen.poll says "running" while another thread holds its lock, as polling does.
        return self._is_in(os.WEXITED) if hasattr(os, "waitid") else self._process.poll() is not None

    @property
    def _is_stopped(self) -> bool:
        return hasattr(os, "waitid") and self._is_in(os.WSTOPPED)

    def _is_in(self, state: int) -> bool:
        """Whether it is in this state, ended or stopped; the process is not collected."""
        try:
            return os.waitid(os.P_PID, self.pid, state | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # it has been collected
            return state == os.WEXITED

    def await_start(self, timeout_s: float) -> None:
        """Wait until its imports are done.

        Raises
        ------
        DeadlineExceeded, WorkerDied
        """
        if self._is_ready:
            return
        with self._killed_after(timeout_s, DeadlineExceeded(f"the worker took more than {timeout_s:g} s to start")):
            try:
                self._receive()
            except (EOFError, OSError):
                raise self.bury(moment="while it started") from None
        self._is_ready = True

    def run(
        self, task: Callable[..., Any], args: tuple[Any, ...], deadline_s: float, on_progress: OnProgress | None
    ) -> Any:
        """Run one task to its end.

        Raises
        ------
        ConvAdvisorError
            The task's own.
        DeadlineExceeded, JobNotTaken, WorkerDied
            The process is gone.
        """
        name = task_name(task)
        late = DeadlineExceeded(f"{name} took more than {deadline_s:g} s and was stopped")
        with self._killed_after(deadline_s, late):
            try:
                send(self._pipe, (task, args))
            except (PicklingError, AttributeError, TypeError) as error:
                raise WorkerError(f"{name} cannot be sent to the worker: {error}") from error
            except OSError:
                raise self.bury(JobNotTaken) from None
            return self._listen(on_progress)

    def kill(self, reason: WorkerError | None = None) -> None:
        """Kill it at once; the first reason given stands."""
        self._killed_for = self._killed_for or reason
        self._is_killed = True
        if self._process.poll() is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # it has no session of its own yet, or has just ended
                self._process.kill()

    def bury(self, kind: type[WorkerDied] = WorkerDied, moment: str = "during the job") -> WorkerError:
        """End it, collect it, and return the error that says why it is gone."""
        code = self._collect(_LAST_BREATH_S)
        if code in _SENT_BY_OTHERS and kind is WorkerDied:
            kind = WorkerKilled
        if code is None:
            self.kill()
            code = self._collect(_KILL_TIMEOUT_S)
        if code is None:  # uninterruptible, in a driver: it cannot be collected now
            log.error("worker process %d does not end", self.pid)
        self._is_killed = True
        self._pipe.close()
        return self._killed_for or kind(f"the worker process ended {moment} (exit status {code})")

    def _collect(self, timeout_s: float) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def _listen(self, on_progress: OnProgress | None) -> Any:
        has_taken = False
        while True:
            try:
                kind, *content = self._receive()
            except (EOFError, OSError):
                raise self.bury(WorkerDied if has_taken else JobNotTaken) from None
            match kind:
                case "taken":
                    has_taken = True
                case "progress" if on_progress:
                    call(on_progress, *content)
                case "done":
                    return content[0]
                case "failed":
                    raise content[0]
                case "fatal":
                    self.kill()
                    raise content[0]

    def _receive(self) -> Any:
        """The next message; a process that is stopped meanwhile is killed: it would seem busy until its deadline."""
        while not self._pipe.poll(_LOOK_S):
            if self._is_stopped:
                self.kill()
        return receive(self._pipe)

    @contextmanager
    def _killed_after(self, seconds: float, reason: WorkerError) -> Iterator[None]:
        # A timer, not a timeout of recv: the end of the process frees this thread whatever call it is blocked in.
        timer = threading.Timer(seconds, self.kill, [reason])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def call(on_progress: OnProgress, fraction: float, message: str) -> None:
    """Report progress; an error in the callback is logged and does not fail the job."""
    try:
        on_progress(fraction, message)
    except Exception:
        log.exception("progress could not be noted")
