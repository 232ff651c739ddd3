"""/v1/jobs: starting background jobs, how far they are, and stopping them."""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from conv_advisor.app.guard.policy import require
from conv_advisor.app.jobs.answers import JobAnswer, JobsAnswer, job_answer
from conv_advisor.app.jobs.job import JobKind, JobState
from conv_advisor.app.jobs.requests import CalibrateJob, JobRequest, KeyHeader, RefreshJob, RetrainJob
from conv_advisor.app.routes.submission import submit
from conv_advisor.app.service.service import service_of
from conv_advisor.app.wire.body import parse_json
from conv_advisor.app.wire.caller import Scope, caller_name, is_let_in
from conv_advisor.app.wire.documented import body_of
from conv_advisor.app.wire.errors import documented
from conv_advisor.app.wire.schemas import Whole
from conv_advisor.data.errors import InvalidInput

router = APIRouter(tags=["jobs"])

_EVENTS = {"text/event-stream": {"schema": {"type": "string"}}}


class JobsQuery(BaseModel):
    """Which jobs to list."""

    model_config = ConfigDict(extra="forbid")

    limit: Annotated[int, Field(ge=1, le=1000, description="Jobs on a page."), Whole] = 100
    before: Annotated[
        str | None, Field(max_length=32, description="Id of a job: only older ones; `next` has it for the page after.")
    ] = None
    kind: Annotated[JobKind | None, Field(description="Only jobs of this kind.")] = None
    state: Annotated[JobState | None, Field(description="Only jobs in this state.")] = None


@router.get("/v1/jobs", responses=documented(400, 404, 503, answer=JobsAnswer))
async def list_jobs(request: Request, asked: Annotated[JobsQuery, Query()]) -> JSONResponse:
    """Jobs, newest first, a page at a time; `next` is the address of the page that follows.

    All that wait or run are listed, and the 1,000 that ended last; older ones are deleted.
    """
    only = asked.model_dump(exclude={"limit"})
    # One more than the page has: whether there is another page.
    jobs = await asyncio.to_thread(partial(service_of(request).jobs.list, asked.limit + 1, **only))
    page = jobs[: asked.limit]
    following = None
    if len(jobs) > len(page):
        next_query = asked.model_copy(update={"before": page[-1].id}).model_dump(mode="json", exclude_none=True)
        following = f"{request.url.path}?{urlencode(next_query)}"
    return JSONResponse({"jobs": [job_answer(job) for job in page], "next": following})


@router.post(
    "/v1/jobs",
    status_code=HTTPStatus.ACCEPTED,
    responses=documented(400, 404, 409, 413, 415, 503, answer=JobAnswer, status=HTTPStatus.ACCEPTED),
    openapi_extra=body_of(JobRequest),
)
async def create_job(
    request: Request,
    key: KeyHeader = None,
) -> JSONResponse:
    """Queue a retraining, sweep, long measurement, calibration or refresh; 202 with the job, its address in Location.

    A job that is answered with 202 survives whatever happens to the server. If the answer is lost, send the same
    request with the same Idempotency-Key to get the same job; another request with that key is refused with 409. Keys
    are private to a token. Measurements are stored as they are made, under the job's run_id.
    """
    service = service_of(request)
    async with service.json_body(request) as body:
        job_request = parse_json(JobRequest, body)
    if isinstance(job_request.root, RetrainJob | CalibrateJob | RefreshJob):
        require(request, Scope.ADMINISTER)
    job = await submit(service, job_request.root, key, caller_name(request))
    return JSONResponse(job_answer(job), HTTPStatus.ACCEPTED, {"Location": f"/v1/jobs/{job.id}"})


@router.get("/v1/jobs/{job_id}", responses=documented(404, 503, answer=JobAnswer))
async def get_job(request: Request, job_id: str) -> JSONResponse:
    """One job, with its progress, and its result or error once it has ended."""
    return JSONResponse(job_answer(await asyncio.to_thread(service_of(request).jobs.get, job_id)))


@router.get(
    "/v1/jobs/{job_id}/events",
    responses=documented(400, 404, 503)
    | {200: {"description": "Events `job`, and `end`, the last; each is the whole job as JSON.", "content": _EVENTS}}
    | {204: {"description": "The job has ended, and Last-Event-ID is its end."}},
    response_class=Response,
)
async def stream_job(
    request: Request,
    job_id: str,
    last_event_id: Annotated[str | None, Header(description="The last event that was received.")] = None,
) -> Response:
    """One job as server-sent events: its current state, unless Last-Event-ID has it, then every change until it ends.

    Each event is the whole job, so a slow client may miss intermediate states, but never the last one.
    """
    service = service_of(request)
    seen = _revision(last_event_id)
    job = await asyncio.to_thread(service.jobs.get, job_id)
    if job.state.is_final and job.revision == seen:
        return Response(status_code=HTTPStatus.NO_CONTENT)  # so that an EventSource does not come back again
    return service.streams.open(service.jobs, job, seen, caller_name(request), is_let_in(request))


@router.delete("/v1/jobs/{job_id}", responses=documented(404, 503, answer=JobAnswer))
async def cancel_job(request: Request, job_id: str) -> JSONResponse:
    """Cancel a job, queued or running, on whichever server; one that has ended stays as it is."""
    service = service_of(request)
    return JSONResponse(job_answer(await service.writing.run(service.background.cancel, job_id)))


def _revision(event_id: str | None) -> int:
    """The revision that an event's id names; -1 for none."""
    if event_id is None or event_id == "":
        return -1
    if not (event_id.isascii() and event_id.isdigit() and len(event_id) <= 9):
        raise InvalidInput("Last-Event-ID", event_id, "the id of an event of this job, a number")
    return int(event_id)
