"""Background jobs: kept in the database, run by a worker, taken up again after a crash."""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import JSON, Column, DateTime, Float, Integer, String, Table, Text, insert, select, update
from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import SQLAlchemyError

from app.engine import Engine
from data.errors import ConvAdvisorError, StoreError, UnknownJob, WorkerDied
from data.store import METADATA, Store

log = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 3
_POLL_S: Final = 5.0
_PROGRESS_EVERY_S: Final = 0.25
_CLOSE_TIMEOUT_S: Final = 10.0


class JobKind(StrEnum):
    """What a job does; a closed list."""

    RETRAIN = "retrain"


class JobState(StrEnum):
    """Where a job is; a closed list."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether it can still change."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True)
class Job:
    """One job as the database has it.

    Parameters
    ----------
    id : str
        Unguessable.
    kind : JobKind
    state : JobState
    progress : float
        0 to 1.
    message : str
        What is being done.
    request : dict
    result : dict or None
        Once it succeeded.
    error : dict or None
        Once it failed: type, title, detail.
    attempt : int
        How often it was started.
    created_at, started_at, finished_at : datetime
        UTC; None where it has not happened.
    """

    id: str
    kind: JobKind
    state: JobState
    progress: float
    message: str
    request: dict[str, Any]
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    attempt: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


JOBS: Final = Table(
    "jobs",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("id", String(32), nullable=False, unique=True),
    Column("kind", String(32), nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("progress", Float, nullable=False, default=0.0),
    Column("message", Text, nullable=False, default=""),
    Column("request", JSON, nullable=False),
    Column("result", JSON),
    Column("error", JSON),
    Column("attempt", Integer, nullable=False, default=0),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("started_at", DateTime(timezone=True)),
    Column("finished_at", DateTime(timezone=True)),
)


class Jobs:
    """The jobs of one store.

    A write to a running job names its attempt, so whoever still works on an earlier attempt changes nothing.
    """

    def __init__(self, store: Store) -> None:
        self._engine = store.engine
        store.create_tables()

    def create(self, kind: JobKind, request: dict[str, Any]) -> Job:
        """Queue a job."""
        job_id = secrets.token_urlsafe(16)
        with self._begin() as connection:
            values = {"id": job_id, "kind": kind, "state": JobState.QUEUED, "request": request}
            connection.execute(insert(JOBS).values(**values, created_at=datetime.now(UTC)))
        return self.get(job_id)

    def get(self, job_id: str) -> Job:
        """The job of this id.

        Raises
        ------
        UnknownJob
        """
        with self._begin() as connection:
            row = connection.execute(select(JOBS).where(JOBS.c.id == job_id)).one_or_none()
        if row is None:
            raise UnknownJob(job_id)
        return _job(row)

    def list(self, limit: int = 100) -> tuple[Job, ...]:
        """The newest jobs, newest first."""
        with self._begin() as connection:
            rows = connection.execute(select(JOBS).order_by(JOBS.c.number.desc()).limit(limit)).all()
        return tuple(_job(row) for row in rows)

    def claim(self) -> Job | None:
        """Start the oldest queued job; None where none waits."""
        oldest = select(JOBS.c.id).where(JOBS.c.state == JobState.QUEUED).order_by(JOBS.c.number).limit(1)
        with self._begin() as connection:
            job_id = connection.execute(oldest).scalar()
            if job_id is None:
                return None
            started = {"state": JobState.RUNNING, "attempt": JOBS.c.attempt + 1, "started_at": datetime.now(UTC)}
            claimed = connection.execute(
                update(JOBS).where(JOBS.c.id == job_id, JOBS.c.state == JobState.QUEUED).values(**started)
            )
        return self.get(job_id) if claimed.rowcount else None

    def note_progress(self, job: Job, fraction: float, message: str) -> None:
        """Say how far a running job is."""
        self._change(job, progress=min(max(fraction, 0.0), 1.0), message=message)

    def succeed(self, job: Job, result: dict[str, Any]) -> None:
        """End a running job with its result."""
        self._change(job, state=JobState.SUCCEEDED, progress=1.0, result=result, finished_at=datetime.now(UTC))

    def fail(self, job: Job, error: ConvAdvisorError) -> None:
        """End a running job with its error."""
        self._change(job, state=JobState.FAILED, error=_problem(error), finished_at=datetime.now(UTC))

    def interrupt(self, job: Job, reason: WorkerDied) -> None:
        """Queue a running job whose worker is gone once more, or fail it after `MAX_ATTEMPTS` attempts."""
        if job.attempt >= MAX_ATTEMPTS:
            self.fail(job, WorkerDied(f"given up after {job.attempt} attempts; the last one: {reason}"))
        else:
            message = f"attempt {job.attempt} was interrupted: {reason}"
            self._change(job, state=JobState.QUEUED, progress=0.0, message=message)

    def cancel(self, job_id: str) -> Job:
        """Cancel a job that is not finished; the job as it then is.

        Raises
        ------
        UnknownJob
        """
        unfinished = (JobState.QUEUED, JobState.RUNNING)
        with self._begin() as connection:
            connection.execute(
                update(JOBS)
                .where(JOBS.c.id == job_id, JOBS.c.state.in_(unfinished))
                .values(state=JobState.CANCELLED, finished_at=datetime.now(UTC))
            )
        return self.get(job_id)

    def recover(self) -> tuple[Job, ...]:
        """Take up what a killed service left running; those jobs, as they then are."""
        with self._begin() as connection:
            rows = connection.execute(select(JOBS).where(JOBS.c.state == JobState.RUNNING)).all()
        for row in rows:
            self.interrupt(_job(row), WorkerDied("the service ended"))
        return tuple(self.get(row.id) for row in rows)

    def _change(self, job: Job, **values: Any) -> None:
        is_ours = (JOBS.c.id == job.id, JOBS.c.attempt == job.attempt, JOBS.c.state == JobState.RUNNING)
        with self._begin() as connection:
            connection.execute(update(JOBS).where(*is_ours).values(**values))

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StoreError(f"the jobs cannot be read or written: {error}") from error


Task = Callable[[dict[str, Any]], dict[str, Any]]
"""What a kind of job does, in a worker process: takes the job's request, gives its result; must pickle."""


class JobRunner:
    """Runs queued jobs one after the other on an engine of their own.

    Parameters
    ----------
    jobs : Jobs
    engine : Engine
    tasks : mapping of JobKind to Task
    deadline_s : float
    on_finished : callable (job), optional
        Called on the runner's thread once a job is in a final state.
    """

    def __init__(
        self,
        jobs: Jobs,
        engine: Engine,
        tasks: Mapping[JobKind, Task],
        *,
        deadline_s: float,
        on_finished: Callable[[Job], None] | None = None,
    ) -> None:
        self._jobs = jobs
        self._engine = engine
        self._tasks = tasks
        self._deadline_s = deadline_s
        self._on_finished = on_finished
        self._wake = threading.Event()
        self._is_closed = False
        self._lock = threading.Lock()
        self._running: tuple[str, Future[dict[str, Any]]] | None = None
        self._thread = threading.Thread(target=self._loop, name="jobs", daemon=True)

    def start(self) -> tuple[Job, ...]:
        """Take up what a killed service left, and begin; the jobs taken up."""
        recovered = self._jobs.recover()
        self._thread.start()
        return recovered

    def submit(self, kind: JobKind, request: dict[str, Any]) -> Job:
        """Queue a job."""
        job = self._jobs.create(kind, request)
        self._wake.set()
        return job

    def cancel(self, job_id: str) -> Job:
        """Cancel a job, queued or running; a finished one stays as it is.

        Raises
        ------
        UnknownJob
        """
        job = self._jobs.cancel(job_id)
        with self._lock:
            if self._running and self._running[0] == job_id and job.state is JobState.CANCELLED:
                self._running[1].cancel()
        return job

    def close(self) -> None:
        """Stop; a running job goes back to the queue, for the next start of the service."""
        self._is_closed = True
        self._wake.set()
        with self._lock:
            if self._running:
                self._running[1].cancel()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _loop(self) -> None:
        while not self._is_closed:
            self._wake.clear()
            try:
                job = self._jobs.claim()
                if job:
                    self._run(job)
                    continue
            except ConvAdvisorError:
                log.exception("jobs are held up")
            self._wake.wait(_POLL_S)

    def _run(self, job: Job) -> None:
        note = _throttled(lambda fraction, message: self._jobs.note_progress(job, fraction, message))
        future = self._engine.submit(self._tasks[job.kind], job.request, deadline_s=self._deadline_s, on_progress=note)
        with self._lock:
            self._running = (job.id, future)
            if self._is_closed or self._jobs.get(job.id).state is JobState.CANCELLED:
                future.cancel()
        try:
            self._jobs.succeed(job, future.result())
        except CancelledError:  # by cancel(), which has said so, or by close()
            self._jobs.interrupt(job, WorkerDied("the service was stopped"))
        except WorkerDied as error:
            self._jobs.interrupt(job, error)
        except ConvAdvisorError as error:
            self._jobs.fail(job, error)
        finally:
            with self._lock:
                self._running = None
        ended = self._jobs.get(job.id)
        if ended.state.is_final and self._on_finished:
            self._on_finished(ended)


def _throttled(note: Callable[[float, str], None]) -> Callable[[float, str], None]:
    last = 0.0

    def maybe(fraction: float, message: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _PROGRESS_EVERY_S:
            last = time.monotonic()
            note(fraction, message)

    return maybe


def _problem(error: ConvAdvisorError) -> dict[str, Any]:
    words = re.findall(r"[A-Z][a-z]*", type(error).__name__)
    return {"type": "-".join(words).lower(), "title": " ".join(words).capitalize(), "detail": str(error)}


def _job(row: Row[Any]) -> Job:
    fields = dict(row._mapping)
    del fields["number"]
    for name in ("created_at", "started_at", "finished_at"):
        if fields[name] is not None and fields[name].tzinfo is None:  # SQLite keeps no time zone
            fields[name] = fields[name].replace(tzinfo=UTC)
    return Job(**(fields | {"kind": JobKind(fields["kind"]), "state": JobState(fields["state"])}))
