"""OpenAPI: bodies that are read by hand, and the schemas that only they and errors name."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.job_requests import JobRequest
from app.schemas import ActivateRequest, BulkAdviceRequest, ConvolutionRequest, Problem, RetrainRequest

_MODELS: Final[tuple[type[BaseModel], ...]] = (
    Problem,
    BulkAdviceRequest,
    ConvolutionRequest,
    RetrainRequest,
    ActivateRequest,
    JobRequest,
)
_REFERENCE: Final = "#/components/schemas/{model}"


def body_of(model: type[BaseModel], *binary: str) -> dict[str, Any]:
    """The request body of a route: JSON of this model, or any of these binary media types."""
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=model.__name__)}}}
    content |= {media_type: {"schema": {"type": "string", "format": "binary"}} for media_type in binary}
    return {"requestBody": {"required": True, "content": content}}


def install(app: FastAPI) -> None:
    """Add the schemas that no route declares by itself."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        _, more = models_json_schema([(model, "validation") for model in _MODELS], ref_template=_REFERENCE)
        document.setdefault("components", {}).setdefault("schemas", {}).update(more["$defs"])
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way
