"""The table of jobs: database rows, leased to their runners, and claimed again when a lease ends."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import and_, case, delete, func, insert, or_, select, update
from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from conv_advisor.app.jobs.job import Job, JobKind, JobLost, JobState, Key
from conv_advisor.app.jobs.leases import Leases
from conv_advisor.data.counting import counted
from conv_advisor.data.database.opening import now_s
from conv_advisor.data.database.tables import JOBS
from conv_advisor.data.errors import ConvAdvisorError, KeyReused, QueueFull, StoreError, UnknownJob, WorkerDied
from conv_advisor.data.store import Store

MAX_ATTEMPTS: Final = 3
"""Attempts that may break off since an attempt last stored something."""
FINISHED_KEPT: Final = 1000
"""Finished jobs that are kept, the last to finish: as many as one page of `GET /v1/jobs` can show."""
STOPPED: Final = "the service was stopped"
_KEPT: Final = -1
"""Interruption count of an attempt that has stored something: breaking off then raises it to 0."""
_NO_KEY: Final = (None, None, "")
_UNFINISHED: Final = (JobState.QUEUED, JobState.RUNNING)
_FINISHED: Final = tuple(state for state in JobState if state.is_final)
_LOCK: Final = 0x6A6F6273
"""The PostgreSQL advisory lock of a transaction that adds a job: without it, two could not count each other's."""

Effect = Callable[[Connection], None]
"""A job's change to the database at its end, in the transaction that marks it as succeeded."""

_IS_FREE: Final = and_(JOBS.c.state.in_(_UNFINISHED), func.coalesce(JOBS.c.lease_ends_s, 0.0) < now_s())
_HAD_ITS_TURN: Final = and_(JOBS.c.state == JobState.QUEUED, JOBS.c.lease_ends_s.is_not(None))
_WAITS_SINCE: Final = case((_HAD_ITS_TURN, JOBS.c.started_at), else_=JOBS.c.created_at)
"""The order of jobs: one that was paused goes behind those that were waiting when its last attempt began."""


class Jobs:
    """The jobs of one store, which several processes may share.

    Notes
    -----
    A running job is leased. Its owner renews the lease; a runner that finds the lease ended, or not renewed for as
    long, claims the job with the next attempt number. Every write of an owner names its attempt, so the owner of an
    earlier one changes nothing; and an attempt writes elsewhere in the database only where `confirm` passes in the same
    transaction. A queued job with such an end pauses until then, and lets others go first.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._presence = store.engine, store.presence
        self._leases = Leases(clock)

    def create(
        self,
        kind: JobKind,
        request: dict[str, Any],
        *,
        device_id: str | None = None,
        key: Key | None = None,
        message: str = "",
        most: int | None = None,
    ) -> Job:
        """Queue a job; with a key, the job that was queued with it before, if there is one.

        Of the finished jobs, all but the last `FINISHED_KEPT` are deleted.

        Parameters
        ----------
        most : int, optional
            Most unfinished jobs of the device, with this one; without a device, of those that any server can run.

        Raises
        ------
        QueueFull
        KeyReused
            The key was used for another request.
        StoreError
            Also if the job would be lost with this process.
        """
        job_id = secrets.token_hex(16)  # no command line reads it as an option, nor a spreadsheet as a formula
        name, sha256, caller = (key.name, key.sha256, key.caller) if key else _NO_KEY
        values: dict[str, Any] = {"id": job_id, "kind": kind, "state": JobState.QUEUED, "request": request}
        values |= {"message": message, "caller": caller}
        values |= {
            "device_id": device_id,
            "idempotency_key": name,
            "request_sha256": sha256,
            "created_at": datetime.now(UTC),
        }
        try:
            with self._begin() as connection:
                if connection.dialect.name == "postgresql":  # SQLite lets one transaction write at a time
                    connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
                connection.execute(insert(JOBS).values(**values))
                if most is not None:
                    _check_room(connection, device_id, most)
                _forget(connection)
                # In the same transaction: a runner may claim the job as soon as this ends; the answer says queued.
                job = _job(connection.execute(select(JOBS).where(JOBS.c.id == job_id)).one())
        except StoreError as error:
            existing = self.find(key) if key and isinstance(error.__cause__, IntegrityError) else None
            if existing is None:
                raise
            return existing
        self._presence.check()  # else the job is in a deleted file, and is lost with this process
        return job

    def find(self, key: Key) -> Job | None:
        """The job that was queued with a key.

        Raises
        ------
        KeyReused
            The key was used for another request.
        """
        has_key = (JOBS.c.caller == key.caller, JOBS.c.idempotency_key == key.name)
        with self._begin() as connection:
            row = connection.execute(select(JOBS).where(*has_key)).one_or_none()
        if row is not None and row.request_sha256 != key.sha256:
            raise KeyReused(key.name)
        self._presence.check()
        return None if row is None else _job(row)

    def get(self, job_id: str) -> Job:
        """The job with this id.

        Raises
        ------
        UnknownJob
        """
        _check_id(job_id)
        with self._begin() as connection:
            row = connection.execute(select(JOBS).where(JOBS.c.id == job_id)).one_or_none()
        if row is None:
            raise UnknownJob(job_id)
        return _job(row)

    def list(
        self, limit: int = 100, *, before: str | None = None, kind: JobKind | None = None, state: JobState | None = None
    ) -> tuple[Job, ...]:
        """The newest jobs, newest first.

        Parameters
        ----------
        limit : int
        before : str, optional
            Id of a job: only older ones are listed.
        kind, state : optional
            Only jobs of this kind or state.

        Raises
        ------
        UnknownJob
            No job has that id.
        """
        _check_id(before or "")
        query = select(JOBS).order_by(JOBS.c.number.desc()).limit(limit)
        if kind is not None:
            query = query.where(JOBS.c.kind == kind)
        if state is not None:
            query = query.where(JOBS.c.state == state)
        with self._begin() as connection:
            if before is not None:
                number = connection.execute(select(JOBS.c.number).where(JOBS.c.id == before)).scalar_one_or_none()
                if number is None:
                    raise UnknownJob(before)
                query = query.where(JOBS.c.number < number)
            rows = connection.execute(query).all()
        return tuple(_job(row) for row in rows)

    def claim(
        self, owner: str, lease_s: float, *, kinds: Iterable[JobKind] = JobKind, device_id: str | None = None
    ) -> Job | None:
        """Take the job that has waited longest, of those whose lease or pause has ended; None where there is none.

        Parameters
        ----------
        owner : str
            Who claims it.
        lease_s : float
            Length of the lease, unless it is renewed.
        kinds : iterable of JobKind
            Kinds that the owner can run.
        device_id : str, optional
            The owner's device; jobs of another device are left to other runners.
        """
        is_ours = or_(JOBS.c.device_id.is_(None), JOBS.c.device_id == device_id)
        is_fit = (JOBS.c.kind.in_(list(kinds)), is_ours)
        query = select(JOBS).where(*is_fit).order_by(_WAITS_SINCE, JOBS.c.number).limit(1)
        while True:
            with self._begin() as connection:
                is_free = or_(_IS_FREE, *self._leases.stale(connection, lease_s))
                # SQLite has no such lock: there the condition of the update decides between two that read the same row.
                row = connection.execute(query.where(is_free).with_for_update(skip_locked=True)).one_or_none()
                if row is None:
                    return None
                values = _taken(row, owner, lease_s)
                is_unchanged = (JOBS.c.id == row.id, JOBS.c.attempt == row.attempt, is_free)
                n_changed = connection.execute(update(JOBS).where(*is_unchanged).values(**values, **_REVISED)).rowcount
            if n_changed:
                return self.get(row.id)

    def renew(self, job: Job, lease_s: float) -> bool:
        """Extend the lease of a running job; False if the job is no longer its owner's."""
        with self._begin() as connection:
            values = {"lease_ends_s": now_s() + lease_s}
            return bool(connection.execute(update(JOBS).where(*_is_held(job)).values(**values)).rowcount)

    def confirm(self, job: Job, connection: Connection) -> None:
        """Let a transaction of an attempt pass, and note that the attempt has stored something.

        Nobody else can take or cancel the job until the transaction ends.

        Raises
        ------
        JobLost
        """
        if not connection.execute(update(JOBS).where(*_is_held(job)).values(interruptions=_KEPT)).rowcount:
            raise JobLost(job.id)

    def note_progress(self, job: Job, fraction: float, message: str) -> None:
        """Store the progress of a running job."""
        self._change(job, progress=min(max(fraction, 0.0), 1.0), message=message)

    def succeed(
        self, job: Job, result: dict[str, Any], effect: Effect | None = None, message: str | None = None
    ) -> None:
        """End a running job with its result and apply its effect, both or neither.

        Parameters
        ----------
        message : str, optional
            What it said last; by default what was noted last.

        Raises
        ------
        JobLost
        """
        with self._begin() as connection:
            self.confirm(job, connection)
            if effect:
                effect(connection)
            values = {"state": JobState.SUCCEEDED, "progress": 1.0, "result": result}
            values |= {} if message is None else {"message": message}
            statement = update(JOBS).where(*_is_held(job)).values(**values, **_ended(), **_REVISED)
            connection.execute(statement)

    def fail(self, job: Job, error: ConvAdvisorError) -> None:
        """End a running job with its error."""
        self._change(job, state=JobState.FAILED, error=_problem(error), **_ended())

    def interrupt(self, job: Job, reason: ConvAdvisorError) -> None:
        """Queue a job again after its attempt broke off; fail it after `MAX_ATTEMPTS` that stored nothing."""
        with self._begin() as connection:
            row = connection.execute(select(JOBS).where(*_is_held(job))).one_or_none()
            if row is not None:
                values = _interrupted(row, reason)
                connection.execute(update(JOBS).where(*_is_held(job)).values(**values, **_REVISED))

    def release(self, job: Job, why: str = STOPPED, *, pause_s: float | None = None) -> None:
        """Queue a running job again that was stopped from outside; this does not count against the job.

        With a pause it starts no sooner, and others go first; without one it keeps its place.
        """
        ends_s = None if pause_s is None else now_s() + pause_s
        self._change(job, state=JobState.QUEUED, progress=0.0, message=why, owner=None, lease_ends_s=ends_s)

    def cancel(self, job_id: str) -> Job:
        """Cancel an unfinished job and return it. Its runner learns of it at the next renewal.

        Raises
        ------
        UnknownJob
        """
        _check_id(job_id)
        is_open = (JOBS.c.id == job_id, JOBS.c.state.in_(_UNFINISHED))
        with self._begin() as connection:
            connection.execute(update(JOBS).where(*is_open).values(state=JobState.CANCELLED, **_ended(), **_REVISED))
        return self.get(job_id)

    def _change(self, job: Job, **values: Any) -> None:
        with self._begin() as connection:
            connection.execute(update(JOBS).where(*_is_held(job)).values(**values, **_REVISED))

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StoreError(f"the jobs cannot be read or written: {error}") from error


_REVISED: Final[dict[str, Any]] = {"revision": JOBS.c.revision + 1}
_FREED: Final[dict[str, Any]] = {"owner": None, "lease_ends_s": None}
_NAMES: Final = tuple(field.name for field in fields(Job))


def _check_id(job_id: str) -> None:
    if "\0" in job_id:  # no text of PostgreSQL may contain it
        raise UnknownJob(job_id)


def _check_room(connection: Connection, device_id: str | None, most: int) -> None:
    """Refuse a job that was just added where there are more than may be unfinished."""
    matches = (JOBS.c.state.in_(_UNFINISHED), JOBS.c.device_id.is_not_distinct_from(device_id))
    n_unfinished = connection.execute(select(func.count()).select_from(JOBS).where(*matches)).scalar_one()
    if n_unfinished > most:
        device = f" for {device_id}" if device_id else ""
        raise QueueFull(f"{n_unfinished - 1} background jobs{device} are not finished yet")


def _forget(connection: Connection) -> None:
    """Delete all finished jobs but the last to finish: the oldest job may have waited long, and just have finished."""
    finished = select(JOBS.c.number).where(JOBS.c.state.in_(_FINISHED))
    older = finished.order_by(JOBS.c.finished_at.desc(), JOBS.c.number.desc()).offset(FINISHED_KEPT)
    connection.execute(delete(JOBS).where(JOBS.c.number.in_(older)))


def _is_held(job: Job) -> Sequence[Any]:
    return (JOBS.c.id == job.id, JOBS.c.attempt == job.attempt, JOBS.c.state == JobState.RUNNING)


def _ended() -> dict[str, Any]:
    return {"finished_at": datetime.now(UTC)} | _FREED


def _taken(row: Row[Any], owner: str, lease_s: float) -> dict[str, Any]:
    """Values of a free job after a claim; a killed server does not count against its job."""
    values = {"state": JobState.RUNNING, "attempt": JOBS.c.attempt + 1, "started_at": datetime.now(UTC)}
    if row.state == JobState.RUNNING:
        message = f"attempt {row.attempt} was interrupted: its server {row.owner or ''} ended or lost the database"
        values |= {"progress": 0.0, "message": message}
    interruptions = max(row.interruptions, 0)
    return values | {"interruptions": interruptions, "owner": owner, "lease_ends_s": now_s() + lease_s}


def _interrupted(row: Row[Any], reason: ConvAdvisorError) -> dict[str, Any]:
    interruptions = row.interruptions + 1
    if interruptions >= MAX_ATTEMPTS:
        error = WorkerDied(f"given up after {counted(row.attempt, 'attempt')}; the last one: {reason}")
        return {"state": JobState.FAILED, "error": _problem(error), "interruptions": interruptions, **_ended()}
    message = f"attempt {row.attempt} was interrupted: {reason}"
    return {"state": JobState.QUEUED, "progress": 0.0, "message": message, "interruptions": interruptions, **_FREED}


def _problem(error: ConvAdvisorError) -> dict[str, Any]:
    words = re.findall(r"[A-Z][a-z]*", type(error).__name__)
    return {"type": "-".join(words).lower(), "title": " ".join(words).capitalize(), "detail": str(error)}


def _job(row: Row[Any]) -> Job:
    values = {name: row._mapping[name] for name in _NAMES}
    for name in ("created_at", "started_at", "finished_at"):
        if values[name] is not None and values[name].tzinfo is None:  # SQLite stores no time zone
            values[name] = values[name].replace(tzinfo=UTC)
    return Job(**(values | {"kind": JobKind(values["kind"]), "state": JobState(values["state"])}))
