"""GET /metrics: what Prometheus scrapes."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response

from conv_advisor.app.observe.registry import Metrics
from conv_advisor.app.wire.errors import documented

PATH = "/metrics"

router = APIRouter(tags=["observability"])


@router.get(
    PATH,
    response_class=Response,
    responses=documented() | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def get_metrics(request: Request) -> Response:
    """Requests by route, workers and queues, jobs, and how far predictions are off, as Prometheus reads it."""
    metrics: Metrics = request.app.state.metrics
    content, media_type = await asyncio.to_thread(metrics.write, request.headers.get("accept", ""))
    return Response(content, headers={"content-type": media_type})
