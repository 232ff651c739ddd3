"""What a job is: its kind, its state, what it was asked for and what came of it."""

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
        """Whether it can change no more."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class JobLost(Exception):
    """An attempt is no longer its runner's: the job was cancelled, or its lease ended and another took it."""


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
    device_id : str or None
        The device that must run it; None: any server does.
    revision : int
        How often it has changed.
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
    """What a client calls its request, so that sending it again makes no second job.

    Parameters
    ----------
    name : str
    sha256 : str
        Digest of what was asked for under that name.
    caller : str
        Whose name it is, by their token; empty where there are no tokens. Another caller's same name is another key.
    """

    name: str
    sha256: str
    caller: str = ""
