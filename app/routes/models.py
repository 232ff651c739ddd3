"""/v1/models: the trained trees, training another, and which of them answers."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from conv_advisor.app.jobs.answers import JobAnswer, job_answer
from conv_advisor.app.jobs.requests import KeyHeader, RetrainJob
from conv_advisor.app.routes.submission import submit
from conv_advisor.app.service.service import service_of
from conv_advisor.app.wire.answers.models import ModelAnswer, ModelsAnswer, model_answer
from conv_advisor.app.wire.body import parse_json
from conv_advisor.app.wire.caller import caller_name
from conv_advisor.app.wire.documented import body_of
from conv_advisor.app.wire.errors import documented
from conv_advisor.app.wire.schemas import ActivateRequest, RetrainRequest

router = APIRouter(tags=["models"])


@router.get("/v1/models", responses=documented(answer=ModelsAnswer))
async def list_models(request: Request) -> JSONResponse:
    """Every tree of every device, unusable ones included, with its card: versions, data hash, scores."""
    entries = await asyncio.to_thread(service_of(request).registry.list)
    return JSONResponse({"models": [model_answer(entry) for entry in entries]})


@router.post(
    "/v1/models",
    status_code=HTTPStatus.ACCEPTED,
    responses=documented(400, 404, 409, 413, 415, 503, answer=JobAnswer, status=HTTPStatus.ACCEPTED),
    openapi_extra=body_of(RetrainRequest),
)
async def retrain(request: Request, key: KeyHeader = None) -> JSONResponse:
    """Train a tree from the store's measurements in a worker; 202 with the job, whose address is in Location.

    The new tree is promoted at once if its held-out slowdown is no worse than the old one's, or if force is set. This
    is the same as `POST /v1/jobs` with the kind `retrain`, and shares its Idempotency-Key.
    """
    service = service_of(request)
    async with service.json_body(request) as body:
        parameters = parse_json(RetrainRequest, body)
    job = await submit(service, RetrainJob(kind="retrain", **dict(parameters)), key, caller_name(request))
    return JSONResponse(job_answer(job), HTTPStatus.ACCEPTED, {"Location": f"/v1/jobs/{job.id}"})


@router.put(
    "/v1/models/active",
    responses=documented(400, 404, 409, 413, 415, 503, answer=ModelAnswer),
    openapi_extra=body_of(ActivateRequest),
)
async def activate(request: Request) -> JSONResponse:
    """Promote one of a device's trees: an earlier one, or one that was not good enough to be promoted by itself."""
    service = service_of(request)
    async with service.json_body(request) as body:
        choice = parse_json(ActivateRequest, body)
    device_id = await asyncio.to_thread(service.known.asked_id, choice.device)
    await service.writing.run(service.models.activate, device_id, choice.model)
    entries = await asyncio.to_thread(service.registry.list, device_id)
    return JSONResponse(model_answer(next(entry for entry in entries if entry.id == choice.model)))
