"""An answer of several buffers, sent as fast as the client reads, without joining them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Parts = tuple[bytes, memoryview]
"""The bytes before a tensor, and the tensor's own."""

_PIECE_BYTES: Final = 2**18
"""Bytes handed over at once: the memory that a client that does not read costs beside the buffer itself."""


class PartsResponse(Response):
    """Sends a head and a tensor without a copy of the tensor.

    Parameters
    ----------
    parts : Parts
    media_type : str
    headers : mapping of str to str, optional
    """

    def __init__(self, parts: Parts, media_type: str, headers: Mapping[str, str] | None = None) -> None:
        length = {"content-length": str(sum(map(len, parts)))}
        super().__init__(media_type=media_type, headers=length | dict(headers or {}))
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _pieces(self) -> Iterator[bytes | memoryview]:
        for part in self._parts:
            yield from (part[start : start + _PIECE_BYTES] for start in range(0, len(part), _PIECE_BYTES))
