"""/v2: the same convolutions by the Open Inference Protocol, for clients of KServe and Triton."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from conv_advisor.app.convolve.answers import convolution_summary
from conv_advisor.app.convolve.convolution import Convolution
from conv_advisor.app.convolve.orders import hold_answer, hold_lists, order_from_inference
from conv_advisor.app.routes.convolutions import carry_out, hold_tensors
from conv_advisor.app.routes.health import readiness
from conv_advisor.app.service.service import service_of
from conv_advisor.app.wire.answers.inference import (
    InferenceAnswer,
    InferenceRequest,
    LiveAnswer,
    ReadyAnswer,
    ServedModelAnswer,
    ServerAnswer,
)
from conv_advisor.app.wire.body import MAX_JSON_BYTES, Hold, read, require_media_type, too_long
from conv_advisor.app.wire.documented import body_of
from conv_advisor.app.wire.errors import documented
from conv_advisor.app.wire.open_inference import LENGTH_HEADER, Inference, read_inference, write_inference
from conv_advisor.app.wire.parts import PartsResponse
from conv_advisor.app.wire.safetensors import NEEDED, OPTIONAL
from conv_advisor.data.errors import UnknownModel
from conv_advisor.data.version import version as running_version

MODEL: Final = "conv"
VERSION: Final = "1"
"""The version of the model's tensors and parameters, not of a tree; a path that names none means it."""
_JSON: Final = "application/json"
_OCTETS: Final = "application/octet-stream"
_ANY_SIZES: Final = [-1, -1, -1, -1]
_MODEL_PATHS: Final = ("/models/{model}", "/models/{model}/versions/{version}")

router = APIRouter(prefix="/v2", tags=["inference"])


@router.get("", responses=documented(answer=ServerAnswer))
async def describe_server() -> JSONResponse:
    """Name, version, and the supported protocol extensions."""
    known = {"name": "conv-advisor", "version": running_version(), "extensions": ["binary_tensor_data"]}
    return JSONResponse(known)


@router.get("/health/live", responses=documented(answer=LiveAnswer))
async def is_server_live() -> JSONResponse:
    """The process runs and answers."""
    return JSONResponse({"live": True})


@router.get("/health/ready", responses=documented(503, answer=ReadyAnswer))
async def is_server_ready(request: Request) -> Response:
    """The same check as /readyz."""
    return await readiness(request, {"ready": True})


@router.get(_MODEL_PATHS[1], responses=documented(404, answer=ServedModelAnswer))
@router.get(_MODEL_PATHS[0], responses=documented(404, answer=ServedModelAnswer))
async def describe_model(model: str, version: str = VERSION) -> JSONResponse:
    """The input and output tensors; FP16 and BF16 are accepted too, and y has the type of x.

    bias and residual are optional; activation is a parameter of the request.
    """
    _check_name(model, version)
    x, weight, y = ({"name": name, "datatype": "FP32", "shape": _ANY_SIZES} for name in ("x", "weight", "y"))
    residual = {"name": "residual", "datatype": "FP32", "shape": _ANY_SIZES, "optional": True}
    bias = {"name": "bias", "datatype": "FP32", "shape": [-1], "optional": True}
    inputs = [x, weight, bias, residual]
    known = {"name": MODEL, "versions": [VERSION], "platform": "conv-advisor", "inputs": inputs, "outputs": [y]}
    return JSONResponse(known)


@router.get(f"{_MODEL_PATHS[1]}/ready", responses=documented(404, 503, answer=ReadyAnswer))
@router.get(f"{_MODEL_PATHS[0]}/ready", responses=documented(404, 503, answer=ReadyAnswer))
async def is_model_ready(request: Request, model: str, version: str = VERSION) -> Response:
    """The same check as /readyz."""
    _check_name(model, version)
    return await readiness(request, {"ready": True})


_INFER: Final = documented(400, 404, 409, 413, 415, 503, 504, 507, answer=InferenceAnswer)


@router.post(f"{_MODEL_PATHS[1]}/infer", responses=_INFER, openapi_extra=body_of(InferenceRequest, _OCTETS))
@router.post(f"{_MODEL_PATHS[0]}/infer", responses=_INFER, openapi_extra=body_of(InferenceRequest, _OCTETS))
async def infer(
    request: Request, model: str, held: Annotated[Hold, Depends(hold_tensors)], version: str = VERSION
) -> Response:
    """Convolve the inputs x and weight; the parameters of the request are those of POST /v1/convolutions.

    Optional inputs bias and residual are added. Tensors are JSON, or bytes after it (extension binary_tensor_data); y
    comes back as outputs or the parameter binary_data_output request. The answer's parameters have the variant, its
    time in ms and its error.
    """
    _check_name(model, version)
    service = service_of(request)
    if "content-type" in request.headers:  # Triton's client sends none
        require_media_type(request, _JSON, _OCTETS)
    body = await read(request, service.settings.max_body_bytes, held)
    json_bytes = _json_bytes(request, len(body))
    hold_lists(json_bytes, service.settings, held)
    inference = await asyncio.to_thread(read_inference, body, json_bytes, NEEDED, "y", OPTIONAL)
    order = order_from_inference(inference, service.settings)
    hold_answer(order, service.settings, held, is_json=not inference.is_binary)
    return await asyncio.to_thread(_answer, await carry_out(request, order), inference)


def _check_name(model: str, version: str) -> None:
    if model != MODEL:
        raise UnknownModel(model, [MODEL])
    if version != VERSION:
        raise UnknownModel(f"{model}/versions/{version}", [f"{MODEL}/versions/{VERSION}"])


def _json_bytes(request: Request, body_bytes: int) -> int:
    length = request.headers.get(LENGTH_HEADER, str(body_bytes))
    if not (length.isascii() and length.isdigit() and len(length) <= 18 and int(length) <= body_bytes):
        raise HTTPException(400, f"{LENGTH_HEADER} is {length[:40]!r}; allowed: a number up to {body_bytes}")
    if int(length) > MAX_JSON_BYTES:
        raise HTTPException(413, too_long(MAX_JSON_BYTES))
    return int(length)


def _answer(convolution: Convolution, inference: Inference) -> Response:
    assert convolution.best.y is not None  # noqa: S101 - tensors were given
    head: dict[str, Any] = {
        "model_name": MODEL,
        "model_version": VERSION,
        "parameters": convolution_summary(convolution),
    }
    head |= {"id": inference.id} if inference.id else {}
    parts = write_inference(head, "y", convolution.best.y, is_binary=inference.is_binary)
    if not inference.is_binary:
        return PartsResponse(parts, _JSON)
    return PartsResponse(parts, _OCTETS, {LENGTH_HEADER: str(len(parts[0]))})
