"""Commands that look at the jobs of a database, and stop them: on whichever server they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.cli.output import AsJson, print_json, print_table
from conv_advisor.app.cli.table import write

if TYPE_CHECKING:
    from conv_advisor.app.jobs.job import Job
    from conv_advisor.app.jobs.table import Jobs

jobs = typer.Typer(help="List, show and cancel background jobs.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(help="Id of the job, as `jobs list` shows it.")]


@jobs.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many of the newest to show.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the newest jobs, newest first."""
    from conv_advisor.app.jobs.answers import job_answer

    with _opened() as opened:
        newest = opened.list(limit)
    if as_json:
        print_json({"jobs": [job_answer(job) for job in newest]})
        return
    if not newest:
        write("No job was ever submitted: a server that shares this database takes them, POST /v1/jobs.")
        return
    rows = [
        (job.id, job.kind, job.state, f"{job.progress:.0%}", job.attempt, (job.error or {}).get("detail", job.message))
        for job in newest
    ]
    print_table(("id", "kind", "state", "done", "attempt", "message"), rows, title="jobs")


@jobs.command()
def show(job_id: JobId, as_json: AsJson = False) -> None:
    """Show one job, with its result or error."""
    with _opened() as opened:
        _print(opened.get(job_id), as_json)


@jobs.command()
def cancel(job_id: JobId, as_json: AsJson = False) -> None:
    """Cancel a job, queued or running.

    A job that has ended stays as it is.
    """
    with _opened() as opened:
        _print(opened.cancel(job_id), as_json)


@contextmanager
def _opened() -> Iterator[Jobs]:
    from conv_advisor.app.jobs.table import Jobs
    from conv_advisor.data.store import Store

    with Store(load_settings().store_url) as store:
        yield Jobs(store)


def _print(job: Job, as_json: bool) -> None:
    from conv_advisor.app.jobs.answers import job_answer

    answer = job_answer(job)
    if as_json:
        print_json(answer)
    else:
        rows = ((name, "" if value is None else str(value)) for name, value in answer.items())
        print_table(("", ""), rows, title=f"job {job.id}")
