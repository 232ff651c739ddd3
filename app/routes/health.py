"""GET /livez and /readyz: whether the process runs, and whether it can do all it is for."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from conv_advisor.app.guard.policy import is_known
from conv_advisor.app.service.service import service_of
from conv_advisor.app.wire.errors import documented, refusal

router = APIRouter(tags=["health"])


@router.get("/livez")
async def is_live() -> JSONResponse:
    """The process runs and answers."""
    return JSONResponse({"status": "live"})


@router.get("/readyz", responses=documented(503))
async def is_ready(request: Request) -> JSONResponse:
    """The worker is alive, the store can be read and written, and a model can advise; else 503 and what is missing."""
    return await readiness(request, {"status": "ready"})


async def readiness(request: Request, answer: dict[str, Any]) -> JSONResponse:
    """The given answer where the service is ready, else 503 and what is missing."""
    missing = await service_of(request).readiness.shortcomings()
    if not missing:
        return JSONResponse(answer)
    if not is_known(request):
        return refusal(request.scope, 503, "not ready; with a token it is said why")
    detail = "; ".join(f"{part}: {reason}" for part, reason in missing.items())
    return refusal(request.scope, 503, detail, missing=missing)
