"""The rows of the page of jobs: what each job is, and how it ended, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from conv_advisor.app.jobs.job import Job, JobKind, JobState
from conv_advisor.app.web.networks import TITLES
from conv_advisor.data.counting import counted


@dataclass(frozen=True)
class JobRow:
    """One job of the database."""

    job: Job
    title: str
    outcome: str
    elapsed_s: float | None


def job_rows(jobs: Iterable[Job]) -> list[JobRow]:
    """Jobs with what they are and how they ended, in words."""
    return [JobRow(job, _title(job), _outcome(job), _elapsed_s(job)) for job in jobs]


def _title(job: Job) -> str:
    """What a job is, in a line: its kind, what it is about, and the device."""
    request = job.request
    about = ""
    if job.kind is JobKind.SWEEP:
        sampled = [f"{request['sampled']} sampled layers"] if request.get("sampled") else []
        about = f" of {', '.join([*(TITLES.get(name, name) for name in request.get('networks', ())), *sampled])}"
    elif job.kind is JobKind.MEASURE:
        about = f" {counted(len(request.get('layers', ())), 'layer')}"
    return f"{str(job.kind).capitalize()}{about} {_on(job)}".strip()


def _on(job: Job) -> str:
    device_id = job.request.get("device", "")
    return device_id if job.kind is JobKind.RETRAIN else f"on {device_id}"


def _outcome(job: Job) -> str:
    """How a job ended, or what it does."""
    if job.state is JobState.FAILED and job.error:
        return str(job.error.get("detail", ""))
    if job.state is not JobState.SUCCEEDED or not job.result:
        return job.message
    if job.kind is JobKind.REFRESH:
        return _of_refreshing(job.result)
    if "model" in job.result:
        return _of_training(job.result)
    return _of_measuring(job.result) if "outcomes" in job.result else job.message


def _of_measuring(result: Mapping[str, Any]) -> str:
    outcomes: Mapping[str, int] = result["outcomes"]
    measured = outcomes.get("measured", 0)
    rest = sum(outcomes.values()) - measured
    problems = counted(result["problems"], "problem")
    return (
        f"{problems}: {counted(measured, 'time')} measured, {counted(rest, 'attempt')} without; run {result['run_id']}"
    )


def _of_refreshing(result: Mapping[str, Any]) -> str:
    measured = f"{counted(result['measured'], 'known time')} measured again"
    if not result["model"]:
        return f"nothing has moved; {measured}"
    state = "in use" if result.get("promoted") else "kept, not in use"
    moved = counted(len(result["moved"]), "variant has moved", "variants have moved")
    slower = f"{counted(result['n_regressed'], 'layer')} likely slower"
    return f"{moved}, {slower}; {measured}; tree {result['model']} is {state}"


def _of_training(result: Mapping[str, Any]) -> str:
    why = "; ".join(result.get("reasons", ())) or "it was not better"
    verdict = "in use" if result.get("promoted") else f"kept, not in use: {why}"
    held_out, before = result.get("slowdown"), result.get("champion_slowdown")
    sentence = f"tree {result['model']} is {verdict}"
    if held_out is not None:
        sentence += f"; {held_out:.3f}× the fastest on layers held out"
    return sentence + (f", the one before {before:.3f}×" if before is not None else "")


def _elapsed_s(job: Job) -> float | None:
    if job.started_at is None:
        return None
    return ((job.finished_at or datetime.now(UTC)) - job.started_at).total_seconds()
