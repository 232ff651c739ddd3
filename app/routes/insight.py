"""GET /v1/explanations and /v1/landscapes: why the tree predicts as it does, and where each variant wins."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from conv_advisor.app.advice.insight import (
    ExplanationAnswer,
    LandscapeAnswer,
    LandscapeParameters,
    explain_layer,
    survey_layer,
)
from conv_advisor.app.service.service import service_of
from conv_advisor.app.wire.errors import documented
from conv_advisor.app.wire.schemas import AdviceParameters

router = APIRouter(tags=["insight"])


@router.get("/v1/explanations", responses=documented(400, 404, 409, 503, answer=ExplanationAnswer))
async def get_explanation(request: Request, asked: Annotated[AdviceParameters, Query()]) -> JSONResponse:
    """The tree's decisions for a layer in words: each quantity, its value and limit, and what lies on either side."""
    return JSONResponse(await asyncio.to_thread(explain_layer, service_of(request), asked))


@router.get("/v1/landscapes", responses=documented(400, 404, 409, 503, answer=LandscapeAnswer))
async def get_landscape(request: Request, asked: Annotated[LandscapeParameters, Query()]) -> JSONResponse:
    """Which variant the tree predicts as the fastest over two of size, batch, filters and depth; the rest as given."""
    return JSONResponse(await asyncio.to_thread(survey_layer, service_of(request), asked))
