"""POST /v1/convolutions: run a convolution on the worker's device."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from conv_advisor.app.convolve.answers import (
    ConvolutionAnswer,
    convolution_answer,
    convolution_metadata,
    convolution_summary,
)
from conv_advisor.app.convolve.convolution import Convolution, Order, convolve
from conv_advisor.app.convolve.orders import (
    hold_answer,
    hold_lists,
    order_from_json,
    order_from_npy,
    order_from_safetensors,
)
from conv_advisor.app.service.service import service_of
from conv_advisor.app.settings import Settings
from conv_advisor.app.wire.body import Hold, announced_bytes, parse_json, read, require_media_type
from conv_advisor.app.wire.documented import body_of
from conv_advisor.app.wire.errors import documented
from conv_advisor.app.wire.npy import write_npy
from conv_advisor.app.wire.parts import PartsResponse
from conv_advisor.app.wire.query import values_of
from conv_advisor.app.wire.safetensors import write_safetensors
from conv_advisor.app.wire.schemas import ConvolutionRequest

JSON: Final = "application/json"
SAFETENSORS: Final = "application/vnd.safetensors"
NPY: Final = "application/x-npy"
OCTETS: Final = "application/octet-stream"
_BINARY: Final = (SAFETENSORS, NPY, OCTETS)
_FORMS: Final = (SAFETENSORS, NPY, JSON)

SUMMARY_HEADER: Final = "Convolution"
"""Header with the facts about y where it comes back as .npy, which has no place for them."""

_BYTES: Final = {"schema": {"type": "string", "format": "binary"}}

router = APIRouter(tags=["convolutions"])


@router.post(
    "/v1/convolutions",
    responses=documented(400, 404, 406, 409, 413, 415, 503, 504, 507)
    | {200: {"model": ConvolutionAnswer, "content": {SAFETENSORS: _BYTES, NPY: _BYTES}}},
    openapi_extra=body_of(ConvolutionRequest, OCTETS),
)
async def run_convolution(request: Request, held: Annotated[Hold, Depends(hold_tensors)]) -> Response:
    """Run the advised variant, a named one, or all of them; answer y, the time with every sample, and the error.

    The body is one of: safetensors (application/vnd.safetensors or octet-stream) with the tensors `x` and `weight` and
    the parameters as metadata; both tensors as .npy (application/x-npy), one after the other, with the parameters in
    the URL; or small JSON. Optional tensors `bias` of shape (k,) and `residual` of y's shape are added before the
    activation; as .npy they follow in this order, with `bias=true` and `residual=true` in the URL. Without tensors,
    random operands are measured, and y is not returned.

    y comes back in the form that Accept asks for, else in that of the body; as .npy with the variant, time and error
    in the header `Convolution`. JSON has "NaN", "Infinity" and "-Infinity" as strings, both ways. max_error is relative
    to float64, over n_compared outputs. The measurement is stored; if the store cannot be written, y is answered all
    the same, and is_stored is false.
    """
    service = service_of(request)
    media_type = require_media_type(request, JSON, *_BINARY)
    preferred = SAFETENSORS if media_type == OCTETS else media_type
    answer_type = _accepted(request.headers.get("accept", "*/*"), preferred)
    order = await _read_order(request, media_type, service.settings, held)
    hold_answer(order, service.settings, held, is_json=answer_type == JSON)
    return await asyncio.to_thread(_response, await carry_out(request, order), answer_type)


async def hold_tensors(request: Request) -> AsyncIterator[Hold]:
    """The bytes held for a request's tensors, until its answer is sent."""
    with service_of(request).budget.hold(announced_bytes(request)) as held:
        yield held


async def carry_out(request: Request, order: Order) -> Convolution:
    """Run an order for as long as its client waits.

    Raises
    ------
    ClientGone, UnknownVariant, NotApplicable, NoAdvice, RunError, WorkerError
    """
    service = service_of(request)
    run = partial(service.worker.run, request, deadline_s=service.settings.convolution_deadline_s)
    return await convolve(service, run, order)


async def _read_order(request: Request, media_type: str, settings: Settings, held: Hold) -> Order:
    body = await read(request, settings.max_body_bytes, held)
    if media_type == JSON:
        hold_lists(len(body), settings, held)
        return await asyncio.to_thread(
            lambda: order_from_json(parse_json(ConvolutionRequest, body.tobytes()), settings)
        )
    if media_type == NPY:
        return order_from_npy(body, values_of(request.url.query), settings)
    return order_from_safetensors(body, settings)


def _response(convolution: Convolution, answer_type: str) -> Response:
    y = convolution.best.y
    if answer_type == JSON or y is None:
        return JSONResponse(convolution_answer(convolution))
    if answer_type == NPY:
        headers = {SUMMARY_HEADER: json.dumps(convolution_summary(convolution))}
        return PartsResponse(write_npy(y), NPY, headers)
    return PartsResponse(write_safetensors(y, convolution_metadata(convolution)), SAFETENSORS)


def _accepted(accept: str, preferred: str) -> str:
    """The media type of the answer; at equal preference that of the body."""
    weights: dict[str, float] = {}
    for item in accept.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        weights[name] = _quality(parameters)
    offered = sorted(_FORMS, key=lambda form: form != preferred)
    quality: dict[str, float] = {
        form: weights.get(form, weights.get("application/*", weights.get("*/*", 0.0))) for form in offered
    }
    if OCTETS in weights:
        quality[SAFETENSORS] = max(quality[SAFETENSORS], weights[OCTETS])
    best = max(offered, key=lambda form: quality[form])
    if not quality[best]:
        raise HTTPException(406, f"Accept is {accept[:120]!r}; allowed: {', '.join(_FORMS)}")
    return best


def _quality(parameters: list[str]) -> float:
    text: Any = next((parameter[2:] for parameter in parameters if parameter.startswith("q=")), "1")
    try:
        return float(text)
    except ValueError:
        return 0.0
