"""POST /v1/convolutions: run a convolution on the worker's device."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from app.answers import ConvolutionAnswer, convolution_answer, convolution_metadata
from app.body import announced_bytes, parse_json, read, require_media_type
from app.convolution import Convolution, Order, convolve
from app.errors import documented
from app.openapi import body_of
from app.orders import check_answer, order_from_json, order_from_safetensors
from app.routes.state import service_of
from app.schemas import ConvolutionRequest
from app.settings import Settings
from app.tensors import write_safetensors

JSON: Final = "application/json"
SAFETENSORS: Final = "application/vnd.safetensors"
_BINARY: Final = (SAFETENSORS, "application/octet-stream")

router = APIRouter(tags=["convolutions"])


@router.post(
    "/v1/convolutions",
    responses=documented(400, 404, 406, 409, 413, 415, 503, 504, 507)
    | {200: {"model": ConvolutionAnswer, "content": {SAFETENSORS: {"schema": {"type": "string", "format": "binary"}}}}},
    openapi_extra=body_of(ConvolutionRequest, *_BINARY),
)
async def run_convolution(request: Request) -> Response:
    """Run the advised variant, a named one, or all of them; answer y, the time with every sample, and the error.

    The body is safetensors with the tensors `x` and `weight` and the parameters as metadata, or small JSON. Without
    tensors the convolution of random ones is only measured. y comes back in the form that Accept asks for, else in that
    of the body. What JSON lacks is written "NaN", "Infinity" and "-Infinity", and read so too. max_error is relative to
    float64. The measurement joins the store.
    """
    service = service_of(request)
    media_type = require_media_type(request, JSON, *_BINARY)
    wanted = _accepted(request.headers.get("accept", "*/*"), JSON if media_type == JSON else SAFETENSORS)
    with service.budget.hold(announced_bytes(request, service.settings.max_body_bytes)):
        order = await _read_order(request, media_type, service.settings)
        check_answer(order, service.settings, is_json=wanted == JSON)
        deadline_s = service.settings.convolution_deadline_s
        done = await convolve(service, partial(service.run, request, deadline_s=deadline_s), order)
        return await asyncio.to_thread(_response, done, wanted)


async def _read_order(request: Request, media_type: str, settings: Settings) -> Order:
    body = await read(request, settings.max_body_bytes)
    if media_type != JSON:
        return order_from_safetensors(body, settings)
    return await asyncio.to_thread(lambda: order_from_json(parse_json(ConvolutionRequest, body.tobytes()), settings))


def _response(done: Convolution, wanted: str) -> Response:
    if wanted == JSON or done.best.y is None:
        return JSONResponse(convolution_answer(done))
    return Response(write_safetensors(done.best.y, convolution_metadata(done)), media_type=SAFETENSORS)


def _accepted(accept: str, preferred: str) -> str:
    """The form of the answer; at equal preference that of the body."""
    weights: dict[str, float] = {}
    for item in accept.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        weights[name] = _quality(parameters)
    offered = sorted((SAFETENSORS, JSON), key=lambda form: form != preferred)
    quality: dict[str, float] = {
        form: weights.get(form, weights.get("application/*", weights.get("*/*", 0.0))) for form in offered
    }
    if "application/octet-stream" in weights:
        quality[SAFETENSORS] = max(quality[SAFETENSORS], weights["application/octet-stream"])
    best = max(offered, key=lambda form: quality[form])
    if not quality[best]:
        raise HTTPException(406, f"Accept is {accept[:120]!r}; allowed: {SAFETENSORS}, {JSON}")
    return best


def _quality(parameters: list[str]) -> float:
    text: Any = next((parameter[2:] for parameter in parameters if parameter.startswith("q=")), "1")
    try:
        return float(text)
    except ValueError:
        return 0.0
