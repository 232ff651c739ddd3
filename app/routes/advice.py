"""GET and POST /v1/advice: which variant to run for a layer, or for many; plain ASGI, documented as every route is."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from conv_advisor.app.advice.advise import advise_alone, advise_one, alone_beside
from conv_advisor.app.advice.asked import parse_list, parse_query
from conv_advisor.app.advice.bulk import advise_all
from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.service.kept import Answer
from conv_advisor.app.service.service import Basis, Service
from conv_advisor.app.web.compressed import packed
from conv_advisor.app.wire.answers.advice import AdviceAnswer, BestAloneAnswer, BulkAdviceAnswer, advice_json
from conv_advisor.app.wire.documented import body_of
from conv_advisor.app.wire.errors import documented
from conv_advisor.app.wire.layers import problem_from
from conv_advisor.app.wire.schemas import AdviceQuery, BulkAdviceRequest

PATH: Final = "/v1/advice"

_REASON: Final = "conv_advisor.no_answer"
"""Key in an ASGI scope for the exception that says why there is no answer."""
_JSON: Final = (b"content-type", b"application/json")
_ASK_AGAIN: Final = (b"cache-control", b"private, no-cache")
"""A client may keep an answer, but asks each time whether it is still valid: new measurements may change it."""


class Advice:
    """Answers GET of `PATH` without FastAPI, whose own part takes many times as long; passes on all else.

    A request without an answer is passed on with the exception, which the route raises, as for every other error.

    Parameters
    ----------
    app : ASGI application
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == PATH and scope["method"] == "GET":
            app = scope["app"]
            if not app.is_observed:
                try:
                    answer = await _get(app.state.service, scope["query_string"])
                except Exception as error:
                    scope[_REASON] = error
                else:
                    await _send(scope, send, answer)
                    return
        await self._app(scope, receive, send)


async def _get(service: Service, query: bytes) -> Answer:
    is_local = service.store.is_local
    answer = service.answers.get(query, service.recent_basis if is_local else service.known_basis)
    if answer is None:
        # A remote database may be slow, and every request waits for this thread.
        entry = _make(service, query) if is_local else await asyncio.to_thread(_make, service, query)
        service.answers.put(query, *entry)
        answer = entry[-1]
    return answer


def _make(service: Service, query: bytes) -> tuple[str | None, Basis, Answer]:
    """The device that the query names, what the answer is made from, and the answer."""
    parameters = parse_query(query)
    problem, limits = problem_from(parameters.given()), Limits.of(parameters, service)
    # Taken before the advice: a change meanwhile makes the answer out of date.
    device_id = limits.device_id if parameters.device else None  # the default may change
    basis = service.recent_basis(device_id)
    if parameters.ranking:
        body = advice_json(advise_one(service, problem, limits, basis.advisor))
    elif parameters.baselines:
        body = msgspec.json.encode(alone_beside(advise_one(service, problem, limits, basis.advisor), basis.advisor))
    else:
        body = msgspec.json.encode(advise_alone(service, problem, limits, basis.advisor))
    return device_id, basis, Answer.of(body)


async def _post(service: Service, request: Request) -> tuple[bytes, dict[str, str]]:
    async with service.json_body(request) as body:
        return await asyncio.to_thread(lambda: packed(advise_all(service, parse_list(body)), request.headers))


async def _send(scope: Scope, send: Send, answer: Answer) -> None:
    """Send the answer, or 304 where the client has it already."""
    headers = [(b"etag", answer.tag), _ASK_AGAIN]
    if is_known := any(name == b"if-none-match" and _names(tags, answer.tag) for name, tags in scope["headers"]):
        body = b""
    else:
        body = answer.body
        headers += [(b"content-length", b"%d" % len(body)), _JSON]
    await send({"type": "http.response.start", "status": 304 if is_known else 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _names(tags: bytes, tag: bytes) -> bool:
    """Whether a list of entity tags, or ``*``, has this one; weak tags count too."""
    listed = [entity_tag.strip().removeprefix(b"W/") for entity_tag in tags.split(b",")]
    return tag in listed or listed == [b"*"]


class _Documented(APIRoute):
    """A route that its endpoint documents; its handler answers without FastAPI's reading and checking."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        service: Service = scope["app"].state.service
        if (reason := scope.pop(_REASON, None)) is not None:
            raise reason
        if scope["method"] == "GET":
            await _send(scope, send, await _get(service, scope["query_string"]))
        elif scope["method"] == "POST":
            body, headers = await _post(service, Request(scope, receive))
            await Response(body, media_type="application/json", headers=headers)(scope, receive, send)
        else:
            await super().handle(scope, receive, send)


router = APIRouter(tags=["advice"], route_class=_Documented)


_SAME: Final[dict[int | str, dict[str, object]]] = {304: {"description": "As If-None-Match names it."}}


@router.get(PATH, responses=documented(400, 404, 409, 503, answer=AdviceAnswer | BestAloneAnswer) | _SAME)
async def get_advice(asked: Annotated[AdviceQuery, Query()]) -> None:
    """The best variant for a layer, and the whole ranking: time, slowdown, workspace, ties; why the others are out.

    Times are measured where the store has them, else predicted by the device's tree, whose decisions are part of the
    answer. ``ranking=false`` returns the best variant only, as in a list, and ``baselines=true`` then adds the
    alternatives. Send the ETag as If-None-Match to get 304 while the answer is unchanged.
    """


@router.post(
    PATH,
    responses=documented(400, 404, 413, 415, 503, answer=BulkAdviceAnswer),
    openapi_extra=body_of(BulkAdviceRequest),
)
async def post_advice() -> None:
    """The best variant for each of up to 10,000 layers; a layer without one has its error in that place."""
