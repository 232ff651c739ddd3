"""OpenAPI: bodies that are read by hand, and the schemas that only they and errors name."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from conv_advisor.app.guard.policy import COOKIE, SECURE_COOKIE, scope_needed
from conv_advisor.app.jobs.requests import JobRequest
from conv_advisor.app.wire.answers.inference import InferenceRequest
from conv_advisor.app.wire.caller import Scope
from conv_advisor.app.wire.documented import REFERENCE
from conv_advisor.app.wire.error_types import titles_of
from conv_advisor.app.wire.errors import MEDIA_TYPE
from conv_advisor.app.wire.schemas import (
    ActivateRequest,
    BulkAdviceRequest,
    ConvolutionRequest,
    Problem,
    RetrainRequest,
)

_MODELS: Final[tuple[type[BaseModel], ...]] = (
    Problem,
    BulkAdviceRequest,
    ConvolutionRequest,
    RetrainRequest,
    ActivateRequest,
    JobRequest,
    InferenceRequest,
)
TAGS: Final = [
    {
        "name": "advice",
        "description": "Which variant is fastest for a layer, how fast, with what confidence, and the alternatives.",
    },
    {"name": "plans", "description": "A whole network: variant and layout of each convolution, and the gain."},
    {"name": "convolutions", "description": "A convolution, computed and timed on this server's device."},
    {"name": "inference", "description": "The same convolutions by the Open Inference Protocol of KServe and Triton."},
    {"name": "models", "description": "The decision trees: list, promote, retrain."},
    {"name": "jobs", "description": "Background work: retraining, sweeps, long measurements, calibration."},
    {"name": "catalogue", "description": "The variants, devices and networks that are known."},
    {"name": "insight", "description": "Why the tree decides as it does, and how its answer changes with the layer."},
    {"name": "health", "description": "Probes, open to everybody."},
    {"name": "observability", "description": "Counters and histograms for Prometheus."},
    {"name": "errors", "description": "What each type of problem document means."},
]
"""Descriptions of the tags, in the order in which the documentation shows them."""
_SECURITY: Final = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of `conv-advisor token`. Scopes: read, measure, administer; none implies "
        "another. Asked for wherever tokens are configured, which is everywhere beyond loopback.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": f"The same token, as `/sign-in` keeps it in a browser; over TLS the name is `{SECURE_COOKIE}`.",
    },
}
_METHODS: Final = frozenset(("get", "put", "post", "delete", "patch"))


def operation_id(route: APIRoute) -> str:
    """The id of an operation, from which generated clients name its function: the name of its endpoint.

    A path with the version of a model has the same endpoint.
    """
    return f"{route.name}_version" if "{version}" in route.path else route.name


def summary_of(description: str) -> str:
    """The summary of an operation: the beginning of its description, up to the first colon, semicolon or full stop."""
    return re.split(r"[:;.](?:\s|$)", description, maxsplit=1)[0]


def install(app: FastAPI, *, needs_token: bool) -> None:
    """Add the schemas that no route declares, the scopes, and the refusals that apply to any request."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        _, extra_schemas = models_json_schema([(model, "validation") for model in _MODELS], ref_template=REFERENCE)
        document.setdefault("components", {}).setdefault("schemas", {}).update(extra_schemas["$defs"])
        document["components"]["securitySchemes"] = _SECURITY
        for path, operations in document["paths"].items():
            for method in _METHODS & set(operations):
                if description := operations[method].get("description"):
                    operations[method]["summary"] = summary_of(description)
                _guard(operations[method], scope_needed(method.upper(), path), needs_token=needs_token)
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def _guard(operation: dict[str, Any], scope: Scope | None, *, needs_token: bool) -> None:
    """Add the scope that an operation needs, and its refusals."""
    refusals = [HTTPStatus.MISDIRECTED_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS]
    if scope is None:
        operation["security"] = []
    else:
        schemes: list[dict[str, list[str]]] = [{name: [scope.value]} for name in _SECURITY]
        operation["security"] = schemes if needs_token else [*schemes, {}]
        refusals.append(HTTPStatus.UNAUTHORIZED)
    for status in refusals:
        content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        description = {"description": titles_of(status), "content": content}
        operation["responses"].setdefault(str(int(status)), description)
