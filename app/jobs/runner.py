"""Runs jobs: claims one at a time from the database, renews its lease, and stops it if it is cancelled or lost."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from conv_advisor.app.jobs.job import Job, JobKind, JobLost
from conv_advisor.app.jobs.leases import BEAT_S, LONGEST_PAUSE_S
from conv_advisor.app.jobs.table import STOPPED, Effect, Jobs
from conv_advisor.app.workers.child import WorkerKilled
from conv_advisor.app.workers.engine import Engine
from conv_advisor.data.errors import ConvAdvisorError, DeadlineExceeded, StoreError, WorkerDied, WorkerError

log = logging.getLogger(__name__)

LEASE_S: Final = 10.0
"""How long a job of a killed server waits for another."""
_BEATS_A_LEASE: Final = 10
_POLL_S: Final = 1.0
"""How long a job that another process has queued may wait."""
_PROGRESS_EVERY_S: Final = 0.25
_CLOSE_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True)
class Done:
    """The result of a job, and its effect on the database as it ends."""

    result: dict[str, Any]
    effect: Effect | None = None


class Held:
    """A job that a runner holds.

    Parameters
    ----------
    jobs : Jobs
    job : Job

    Attributes
    ----------
    stopping : threading.Event
        Set once the job is cancelled or lost, or its service stops.
    why_stopped : str
        What the job says if it is stopped and still this runner's.
    said : str or None
        Its last report, whether it was noted or skipped.
    """

    def __init__(self, jobs: Jobs, job: Job) -> None:
        self.job = job
        self.stopping = threading.Event()
        self.why_stopped = STOPPED
        self.said: str | None = None
        self._jobs = jobs
        self._noted_at = 0.0
        self._is_noting = True
        self._lock = threading.Lock()
        self._cancel: Callable[[], object] | None = None

    def note(self, fraction: float, message: str) -> None:
        """Report progress; reports that come too fast to be read are skipped.

        What the database cannot take is logged once until it can: a full disk has no room for more, nor is it the
        job's end.
        """
        self.said = message
        if time.monotonic() - self._noted_at < _PROGRESS_EVERY_S:
            return
        self._noted_at = time.monotonic()
        try:
            self._jobs.note_progress(self.job, fraction, message)
            self._is_noting = True
        except StoreError as error:
            if self._is_noting:
                log.warning("progress of job %s cannot be noted: %s", self.job.id, error)
            self._is_noting = False

    def guard(self, connection: Connection) -> None:
        """Let a transaction pass only while the job is still held; see `Jobs.confirm`."""
        self._jobs.confirm(self.job, connection)

    def check(self) -> None:
        """Raise if the job must stop.

        Raises
        ------
        JobLost
        """
        if self.stopping.is_set():
            raise JobLost(self.job.id)

    @contextmanager
    def within(self, deadline_s: float, what_stays: str) -> Iterator[None]:
        """Stop the job's task after `deadline_s`; the error says what remains of it.

        Raises
        ------
        DeadlineExceeded
        """
        has_overrun = threading.Event()

        def end() -> None:
            has_overrun.set()
            self.stop()

        timer = threading.Timer(deadline_s, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (CancelledError, JobLost):
            if has_overrun.is_set():
                raise DeadlineExceeded(
                    f"the job took longer than {deadline_s:g} s, and was stopped; {what_stays}"
                ) from None
            raise
        finally:
            timer.cancel()

    def run(self, engine: Engine, task: Callable[..., Any], *args: Any, deadline_s: float) -> Any:
        """Run one task of the job on an engine and wait for it; it is stopped with the job.

        Raises
        ------
        JobLost, CancelledError, ConvAdvisorError
        """
        self.check()
        future = engine.submit(task, *args, deadline_s=deadline_s, on_progress=self.note)
        with self._lock:
            self._cancel = future.cancel
        if self.stopping.is_set():
            future.cancel()
        return future.result()

    def stop(self, why: str = STOPPED) -> None:
        """Stop the job's task; the first reason stands."""
        if not self.stopping.is_set():
            self.why_stopped = why
        self.stopping.set()
        with self._lock:
            cancel = self._cancel
        if cancel:
            cancel()


Work = Callable[[Held], Done]
"""The work of a kind of job, on the runner's thread."""


class JobRunner:
    """Runs jobs of some kinds, one after the other.

    Parameters
    ----------
    jobs : Jobs
    works : mapping of JobKind to Work
        The kinds that it can run, and their work.
    device_id : callable () -> str or None, optional
        The device that it can offer now; jobs of another device are left to other runners.
    lease_s : float
    on_finished : callable (job), optional
        Called on the runner's thread once a job is in a final state.
    """

    def __init__(
        self,
        jobs: Jobs,
        works: Mapping[JobKind, Work],
        *,
        device_id: Callable[[], str | None] = lambda: None,
        lease_s: float = LEASE_S,
        on_finished: Callable[[Job], None] | None = None,
    ) -> None:
        self.owner = f"{socket.gethostname()[:40]}:{os.getpid()}:{secrets.token_hex(3)}"
        self._jobs = jobs
        self._works = works
        self._device_id = device_id
        self._lease_s = lease_s
        self._on_finished = on_finished
        self._wake = threading.Event()
        self._is_closed = False
        self._lock = threading.Lock()
        self._held: Held | None = None
        self._held_up = ""
        self._thread = threading.Thread(target=self._loop, name=f"jobs {' '.join(works)}", daemon=True)

    def start(self) -> None:
        """Start, with queued jobs and with those of a killed service once their lease ends."""
        self._thread.start()

    def wake(self) -> None:
        """Look for jobs now."""
        self._wake.set()

    def stop(self, job_id: str) -> None:
        """Stop a cancelled job if it runs here, without waiting for its next renewal."""
        with self._lock:
            if self._held and self._held.job.id == job_id:
                self._held.stop()

    def close(self) -> None:
        """Stop; a running job goes back to the queue, for another server or the next start of this one."""
        self._is_closed = True
        self._wake.set()
        with self._lock:
            if self._held:
                self._held.stop()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _loop(self) -> None:
        while not self._is_closed:
            self._wake.clear()
            try:
                job = self._jobs.claim(self.owner, self._lease_s, kinds=self._works, device_id=self._device_id())
                self._say_held_up("")
                if job:
                    self._run(job)
                    continue
            except ConvAdvisorError as error:
                self._say_held_up(str(error))
            except Exception:
                log.exception("jobs are held up")
            self._wake.wait(_POLL_S)

    def _say_held_up(self, why: str) -> None:
        """Log once that jobs wait and why, and once that they go on: a full disk has no room for a line a second."""
        if why != self._held_up:
            self._held_up = why
            if why:
                log.error("jobs are held up: %s", why)
            else:
                log.info("jobs go on")

    def _run(self, job: Job) -> None:
        held, is_done = Held(self._jobs, job), threading.Event()
        with self._lock:
            self._held = held
            if self._is_closed:
                held.stop()
        beat = threading.Thread(target=self._keep, args=(held, is_done), name=f"lease {job.id}", daemon=True)
        beat.start()
        try:
            self._work(held)
        finally:
            with self._lock:
                self._held = None
            is_done.set()
            beat.join()
        if self._on_finished and (ended := self._jobs.get(job.id)).state.is_final:
            self._on_finished(ended)

    def _work(self, held: Held) -> None:
        jobs, job = self._jobs, held.job
        try:
            done = self._works[job.kind](held)
            jobs.succeed(job, done.result, done.effect, held.said)
        except (CancelledError, JobLost):  # cancelled or claimed by another, as recorded; or stopped here
            jobs.release(job, held.why_stopped)
        except WorkerKilled as error:
            pause_s = min(float(job.attempt), LONGEST_PAUSE_S)
            jobs.release(job, f"attempt {job.attempt} was interrupted: {error}", pause_s=pause_s)
        except (WorkerDied, StoreError) as error:
            jobs.interrupt(job, error)
        except ConvAdvisorError as error:
            jobs.fail(job, error)
        except Exception as unforeseen:
            log.exception("%s %s failed", job.kind, job.id)
            jobs.fail(job, WorkerError(f"{type(unforeseen).__name__}: {unforeseen}"))

    def _keep(self, held: Held, is_done: threading.Event) -> None:
        """Renew the lease until the job is done; stop the job if the lease cannot be renewed in time."""
        renewed_at = time.monotonic()
        while not is_done.wait(min(self._lease_s / _BEATS_A_LEASE, BEAT_S)):
            try:
                if not self._jobs.renew(held.job, self._lease_s):
                    held.stop()
                    return
                renewed_at = time.monotonic()
            except ConvAdvisorError as error:
                log.warning("the lease of job %s cannot be renewed: %s", held.job.id, error)
                if time.monotonic() - renewed_at >= self._lease_s:  # another runner may have it by now
                    why = f"its lease could not be renewed for {self._lease_s:g} s: {error}"
                    held.stop(f"attempt {held.job.attempt} was interrupted: {why}")
                    return
