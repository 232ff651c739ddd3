"""What /v1/jobs answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from conv_advisor.app.jobs.job import Job


class JobAnswer(TypedDict):
    """A background job; progress goes from 0 to 1, revision grows with every change, device_id is where it must run."""

    id: str
    kind: str
    state: str
    progress: float
    message: str
    request: dict[str, Any]
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    attempt: int
    created_at: str
    started_at: str | None
    finished_at: str | None
    device_id: str | None
    revision: int


class JobsAnswer(TypedDict):
    """Background jobs, newest first; next is the address of the page that follows, null on the last."""

    jobs: list[JobAnswer]
    next: str | None


def job_answer(job: Job) -> JobAnswer:
    """A job as the database has it."""
    fields = {name: value.isoformat() if name.endswith("_at") and value else value for name, value in vars(job).items()}
    return cast("JobAnswer", fields)
