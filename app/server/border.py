"""The first layer of every request, as pure ASGI: it checks host, origin and body length, adds an id and
security headers, counts, and writes the access log."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Sequence
from http import HTTPStatus
from itertools import count
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conv_advisor.app.hosts import ANY, Hosts, foreign_origin
from conv_advisor.app.observe.templates import Templates, method_of
from conv_advisor.app.wire.body import MAX_JSON_BYTES, too_long
from conv_advisor.app.wire.errors import refusal, stopped, unforeseen
from conv_advisor.app.wire.query import repeated_in

if TYPE_CHECKING:
    from conv_advisor.app.observe.meter import Meter

log = logging.getLogger("conv_advisor.app.access")

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_.-]{1,64}")
_PROCESS: Final = secrets.token_hex(4).encode()
_NUMBERS: Final = count()
_OF_A_BODY: Final = (b"content-type", b"content-encoding", b"content-length", b"transfer-encoding")
_READ: Final = frozenset((b"x-request-id", b"host", b"origin", b"sec-fetch-site", *_OF_A_BODY))
_SINGLE: Final = frozenset(
    (b"host", b"origin", b"sec-fetch-site", b"content-type", b"content-length", b"transfer-encoding")
)
_API: Final = "/v1/"
_SAFE: Final = frozenset(("GET", "HEAD", "OPTIONS"))
CAUTION: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
"""Headers of every answer that does not set its own."""
_TLS_CAUTION: Final = (*CAUTION, (b"strict-transport-security", b"max-age=31536000"))
_CAUTION_NAMES: Final = frozenset(name for name, _ in CAUTION)


def caution(scheme: str | None) -> tuple[tuple[bytes, bytes], ...]:
    """`CAUTION`, over TLS with the header that keeps browsers on it."""
    return _TLS_CAUTION if scheme == "https" else CAUTION


class Border:
    """Refuses requests to another host name, from another site's page, or too long; marks and counts every answer.

    Parameters
    ----------
    app : ASGI application
    max_body_bytes : int
        Longest body of any kind; JSON is also limited to `MAX_JSON_BYTES`.
    templates : Templates
        Give the names of requests in the log.
    hosts : Hosts, optional
        Names that the service answers to; by default any.
    meter : Meter, optional
        Counts requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_body_bytes: int,
        templates: Templates,
        hosts: Hosts | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._templates = templates
        self._hosts = hosts or Hosts((ANY,))
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        checked = [pair for pair in scope["headers"] if pair[0] in _READ]
        headers = dict(reversed(checked))
        repeated = _repeated(checked) if len(headers) < len(checked) else ""
        if not repeated and b"&" in scope["query_string"] and scope["path"].startswith(_API):
            repeated = _repeated_parameter(scope["query_string"])
        request_id = _request_id(headers.get(b"x-request-id", b""))
        all_caution = caution(scope.get("scheme"))
        start, status = time.perf_counter(), 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answer_headers = message.get("headers", ())
                names = [name for name, _ in answer_headers]
                added = all_caution
                if not _CAUTION_NAMES.isdisjoint(names):
                    added = tuple(pair for pair in added if pair[0] not in names)
                message["headers"] = [*answer_headers, (b"x-request-id", request_id), *added]
            await send(message)

        meter = self._meter
        if meter is not None:
            meter.in_flight += 1
        try:
            if not repeated and self._is_plain(scope, headers):
                await self._app(scope, receive, send_marked)
            else:
                await self._check(scope, headers, repeated, receive, send_marked)
        except asyncio.CancelledError:  # only a server that shuts down cancels work that nothing else has ended
            if status:
                raise
            await stopped(scope)(scope, receive, send_marked)
        except Exception:
            if not status:  # outer layers answer too, but without the headers of every answer
                await unforeseen(scope)(scope, receive, send_marked)
            raise
        finally:
            elapsed_s = time.perf_counter() - start
            if meter is not None:
                meter.in_flight -= 1
                meter.count(scope, status, elapsed_s)
            if log.isEnabledFor(logging.INFO):
                self._log(scope, status, elapsed_s * 1e3, request_id.decode())

    async def _check(
        self, scope: Scope, headers: dict[bytes, bytes], repeated: str, receive: Receive, send: Send
    ) -> None:
        limit = self._limit(headers)
        refused = self._refusal(scope, headers, limit, repeated)
        await (refused or self._app)(scope, _counted(receive, limit), send)

    def _log(self, scope: Scope, status: int, elapsed_ms: float, request_id: str) -> None:
        """Write one line, without query, headers and body, which may hold private data."""
        route = self._templates.of(scope)
        fields = {"method": method_of(scope), "route": route, "status": status, "request_id": request_id}
        values = fields["method"], route, status, elapsed_ms, request_id
        log.info("%s %s %d %.1f ms %s", *values, extra=fields | {"ms": round(elapsed_ms, 3)})

    def _is_plain(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        """Whether a request needs no further checks: it changes nothing, and has no body and no origin."""
        return len(headers) == 1 and scope["method"] in _SAFE and self._hosts.allow(headers.get(b"host", b""))

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes], limit: int, repeated: str) -> Response | None:
        if repeated:
            detail = f"the {repeated} is given more than once; allowed: once"
            return refusal(scope, HTTPStatus.BAD_REQUEST, detail, {"Connection": "close"})
        host = headers.get(b"host", b"")
        if not self._hosts.allow(host):
            detail = f"Host is {host[:120].decode('latin-1')!r}; allowed: {', '.join(self._hosts.names)}"
            return refusal(scope, HTTPStatus.MISDIRECTED_REQUEST, detail)
        if scope["method"] not in _SAFE:
            origin = foreign_origin(headers)
            if origin is not None:
                return refusal(
                    scope, HTTPStatus.FORBIDDEN, f"the request comes from {origin[:120]}, not from this page"
                )
        problem = _body_refusal(headers, limit)
        # The server must not read the rest of the body as the next request.
        return refusal(scope, *problem, {"Connection": "close"}) if problem else None

    def _limit(self, headers: dict[bytes, bytes]) -> int:
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        return min(self._max_body_bytes, MAX_JSON_BYTES) if kind == b"application/json" else self._max_body_bytes


def _repeated(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The first header that must not be repeated and is: a proxy in front may use another of its values."""
    names = [name for name, _ in headers if name in _SINGLE]
    return next((f"header {name.decode()}" for name in names if names.count(name) > 1), "")


def _repeated_parameter(query: bytes) -> str:
    name = repeated_in(query)
    return name and f"parameter {name[:120]!r}"


def _request_id(client_id: bytes) -> bytes:
    """The client's id, if it is valid; else one that no other process uses."""
    if client_id and _REQUEST_ID.fullmatch(client_id):
        return client_id
    return b"%b%08x" % (_PROCESS, next(_NUMBERS))


def _body_refusal(headers: dict[bytes, bytes], limit: int) -> tuple[HTTPStatus, str] | None:
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
    if encoding != "identity":
        # 100 MiB of zeros gzip to 102 KB: the length of a compressed body does not bound its content.
        return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Encoding is {encoding!r}; allowed: identity"
    transfer = headers.get(b"transfer-encoding", b"chunked").decode("latin-1").strip().lower()
    if transfer != "chunked":  # its bytes would be read as the body itself
        return HTTPStatus.NOT_IMPLEMENTED, f"Transfer-Encoding is {transfer[:40]!r}; allowed: chunked"
    length = headers.get(b"content-length", b"0").decode("latin-1")
    if not (length.isascii() and length.isdigit()):
        return HTTPStatus.BAD_REQUEST, f"Content-Length is {length[:40]!r}; allowed: a number of bytes"
    if len(length) > 18 or int(length) > limit:
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, too_long(limit)
    return None


def _counted(receive: Receive, limit: int) -> Receive:
    seen = 0

    async def receive_counted() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > limit:
                headers = {"Connection": "close"}
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, too_long(limit), headers)
        return message

    return receive_counted
