"""GET and POST /v1/plans: a plan for a network that ships, and for an ONNX model."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from conv_advisor.app.plans.answers import PlansAnswer, plans_answer
from conv_advisor.app.plans.parameters import NetworkParameters, PlanParameters
from conv_advisor.app.plans.planning import Plans, plan_known, plan_model
from conv_advisor.app.service.service import service_of
from conv_advisor.app.wire.body import announced_bytes, read, require_media_type
from conv_advisor.app.wire.errors import documented

ONNX: Final = "application/onnx"
OCTETS: Final = "application/octet-stream"
_BYTES: Final = {"schema": {"type": "string", "format": "binary"}}
_BODY: Final[dict[str, Any]] = {"requestBody": {"required": True, "content": {OCTETS: _BYTES}}}

router = APIRouter(tags=["plans"])


@router.get("/v1/plans", responses=documented(400, 404, 409, 503, answer=PlansAnswer))
async def get_plan(request: Request, asked: Annotated[NetworkParameters, Query()]) -> JSONResponse:
    """A plan for a network that ships, by name; all of it in one layout.

    It has each convolution with its count, the advised variant, its time and its share, and the time that PyTorch's
    default, cuDNN's heuristic and the best of cuDNN take.
    """
    return await asyncio.to_thread(lambda: JSONResponse(plans_answer(plan_known(service_of(request), asked))))


@router.post(
    "/v1/plans",
    responses=documented(400, 404, 409, 413, 415, 501, 503, answer=PlansAnswer),
    openapi_extra=_BODY,
)
async def post_plan(request: Request, asked: Annotated[PlanParameters, Query()]) -> JSONResponse:
    """A plan for an ONNX model: each convolution with its epilogue, variant and layout, and what that gains.

    The body is the model (application/onnx or octet-stream). External weights are never opened. Layouts are chosen for
    the least total time of the whole graph, conversions included; what cannot be planned is listed with its reason.
    """
    plans = await plans_of_body(request, asked)
    return await asyncio.to_thread(lambda: JSONResponse(plans_answer(plans)))


async def plans_of_body(request: Request, asked: PlanParameters) -> Plans:
    """Plans of the model that is the body of a request.

    Raises
    ------
    HTTPException, InvalidInput, NotInstalled, QueueFull, NoAdvice, UnknownDevice, ModelRejected, StoreError
    """
    service = service_of(request)
    require_media_type(request, ONNX, OCTETS)
    with service.budget.hold(announced_bytes(request)) as held:
        body = (await read(request, service.settings.max_body_bytes, held)).tobytes()
        return await asyncio.to_thread(plan_model, service, body, asked)
