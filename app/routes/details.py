"""GET /v1/pareto, /v1/neighbours and /v1/snippets: what goes with advice."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from conv_advisor.app.advice.details import (
    NeighbourParameters,
    NeighboursAnswer,
    ParetoAnswer,
    ParetoParameters,
    SnippetAnswer,
    SnippetParameters,
    neighbours_of_layer,
    snippet_of_layer,
    weigh_layer,
)
from conv_advisor.app.service.service import service_of
from conv_advisor.app.wire.errors import documented

router = APIRouter(tags=["advice"])


@router.get("/v1/pareto", responses=documented(400, 404, 409, 503, answer=ParetoAnswer))
async def get_pareto(request: Request, asked: Annotated[ParetoParameters, Query()]) -> JSONResponse:
    """Time against workspace, error and determinism: which variants are on the Pareto front, within limits on each.

    The answer includes the best variant in the other layout, with and without the conversion of x and y.
    """
    return JSONResponse(await asyncio.to_thread(weigh_layer, service_of(request), asked))


@router.get("/v1/neighbours", responses=documented(400, 404, 409, 503, answer=NeighboursAnswer))
async def get_neighbours(request: Request, asked: Annotated[NeighbourParameters, Query()]) -> JSONResponse:
    """The nearest measured layers, what was fastest on each, and how the advised variant did there."""
    return JSONResponse(await asyncio.to_thread(neighbours_of_layer, service_of(request), asked))


@router.get("/v1/snippets", responses=documented(400, 404, 409, 503, answer=SnippetAnswer))
async def get_snippet(request: Request, asked: Annotated[SnippetParameters, Query()]) -> JSONResponse:
    """A program that runs the advised variant, or a named one, on this layer, with the plan that was measured.

    If a graph engine was not measured on the layer, its knobs come from the rule that the answer states.
    """
    return JSONResponse(await asyncio.to_thread(snippet_of_layer, service_of(request), asked))
