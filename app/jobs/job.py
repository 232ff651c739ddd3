"""A job: its kind, its state, its request and its result."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class JobKind(StrEnum):
    """What a job does; a closed list."""

    RETRAIN = "retrain"
    SWEEP = "sweep"
    MEASURE = "measure"
    CALIBRATE = "calibrate"
    REFRESH = "refresh"


class JobState(StrEnum):
    """Where a job is; a closed list."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether the state can no longer change."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class JobLost(Exception):
    """An attempt no longer belongs to its runner: the job was cancelled, or its lease ended and another took it."""


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
        The step in progress.
    request : dict
    result : dict or None
        Set once the job has succeeded.
    error : dict or None
        Set once the job has failed: type, title, detail.
    attempt : int
        Number of starts.
    created_at, started_at, finished_at : datetime
        UTC; None before it happens.
    device_id : str or None
        The device that must run it; None: any server does.
    revision : int
        Number of changes.
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
    device_id: str | None
    revision: int


@dataclass(frozen=True)
class Key:
    """The name that a client gives its request, so that sending it again makes no second job.

    Parameters
    ----------
    name : str
    sha256 : str
        Digest of the request under that name.
    caller : str
        Owner of the name, by token; empty where there are no tokens. The same name of another caller is another key.
    """

    name: str
    sha256: str
    caller: str = ""
