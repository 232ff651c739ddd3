"""GET and POST /v1/advice: which variant to run for a layer, or for many."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from app.advice import Limits, advise_one
from app.answers import AdviceAnswer, BulkAdviceAnswer, advice_answer
from app.body import parse_json, read_json
from app.bulk import advise_all
from app.errors import documented
from app.openapi import body_of
from app.routes.state import service_of
from app.schemas import AdviceParameters, BulkAdviceRequest, problem_from

router = APIRouter(tags=["advice"])


@router.get("/v1/advice", responses=documented(400, 404, 409, 503, answer=AdviceAnswer))
async def get_advice(request: Request, asked: Annotated[AdviceParameters, Query()]) -> JSONResponse:
    """The best variant for a layer, and the whole ranking: time, slowdown, workspace, ties; why the others are out.

    A time is measured where the store has it, else predicted by the device's tree, whose decisions are told.
    """
    service = service_of(request)
    advice = advise_one(service, problem_from(asked.given()), Limits.of(asked, service))
    return JSONResponse(advice_answer(advice))


@router.post(
    "/v1/advice",
    responses=documented(400, 404, 413, 415, 503, answer=BulkAdviceAnswer),
    openapi_extra=body_of(BulkAdviceRequest),
)
async def post_advice(request: Request) -> JSONResponse:
    """The best variant for each of up to 10,000 layers; a layer that has none says why in its place."""
    body = await read_json(request, service_of(request).settings.max_body_bytes)
    return await asyncio.to_thread(
        lambda: JSONResponse(advise_all(service_of(request), parse_json(BulkAdviceRequest, body)))
    )
