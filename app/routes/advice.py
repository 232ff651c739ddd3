"""GET and POST /v1/advice: which variant to run for a layer, or for many; plain ASGI, documented as every route is."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from app.advice import Limits, advise_one
from app.answers import AdviceAnswer, BulkAdviceAnswer, advice_json
from app.asked import parse_list, parse_query
from app.body import read_json
from app.bulk import advise_all
from app.errors import documented, response_of
from app.openapi import body_of
from app.schemas import AdviceParameters, BulkAdviceRequest, named, problem_from
from app.service import Service

PATH: Final = "/v1/advice"

_JSON: Final = (b"content-type", b"application/json")


class Advice:
    """Answers `PATH` before any routing, which alone takes several times as long; passes on everything else.

    Parameters
    ----------
    app : ASGI application
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_asked = scope["type"] == "http" and scope["path"] == PATH and scope["method"] in _ANSWERS
        if is_asked and "fastapi.telemetry" not in scope:  # which learns the route's name on the way to it
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """GET and POST as an ASGI application; an error is answered as every route's is."""
    try:
        body = await _ANSWERS[scope["method"]](scope, receive)
    except Exception as error:
        response = await response_of(Request(scope, receive), error)
        if response is None:  # nobody foresaw it: what is around the application answers, and logs it
            raise
        await response(scope, receive, send)
        return
    headers = [(b"content-length", b"%d" % len(body)), _JSON]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _get(scope: Scope, _receive: Receive) -> bytes:
    service: Service = scope["app"].state.service
    query: bytes = scope["query_string"]
    kept = service.answers.get(query, service.recent_basis)
    if kept is not None:
        return kept
    asked = parse_query(query)
    problem, limits = problem_from(named(asked)), Limits.of(asked, service)
    # Before the advice, so that what changes meanwhile makes it out of date.
    basis = service.basis(limits.device_id)
    found = advice_json(advise_one(service, problem, limits))
    service.answers.put(query, asked.device, basis, found)
    return found


async def _post(scope: Scope, receive: Receive) -> bytes:
    service: Service = scope["app"].state.service
    body = await read_json(Request(scope, receive), service.settings.max_body_bytes)
    return await asyncio.to_thread(lambda: advise_all(service, parse_list(body)))


_ANSWERS: Final = {"GET": _get, "POST": _post}


class _Documented(APIRoute):
    """A route that its endpoint describes, and `answer` answers: reached where the application has a root path."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in (self.methods or ()):
            await answer(scope, receive, send)
        else:
            await super().handle(scope, receive, send)


router = APIRouter(tags=["advice"], route_class=_Documented)


@router.get(PATH, responses=documented(400, 404, 409, 503, answer=AdviceAnswer))
async def get_advice(asked: Annotated[AdviceParameters, Query()]) -> None:
    """The best variant for a layer, and the whole ranking: time, slowdown, workspace, ties; why the others are out.

    A time is measured where the store has it, else predicted by the device's tree, whose decisions are told.
    """


@router.post(
    PATH,
    responses=documented(400, 404, 413, 415, 503, answer=BulkAdviceAnswer),
    openapi_extra=body_of(BulkAdviceRequest),
)
async def post_advice() -> None:
    """The best variant for each of up to 10,000 layers; a layer that has none says why in its place."""
