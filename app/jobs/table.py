"""The table of jobs: rows of the database, leased to whoever runs them, taken up again when a lease ends."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import and_, func, insert, or_, select, update
from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from conv_advisor.app.jobs.job import Job, JobKind, JobLost, JobState, Key
from conv_advisor.app.jobs.leases import Leases
from conv_advisor.data.counting import counted
from conv_advisor.data.database.opening import now_s
from conv_advisor.data.database.tables import JOBS
from conv_advisor.data.errors import ConvAdvisorError, KeyReused, StoreError, UnknownJob, WorkerDied
from conv_advisor.data.store import Store

MAX_ATTEMPTS: Final = 3
"""Attempts that may break off by themselves since one has kept something."""
_KEPT: Final = -1
"""Interruptions of an attempt that has kept something: that it breaks off then makes none."""
_NO_KEY: Final = (None, None, "")
_UNFINISHED: Final = (JobState.QUEUED, JobState.RUNNING)

Effect = Callable[[Connection], None]
"""What a job changes at its end, in the transaction that says it has succeeded."""

_IS_FREE: Final = or_(
    JOBS.c.state == JobState.QUEUED,
    and_(JOBS.c.state == JobState.RUNNING, func.coalesce(JOBS.c.lease_ends_s, 0.0) < now_s()),
)


class Jobs:
    """The jobs of one store, which several processes may share.

    Notes
    -----
    A running job is leased: its owner renews the lease, and who finds it ended, or not renewed for as long, takes the
    job with the next attempt number. Every write of an owner names its attempt, so whoever still works on an earlier
    one changes nothing; and what an attempt writes elsewhere in the database is written only where `confirm` passes in
    the same transaction.
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
    ) -> Job:
        """Queue a job; with a key, the job that was queued with it before, if there is one.

        Raises
        ------
        KeyReused
            Something else was asked for with this key.
        StoreError
            Also where it would be gone with this process.
        """
        job_id = secrets.token_hex(16)  # which no command line takes for an option, nor a spreadsheet for a formula
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
                connection.execute(insert(JOBS).values(**values))
                # In the same transaction: a runner may claim it as soon as this ends, and it was queued.
                job = _job(connection.execute(select(JOBS).where(JOBS.c.id == job_id)).one())
        except StoreError as error:
            before = self.find(key) if key and isinstance(error.__cause__, IntegrityError) else None
            if before is None:
                raise
            return before
        self._presence.check()  # else it is in a file that was deleted, and is gone with this process
        return job

    def find(self, key: Key) -> Job | None:
        """The job that was queued with a key.

        Raises
        ------
        KeyReused
            Something else was asked for with it.
        """
        is_it = (JOBS.c.caller == key.caller, JOBS.c.idempotency_key == key.name)
        with self._begin() as connection:
            row = connection.execute(select(JOBS).where(*is_it)).one_or_none()
        if row is not None and row.request_sha256 != key.sha256:
            raise KeyReused(key.name)
        self._presence.check()
        return None if row is None else _job(row)

    def get(self, job_id: str) -> Job:
        """The job of this id.

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
            Id of a job: only those that are older.
        kind, state : optional
            Only those of it.

        Raises
        ------
        UnknownJob
            No job has that id.
        """
        wanted = select(JOBS).order_by(JOBS.c.number.desc()).limit(limit)
        if kind is not None:
            wanted = wanted.where(JOBS.c.kind == kind)
        if state is not None:
            wanted = wanted.where(JOBS.c.state == state)
        with self._begin() as connection:
            if before is not None:
                number = connection.execute(select(JOBS.c.number).where(JOBS.c.id == before)).scalar_one_or_none()
                if number is None:
                    raise UnknownJob(before)
                wanted = wanted.where(JOBS.c.number < number)
            rows = connection.execute(wanted).all()
        return tuple(_job(row) for row in rows)

    def count_unfinished(self, device_id: str | None = None) -> int:
        """How many jobs that must run on a device are queued or running; without one, those that any server runs."""
        with self._begin() as connection:
            is_such = (JOBS.c.state.in_(_UNFINISHED), JOBS.c.device_id.is_not_distinct_from(device_id))
            wanted = select(func.count()).select_from(JOBS).where(*is_such)
            return int(connection.execute(wanted).scalar_one())

    def claim(
        self, owner: str, lease_s: float, *, kinds: Iterable[JobKind] = JobKind, device_id: str | None = None
    ) -> Job | None:
        """Take the oldest job that is queued or whose lease has ended; None where there is none.

        Parameters
        ----------
        owner : str
            Who takes it.
        lease_s : float
            For how long, unless it is renewed.
        kinds : iterable of JobKind
            What the owner can do.
        device_id : str, optional
            The owner's device: jobs that must run on another are left to others.
        """
        is_ours = or_(JOBS.c.device_id.is_(None), JOBS.c.device_id == device_id)
        wanted = select(JOBS).where(JOBS.c.kind.in_(list(kinds)), is_ours).order_by(JOBS.c.number).limit(1)
        while True:
            with self._begin() as connection:
                is_free = or_(_IS_FREE, *self._leases.stale(connection, lease_s))
                # SQLite knows no such lock: there the condition of the update decides between two that saw the same.
                row = connection.execute(wanted.where(is_free).with_for_update(skip_locked=True)).one_or_none()
                if row is None:
                    return None
                values = _taken(row, owner, lease_s)
                is_unchanged = (JOBS.c.id == row.id, JOBS.c.attempt == row.attempt, is_free)
                changed = connection.execute(update(JOBS).where(*is_unchanged).values(**values, **_REVISED)).rowcount
            if changed:
                return self.get(row.id)

    def renew(self, job: Job, lease_s: float) -> bool:
        """Prolong the lease of a running job; whether it is still its owner's."""
        with self._begin() as connection:
            values = {"lease_ends_s": now_s() + lease_s}
            return bool(connection.execute(update(JOBS).where(*_is_held(job)).values(**values)).rowcount)

    def confirm(self, job: Job, connection: Connection) -> None:
        """Let a transaction of an attempt pass, and note that the attempt has kept something.

        Nobody else can take or cancel the job until the transaction ends.

        Raises
        ------
        JobLost
        """
        if not connection.execute(update(JOBS).where(*_is_held(job)).values(interruptions=_KEPT)).rowcount:
            raise JobLost(job.id)

    def note_progress(self, job: Job, fraction: float, message: str) -> None:
        """Say how far a running job is."""
        self._change(job, progress=min(max(fraction, 0.0), 1.0), message=message)

    def succeed(self, job: Job, result: dict[str, Any], effect: Effect | None = None) -> None:
        """End a running job with its result, and do what it changes, both or neither.

        Raises
        ------
        JobLost
        """
        with self._begin() as connection:
            self.confirm(job, connection)
            if effect:
                effect(connection)
            values = {"state": JobState.SUCCEEDED, "progress": 1.0, "result": result}
            ended = update(JOBS).where(*_is_held(job)).values(**values, **_ended(), **_REVISED)
            connection.execute(ended)

    def fail(self, job: Job, error: ConvAdvisorError) -> None:
        """End a running job with its error."""
        self._change(job, state=JobState.FAILED, error=_problem(error), **_ended())

    def interrupt(self, job: Job, reason: ConvAdvisorError) -> None:
        """Queue a job once more whose attempt broke off; fail it after `MAX_ATTEMPTS` that kept nothing."""
        with self._begin() as connection:
            row = connection.execute(select(JOBS).where(*_is_held(job))).one_or_none()
            if row is not None:
                values = _interrupted(row, reason)
                connection.execute(update(JOBS).where(*_is_held(job)).values(**values, **_REVISED))

    def release(self, job: Job, why: str = "the service was stopped") -> None:
        """Queue a running job once more that was ended from outside; that is nothing against the job."""
        self._change(job, state=JobState.QUEUED, progress=0.0, message=why, **_FREED)

    def cancel(self, job_id: str) -> Job:
        """Cancel a job that is not finished; the job as it then is. Who runs it learns it at the next renewal.

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
_NAMES: Final = tuple(each.name for each in fields(Job))


def _check_id(job_id: str) -> None:
    if "\0" in job_id:  # which no text of PostgreSQL holds
        raise UnknownJob(job_id)


def _is_held(job: Job) -> Sequence[Any]:
    return (JOBS.c.id == job.id, JOBS.c.attempt == job.attempt, JOBS.c.state == JobState.RUNNING)


def _ended() -> dict[str, Any]:
    return {"finished_at": datetime.now(UTC)} | _FREED


def _taken(row: Row[Any], owner: str, lease_s: float) -> dict[str, Any]:
    """What a free job becomes in the hands of an owner; that a server was killed is nothing against its job."""
    started = {"state": JobState.RUNNING, "attempt": JOBS.c.attempt + 1, "started_at": datetime.now(UTC)}
    if row.state == JobState.RUNNING:
        ended = f"attempt {row.attempt} was interrupted: its server {row.owner or ''} ended or lost the database"
        started |= {"progress": 0.0, "message": ended}
    interruptions = max(row.interruptions, 0)
    return started | {"interruptions": interruptions, "owner": owner, "lease_ends_s": now_s() + lease_s}


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
    found = {name: row._mapping[name] for name in _NAMES}
    for name in ("created_at", "started_at", "finished_at"):
        if found[name] is not None and found[name].tzinfo is None:  # SQLite keeps no time zone
            found[name] = found[name].replace(tzinfo=UTC)
    return Job(**(found | {"kind": JobKind(found["kind"]), "state": JobState(found["state"])}))
