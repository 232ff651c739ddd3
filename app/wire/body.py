"""Bodies: read into one buffer, of which only so many bytes exist at a time, and JSON checked against its model."""

from __future__ import annotations

import asyncio
import mmap
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from conv_advisor.app.wire.distinct import check_distinct
from conv_advisor.data.errors import InvalidTensor, QueueFull

Model = TypeVar("Model", bound=BaseModel)

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

MAX_JSON_BYTES: Final = 8 * 2**20
"""Longest JSON body: ten thousand layers with every field named take 3 MiB. Tensors of any size go as safetensors."""
LONGEST_PAUSE_S: Final = 10.0
"""Between two parts of a body: on the way through a network that loses packets a second or two is usual."""
LEAST_BYTES_PER_S: Final = 4096
"""How fast a body must come, but for `LONGEST_PAUSE_S` in all: a client of a byte at a time loses its place."""
_OF_SMALL_PAGES: Final = 2 * 2**20
"""Bytes of a body before its pages are huge."""


class Budget:
    """Bytes that requests may hold at once, of bodies and of what is answered to them; whoever is too many comes back.

    The body that began first has its place to its end, so that of any number that arrive together one gets through.

    Parameters
    ----------
    limit_bytes : int
    longest_bytes : int
        The most that any one request may hold: what the first may still bring is kept for it.
    """

    def __init__(self, limit_bytes: int, longest_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._longest_bytes = longest_bytes
        self._held: list[Hold] = []

    @contextmanager
    def hold(self, announced: int = 0) -> Iterator[Hold]:
        """Hold what arrives of one body; refuse at once what could not be held now.

        Parameters
        ----------
        announced : int
            Its length as far as it is known. What has not arrived is not held: who announces much and sends nothing
            keeps nobody else out.

        Raises
        ------
        QueueFull
        """
        self.check(announced)
        held = Hold(self)
        self._held.append(held)
        try:
            yield held
        finally:
            self._held.remove(held)
            self.held_bytes -= held.count

    def check(self, count: int, of: Hold | None = None) -> None:
        """See that so many bytes more can be held, of a body that is held already or of a new one.

        Raises
        ------
        QueueFull
        """
        first = self._held[0] if self._held else None
        kept = 0 if first is None or first is of else max(self._longest_bytes - first.count, 0)
        if self.held_bytes + kept + count > self.limit_bytes:
            raise QueueFull(f"requests that hold {self.held_bytes} bytes are being worked on, of {self.limit_bytes}")


@dataclass(eq=False)
class Hold:
    """What is held of one body."""

    budget: Budget
    count: int = 0

    def more(self, count: int) -> None:
        """Hold so many bytes more.

        Raises
        ------
        QueueFull
        """
        self.budget.check(count, self)
        self.budget.held_bytes += count
        self.count += count


def announced_bytes(request: Request, otherwise: int = 0) -> int:
    """Length that the request says its body has."""
    return int(request.headers.get("content-length", otherwise))


async def read(request: Request, limit: int, held: Hold | None = None) -> Bytes:
    """Read the body; memory is touched only as bytes arrive, so a false Content-Length costs nothing.

    Raises
    ------
    InvalidTensor
        It ends before its announced length.
    HTTPException
        408, as `arriving` says.
    QueueFull
    """
    buffer = _buffer(announced_bytes(request, limit))
    filled = 0
    try:
        async for chunk in arriving(request):
            if held:
                held.more(len(chunk))
            end = filled + len(chunk)
            buffer[filled:end] = np.frombuffer(chunk, np.uint8)
            filled = end
    except ClientDisconnect:
        raise InvalidTensor("body", f"{filled} bytes", f"the announced {len(buffer)}") from None
    return buffer[:filled]


def _buffer(count: int) -> Bytes:
    """So many bytes, which cost what is written to them, and go back to the system when nobody holds them.

    Notes
    -----
    numpy's own long arrays are of huge pages: a body of which one byte has arrived would take 2 MiB. Here they begin
    where a body has shown that it is long.
    """
    if count <= _OF_SMALL_PAGES:
        return np.empty(count, np.uint8)
    pages = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE, _OF_SMALL_PAGES)
    return np.frombuffer(pages, np.uint8)


async def arriving(request: Request) -> AsyncGenerator[bytes, None]:
    """A body's bytes as they come.

    Raises
    ------
    HTTPException
        408 where nothing comes for `LONGEST_PAUSE_S`, or all of it at less than `LEAST_BYTES_PER_S`.
    """
    chunks, began, count = request.stream(), time.monotonic(), 0
    while True:
        late_s = time.monotonic() - began - count / LEAST_BYTES_PER_S
        try:
            async with asyncio.timeout(min(LONGEST_PAUSE_S, LONGEST_PAUSE_S - late_s)):
                chunk = await anext(chunks, b"")
        except TimeoutError:
            said = f"the body arrives at less than {LEAST_BYTES_PER_S} bytes a second, or not at all"
            raise HTTPException(408, said, {"Connection": "close"}) from None
        if not chunk:
            return
        count += len(chunk)
        yield chunk


@asynccontextmanager
async def json_body(request: Request, limit: int, budget: Budget) -> AsyncIterator[bytes]:
    """A JSON body, held for as long as it is worked on.

    Raises
    ------
    HTTPException
        415 where it says that it is something else.
    QueueFull
    """
    require_media_type(request, "application/json")
    with budget.hold(announced_bytes(request)) as held:
        yield (await read(request, limit, held)).tobytes()


def require_media_type(request: Request, *allowed: str) -> str:
    """The media type of the body, if it is among these.

    Raises
    ------
    HTTPException
        415
    """
    given = media_type(request.headers)
    if given not in allowed:
        raise HTTPException(415, f"Content-Type is {given or 'missing'}; allowed: {', '.join(allowed)}")
    return given


def parse_json(model: type[Model], text: bytes) -> Model:
    """A model from JSON, which has numbers and truth values: no text stands for one, and 1.0 or true for no integer.

    Raises
    ------
    RequestValidationError, InvalidInput
    """
    found = _reported(lambda: model.model_validate_json(text, strict=True))
    check_distinct(text)
    return found


def parse_strings(model: type[Model], values: Mapping[str, str]) -> Model:
    """A model from strings, as metadata are.

    Raises
    ------
    RequestValidationError
    """
    return _reported(lambda: model.model_validate_strings(values))


def parse_values(model: type[Model], values: Mapping[str, Any], where: str) -> Model:
    """A model from values of whatever type, which are converted where that loses nothing.

    Raises
    ------
    RequestValidationError
        Whose faults lie ``where`` it says.
    """
    return _reported(lambda: model.model_validate(values), where)


def _reported(validate: Callable[[], Model], where: str = "body") -> Model:
    try:
        return validate()
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        raise RequestValidationError([fault | {"loc": (where, *fault["loc"])} for fault in faults]) from None


def media_type(headers: Headers) -> str:
    """The media type of the body, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def too_long(limit: int) -> str:
    """Why a body is refused."""
    return f"the body is longer than {limit} bytes"
