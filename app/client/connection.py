"""What both clients share: the server's address, the headers of each request, and what failures mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socket import SHUT_RDWR, socket
from threading import Timer
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from conv_advisor.app.client.attempts import Attempts, refused
from conv_advisor.data.errors import InvalidInput, Refused, Unreachable
from conv_advisor.data.version import version

if TYPE_CHECKING:
    import httpx

    from conv_advisor.app.client.calls import Call

T = TypeVar("T")

DEFAULT_URL: Final = "http://127.0.0.1:8000"
DEFAULT_DEADLINE_S: Final = 60.0
STREAM_SILENCE_S: Final = 60.0
"""A stream that is silent for so long is dead: a server sends something every 15 s."""
_LONGEST_SILENCE_S: Final = 1e6
"""Limit of a socket's timeout, which cannot exceed 2³¹ ms, while a deadline may be infinite."""
GRACE_S: Final = 0.2
"""How long after the deadline an answer is cut off: httpx's own limits, which say more, come first."""


def options(url: str, token: str | None) -> dict[str, Any]:
    """Arguments of an `httpx` client for a server.

    Raises
    ------
    InvalidInput
    """
    import httpx

    try:
        address = httpx.URL(url)
    except (httpx.InvalidURL, TypeError):
        address = httpx.URL()
    if address.scheme not in ("http", "https") or not address.host or address.query or address.fragment:
        raise InvalidInput("url", url, f"http:// or https:// and a host, such as {DEFAULT_URL}; no query")
    headers = {"user-agent": f"conv-advisor/{version()}"}
    if token is not None:
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise InvalidInput("token", "not shown", "visible ASCII characters, as `conv-advisor token` prints them")
        headers["authorization"] = f"Bearer {token}"
    return {"base_url": address, "headers": headers}


def request(http: httpx.Client | httpx.AsyncClient, call: Call[Any], timeout_s: float) -> httpx.Request:
    """A call as an HTTP request."""
    query, content, timeout_s = dict(call.query) or None, call.body or None, min(timeout_s, _LONGEST_SILENCE_S)
    return http.build_request(
        call.method, call.path, params=query, headers=dict(call.headers), content=content, timeout=timeout_s
    )


def meaning(call: Call[T], response: httpx.Response, body: bytes) -> T:
    """The decoded answer.

    Raises
    ------
    Refused
        The answer is an error, or does not come from conv-advisor.
    """
    if not response.is_success:
        raise refused(response.status_code, response.headers, body)
    try:
        return call.read(body)
    except (msgspec.DecodeError, InvalidInput, KeyError, TypeError, IndexError) as error:
        detail = f"{call.method} {response.url} answers {body[:80]!r}: {error}"
        raise Refused(
            {"title": "Not an answer of conv-advisor", "status": response.status_code, "detail": detail}
        ) from None


@contextmanager
def one_border(url: str) -> Iterator[None]:
    """Translate every failure of the network, or of an answer on its way, to `Unreachable`."""
    import httpx

    try:
        yield
    except (httpx.RequestError, TimeoutError) as error:
        raise Unreachable(url, f"{type(error).__name__}: {error}") from error


@contextmanager
def cut_off(response: httpx.Response, attempts: Attempts) -> Iterator[None]:
    """End the connection of an answer once the deadline has passed: httpx limits each read, and not all together.

    Raises
    ------
    Unreachable
    """
    import httpx

    stream = response.extensions.get("network_stream")
    connection = stream and stream.get_extra_info("socket")
    if connection is None or attempts.left_s > _LONGEST_SILENCE_S:
        yield
        return
    timer = Timer(attempts.left_s + GRACE_S, _shut_down, (connection,))
    timer.daemon = True
    timer.start()
    try:
        yield
    except httpx.RequestError:
        attempts.check(str(response.url))  # what ended it may be this
        raise
    finally:
        timer.cancel()


def _shut_down(connection: socket) -> None:
    """End a connection that another thread reads: it reads the end."""
    with suppress(OSError):  # closed already
        socket.shutdown(connection, SHUT_RDWR)  # not that of ssl, which must not be called during a read
