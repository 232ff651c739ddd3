"""Turns every error into one form over HTTP, RFC 9457 problem+json; `error_types` has the type of each error."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route
from starlette.types import Scope

from conv_advisor.app.wire.error_types import ErrorType, titles_of, type_of, type_of_status
from conv_advisor.data import errors as e

log = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/problem+json"

RETRY_AFTER_S: Final = 1
"""The wait that a 503 advises: a worker is replaced, and a short job done, within about this time."""

_CLIENT_GONE: Final = 499
"""Status for the access log alone; no client receives it."""

_MAX_REPORTED: Final = 20
"""Faults of one payload that are listed."""


class ClientGone(Exception):
    """The client has hung up, and the work that ran for it was stopped."""


def problem_of(error: e.ConvAdvisorError) -> dict[str, Any]:
    """The problem document of an error, with the fields that its class has beside its text."""
    if isinstance(error, e.InvalidInput):
        details: dict[str, Any] = {"field": error.field, "value": error.value, "allowed": error.allowed}
    elif isinstance(error, e.Unknown):
        details = {"name": error.name, "known": error.known}
    elif isinstance(error, e.NotApplicable):
        details = {"variant": error.variant, "reason": error.reason}
    elif isinstance(error, e.NotInstalled):
        details = {"extra": error.extra, "package": error.package}
    elif isinstance(error, e.NoAdvice) and error.reasons:
        excluded = [{"variant": variant, "reason": reason} for variant, reason in error.reasons.items()]
        details = {"summary": error.summary, "excluded": excluded}
    else:
        details = {}
    return _document(type_of(error), str(error), details)


def refusal(
    scope: Scope, status: int, detail: str, headers: Mapping[str, str] | None = None, **extra: Any
) -> JSONResponse:
    """The answer to a request that HTTP itself refuses; with ``error`` where the Open Inference Protocol has it."""
    return _response(_document(type_of_status(status), detail, extra | _protocol(scope, detail)), headers)


def unforeseen(scope: Scope) -> JSONResponse:
    """The answer to a bug; it says nothing of the internals."""
    return refusal(scope, HTTPStatus.INTERNAL_SERVER_ERROR, "an error that nobody foresaw; the log has it")


def stopped(scope: Scope) -> JSONResponse:
    """The answer to a client that still waits when the server ends."""
    headers = {"Retry-After": "1", "Connection": "close"}
    return refusal(scope, HTTPStatus.SERVICE_UNAVAILABLE, "the service is being stopped", headers)


def install(app: FastAPI) -> None:
    """Answer every error as a problem document."""
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(HTTPStatus.METHOD_NOT_ALLOWED, _on_method)
    app.add_exception_handler(Exception, _on_bug)


def documented(*statuses: int, answer: Any = None, status: int = HTTPStatus.OK) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses: the answer's type, and a problem document for these statuses and those of every route."""
    responses: dict[int | str, dict[str, Any]] = {} if answer is None else {int(status): {"model": answer}}
    late = {HTTPStatus.REQUEST_TIMEOUT} if HTTPStatus.REQUEST_ENTITY_TOO_LARGE in statuses else set()  # of any body
    usual = {HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.INTERNAL_SERVER_ERROR, *late}
    for refused in sorted({*statuses, *usual}):
        schema = {"$ref": "#/components/schemas/Problem"}
        responses[int(refused)] = {
            "description": titles_of(refused),
            "content": {MEDIA_TYPE: {"schema": schema}},
        }
    return responses


def _document(kind: ErrorType, detail: str, extra: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind.address, "title": kind.title, "status": kind.status, "detail": detail} | extra


def _response(document: dict[str, Any], headers: Mapping[str, str] | None = None) -> JSONResponse:
    sent = dict(headers or {})
    if document["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
        sent.setdefault("Retry-After", str(RETRY_AFTER_S))
    return JSONResponse(document, document["status"], headers=sent, media_type=MEDIA_TYPE)


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, e.ConvAdvisorError)  # noqa: S101 - what it is registered for
    if type_of(error).status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("%s: %s", type(error).__name__, error)
    return _response(problem_of(error) | _protocol(request.scope, str(error)))


async def _on_malformed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - what it is registered for
    all_faults = error.errors()
    faults = [
        {
            "field": ".".join(map(str, fault["loc"])),
            "detail": fault["msg"].removeprefix("Value error, "),
            "value": repr(fault.get("input"))[:120],
        }
        for fault in all_faults[:_MAX_REPORTED]
    ]
    first = f"{faults[0]['field']}: {faults[0]['detail']}" if faults else "the payload cannot be read"
    rest = f", and {len(all_faults) - 1} more" if len(all_faults) > 1 else ""
    return refusal(request.scope, HTTPStatus.UNPROCESSABLE_ENTITY, first + rest, errors=faults)


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - what it is registered for
    return refusal(request.scope, error.status_code, str(error.detail), error.headers)


async def _on_method(request: Request, _error: Exception) -> JSONResponse:
    """Name every method that this address takes: a router names only those of one route."""
    routes = [context.original_route for context in iter_route_contexts(request.app.routes)]
    matching = [
        route for route in routes if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    ]
    # Where no route matches, the address is a file of the page.
    methods = {method for route in matching for method in route.methods or ()} or {"GET"}
    allowed = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
    detail = f"{request.method} is not taken here; allowed: {allowed}"
    return refusal(request.scope, HTTPStatus.METHOD_NOT_ALLOWED, detail, {"Allow": allowed})


def _protocol(scope: Scope, detail: str) -> dict[str, Any]:
    """The extra field that the Open Inference Protocol asks for in a problem document; empty elsewhere."""
    return {"error": detail} if scope.get("path", "").startswith("/v2") else {}


async def _on_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=_CLIENT_GONE)


async def _on_bug(request: Request, _error: Exception) -> JSONResponse:
    return unforeseen(request.scope)


_HANDLERS: Final[dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]]] = {
    e.ConvAdvisorError: _on_error,
    RequestValidationError: _on_malformed,
    HTTPException: _on_http,
    ClientGone: _on_gone,
}
