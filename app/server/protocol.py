"""uvicorn's HTTP/1.1 protocol with limits: one request at a time, bounded heads, and timeouts everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, NamedTuple, cast

import httptools
from starlette.types import Receive
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from conv_advisor.app.server.border import caution
from conv_advisor.app.server.patience import Patience
from conv_advisor.app.wire.errors import refusal

MOST_HEAD_BYTES: Final = 64 * 1024
"""Most bytes before the body of a request, and within the body beside its data: lengths of chunks, and trailers."""
HEAD_S: Final = 10.0
"""Time for a request's head, from the connection or the last answer on, and again from its first byte."""
BODY_S: Final = 20.0
"""Time between two parts of a body that is not being read; a reader waits for `app.wire.body.LONGEST_PAUSE_S`."""
READ_S: Final = 20.0
"""Time for a client to read its answer, plus the time that the answer takes at the following rate:"""
LEAST_BYTES_PER_S: Final = 16 * 1024
_LINGER_S: Final = 1.0
"""How long input after the last answer is discarded: closing a connection with unread bytes would lose the answer."""

_FRAMING: Final = (b"content-length", b"transfer-encoding")
_END: Final = b"\r\n\r\n"
"""End of every head, and of every chunked body: llhttp accepts no bare line feed."""


class _Body(NamedTuple):
    """Callbacks of a parser that reads only a body, after a head made up for it."""

    on_body: Callable[[bytes], None]
    on_message_complete: Callable[[], None]


class _Output(NamedTuple):
    """What a request's answer needs of its connection, with an end that loses nothing of it."""

    write: Callable[[bytes], None]
    close: Callable[[], None]
    is_closing: Callable[[], bool]


class Protocol(HttpToolsProtocol):
    """One connection.

    Notes
    -----
    The parser consumes all its input, and uvicorn then queues every request in it. So it gets input only up to the next
    place where a request may end, and none while an answer is due: the rest stays unparsed, and reading pauses. The
    state is a `Patience`, which a `drain.Server` has.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._patience = cast(Patience, self.server_state)
        self._rest = b""
        self._rest_at = 0
        self._tail = b""
        self._body_left = 0
        self._bare_bytes = 0
        self._is_begun = False
        self._has_head = False
        self._is_timed = False
        self._framing = b""
        self._is_over = False
        self._has_ended = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        super().connection_made(transport)
        if self._patience.make_room():
            self._patience.wait(self, HEAD_S)
        else:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests are being worked on")
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._rest = b""
        self._patience.go_on(self)
        self._patience.release(self)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if self._rest or self._is_busy:
            self._rest, self._rest_at = self._rest[self._rest_at :] + data, 0
            self.flow.pause_reading()
        elif not self._is_begun and len(data) <= MOST_HEAD_BYTES and data.find(_END) == len(data) - len(_END):
            self._parse(data)  # the usual case: one complete head
        else:
            self._read(data, 0)

    def eof_received(self) -> bool:  # type: ignore[override] # uvicorn's own closes
        """Answer a request that is complete, even if its client sends no more: it may be gone, or only done sending.

        The application is told that the client has hung up, so that long work stops; its answer is still sent.
        """
        if not self._is_busy or self._is_over or self.scheme == "https":  # TLS has no half-closed connection
            return False
        self._has_ended = True
        if self.cycle is not None:
            self.cycle.message_event.set()
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_begun, self._has_head, self._is_timed = True, False, False

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() == "0.9":  # it has no head, and so no end that can be recognised
            raise httptools.HttpParserError("HTTP/0.9")
        self._has_head, self._bare_bytes = True, 0
        if not self.url.startswith(b"/") and b"://" in self.url:
            self._take_host_of_target()
        if self.parser.should_upgrade():
            self._framing = next((b"%b: %b\r\n\r\n" % pair for pair in self.headers if pair[0] in _FRAMING), b"")
        super().on_headers_complete()
        cycle: Any = self.cycle
        cycle.receive = self._until_gone(cycle.receive)
        cycle.transport = _Output(self.transport.write, self._end, self.transport.is_closing)

    def _take_host_of_target(self) -> None:
        """Replace the host of the headers by that of ``GET http://host/``, which takes precedence.

        Notes
        -----
        Source: RFC 9112, 3.2.2.
        """
        host = self.url.partition(b"://")[2].partition(b"/")[0]
        self.headers[:] = [(name, host if name == b"host" else value) for name, value in self.headers]

    def _until_gone(self, receive: Receive) -> Receive:
        """A receive function that gives the request, and then the end of its client."""
        is_whole = False

        async def receive_or_end() -> Any:
            nonlocal is_whole
            message = None if is_whole and self._has_ended else await receive()
            if message is None or (is_whole and self._has_ended):
                return {"type": "http.disconnect"}
            is_whole = not message.get("more_body")
            return message

        return receive_or_end

    def on_body(self, body: bytes) -> None:
        self._bare_bytes = 0
        self._body_left -= len(body) if self._body_left else 0
        if not (self.cycle.response_complete or self.flow.write_paused):
            self._patience.wait(self, BODY_S)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._framing:  # the body is still to come
            return
        self._is_begun, self._bare_bytes = False, 0
        if not (self.cycle.response_complete or self.flow.write_paused):
            self._patience.go_on(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        # uvicorn's own method would set a timer, and take further requests from its pipeline, which is empty here.
        self.server_state.total_requests += 1
        if self.transport.is_closing() or self._is_over:
            return
        self.flow.resume_reading()
        if not self.flow.write_paused:
            self._patience.wait(self, HEAD_S if self._is_begun else self.timeout_keep_alive)
            self._go_on()

    def pause_writing(self) -> None:
        super().pause_writing()
        unsent = self.transport.get_write_buffer_size()
        self._patience.wait(self, READ_S + unsent / LEAST_BYTES_PER_S)
        self._patience.hold(self, unsent)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._patience.release(self)
        if self._is_over:
            return
        if self._is_busy:
            self._patience.go_on(self)
        else:
            self._patience.wait(self, BODY_S if self._is_begun else self.timeout_keep_alive)
            self._go_on()

    def give_up(self) -> None:
        """Close the connection, because its client takes too long."""
        is_answered = self.cycle is None or self.cycle.response_complete
        if self._is_over or self.flow.write_paused or self.transport.is_closing():
            self.cut()
        elif self._is_begun and not self._has_head:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the head of the request took longer than {HEAD_S:g} s")
        elif not is_answered and self.flow.read_paused:
            self._patience.wait(self, BODY_S)  # the server itself has paused reading
        elif not is_answered:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"nothing of the body arrived for {BODY_S:g} s")
        else:
            self.transport.close()
            self._patience.wait(self, _LINGER_S)

    def cut(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    @property
    def _is_busy(self) -> bool:
        """Whether a request is complete, and its answer is not."""
        cycle = self.cycle
        return self.flow.write_paused or (cycle is not None and not (cycle.more_body or cycle.response_complete))

    def _read(self, data: bytes, start: int) -> None:
        """Parse from `start`, up to the end of a request that needs an answer; the rest is stored."""
        while start < len(data) and not (self._is_over or self._is_busy):
            end = self._next_end(data, start)
            part = data[start:end]
            self._tail = (self._tail + part[-3:])[-3:]
            self._bare_bytes += len(part)
            start = end
            self._parse(part)
            if self._bare_bytes > MOST_HEAD_BYTES or not part:
                detail = f"the head of the request is longer than {MOST_HEAD_BYTES} bytes"
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail)
        self._rest, self._rest_at = (data, start) if start < len(data) and not self._is_over else (b"", 0)
        if self._rest:
            self.flow.pause_reading()

    def _go_on(self) -> None:
        """Parse the input after the answered request; close the connection if its client sends no more."""
        if self._rest and not self.transport.is_closing():
            self._read(self._rest, self._rest_at)
        if self._has_ended and not self._is_busy:
            self.transport.close()

    def _next_end(self, data: bytes, start: int) -> int:
        """The earliest position at which a request may end."""
        if self._is_begun and self._has_head and self.headers:
            length = next((value for name, value in self.headers if name == b"content-length"), b"0")
            self._body_left = int(length)
            self.headers = []  # for trailers, which are ignored
        if self._body_left:
            return min(start + self._body_left, len(data))
        most = len(data)
        if not (self._is_begun and self._has_head):
            most = min(most, start + MOST_HEAD_BYTES - self._bare_bytes)
        end_across = (self._tail + data[start : start + 3]).find(_END)
        if end_across >= 0:
            return min(start + end_across + len(_END) - len(self._tail), most)
        position = data.find(_END, start, most)
        return most if position < 0 else position + len(_END)

    def _parse(self, part: bytes) -> None:
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            self._stay()
        except httptools.HttpParserError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, f"this is no HTTP/1.1: {error}")
            return
        if self._is_begun and not self._is_timed:
            self._is_timed = True
            self._patience.wait(self, HEAD_S)

    def _stay(self) -> None:
        """Answer a request to change the protocol as if it had not asked for that, and then close.

        The parser takes all input after such a head for the other protocol, so a second parser reads the body: clients
        that prefer HTTP/2, as Java's does by default, send a body with their first request.
        """
        self.cycle.keep_alive = False
        if self._framing:
            head, self._framing = b"POST / HTTP/1.1\r\n" + self._framing, b""
            self.parser = httptools.HttpRequestParser(_Body(self.on_body, self.on_message_complete))
            self.parser.feed_data(head)

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        """Answer with an error of HTTP itself, and read no more."""
        if self._is_over:
            return
        self._is_over = True
        is_free = self.cycle is None or self.cycle.response_complete
        if not is_free:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if is_free or not self.cycle.response_started:
            path = self.url.decode("latin-1") if self._is_begun else ""  # as far as it has arrived
            response = refusal({"path": path}, status, detail, {"Connection": "close"})
            headers = [*self.server_state.default_headers, *response.raw_headers, *caution(self.scheme)]
            lines = [b"%b: %b\r\n" % pair for pair in headers]
            self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", bytes(response.body)]))
        self._linger()

    def _end(self) -> None:
        """Close the connection after its last answer, whatever its client has sent beyond that request."""
        if self._has_ended:
            self.transport.close()
        else:
            self._is_over = True
            self._linger()

    def _linger(self) -> None:
        """Say that nothing more comes, and discard input until the client has closed too, or has had its time."""
        self._rest = b""
        self.flow.resume_reading()
        if self.transport.can_write_eof():  # TLS cannot
            self.transport.write_eof()
        unsent = self.transport.get_write_buffer_size()
        self._patience.wait(self, READ_S + unsent / LEAST_BYTES_PER_S)
        self.loop.call_later(_LINGER_S, self._close_once_sent)

    def _close_once_sent(self) -> None:
        if self.transport.get_write_buffer_size():
            self.loop.call_later(_LINGER_S, self._close_once_sent)
        else:
            self.transport.close()
