"""Server-sent events of a job, read a line at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from conv_advisor.data.errors import Refused, Unreachable

if TYPE_CHECKING:
    from conv_advisor.app.jobs.answers import JobAnswer


def is_over(job: JobAnswer) -> bool:
    """Whether a job has ended; it no longer changes then."""
    return job["finished_at"] is not None


class Events:
    """Assembles the lines of a stream to jobs."""

    def __init__(self) -> None:
        self._data: list[str] = []

    def take(self, line: str) -> JobAnswer | None:
        """The job, if this line ends an event; else None."""
        if line.startswith("data:"):
            self._data.append(line.removeprefix("data:"))
        if line or not self._data:
            return None
        text, self._data = "\n".join(self._data), []
        job: JobAnswer = msgspec.json.decode(text)
        return job


def ended(job: JobAnswer) -> JobAnswer:
    """The job, which has ended, unless it failed.

    Raises
    ------
    Refused
        The job failed; this is its error.
    """
    if job["error"] is not None:
        raise Refused(job["error"])
    return job


def unended(error: Refused | Unreachable, job: JobAnswer | None) -> Refused | Unreachable:
    """The error that ends a wait, with the last state of the job: if it is still queued, also why."""
    if job is None or isinstance(error, Refused):
        return error
    message = f" ({job['message']})" if job.get("message") else ""
    return Unreachable(error.url, f"job {job['id']} is {job['state']}{message} and has not ended: {error.reason}")


def ignore(_job: JobAnswer) -> None:
    """Ignore progress."""
