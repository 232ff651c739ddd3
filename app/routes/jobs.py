"""GET and DELETE /v1/jobs: how far background jobs are, and stopping them."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from app.answers import JobAnswer, JobsAnswer, job_answer
from app.errors import documented
from app.routes.state import service_of

router = APIRouter(tags=["jobs"])


@router.get("/v1/jobs", responses=documented(503, answer=JobsAnswer))
async def list_jobs(request: Request) -> JSONResponse:
    """The hundred newest jobs, newest first."""
    jobs = await asyncio.to_thread(service_of(request).jobs.list)
    return JSONResponse({"jobs": [job_answer(job) for job in jobs]})


@router.get("/v1/jobs/{job_id}", responses=documented(404, 503, answer=JobAnswer))
async def get_job(request: Request, job_id: str) -> JSONResponse:
    """One job, with its progress, and its result or error once it has ended."""
    return JSONResponse(job_answer(await asyncio.to_thread(service_of(request).jobs.get, job_id)))


@router.delete("/v1/jobs/{job_id}", responses=documented(404, 503, answer=JobAnswer))
async def cancel_job(request: Request, job_id: str) -> JSONResponse:
    """Cancel a job, queued or running; one that has ended stays as it is."""
    return JSONResponse(job_answer(await asyncio.to_thread(service_of(request).runner.cancel, job_id)))
