"""Request bodies: read into one buffer under a limit of bytes in memory; JSON is checked against its model."""

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
from pydantic_core import ErrorDetails
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from conv_advisor.app.wire.distinct import check_distinct
from conv_advisor.data.errors import InvalidTensor, QueueFull

Model = TypeVar("Model", bound=BaseModel)

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

MAX_JSON_BYTES: Final = 8 * 2**20
"""Longest JSON body: ten thousand layers with every field named take 3 MiB. Large tensors come as safetensors."""
LONGEST_PAUSE_S: Final = 10.0
"""Longest pause between two parts of a body: where a network loses packets, a second or two is usual."""
LEAST_BYTES_PER_S: Final = 4096
"""Least rate of a body, with `LONGEST_PAUSE_S` of grace in all: a client that sends single bytes loses its place."""
_LONGEST_FIELD: Final = 100
"""Characters of a field's name that are compared with those that there are."""
_MOST_EXPLAINED: Final = 20
"""Faults of one payload that are explained: answers list no more."""
_OF_SMALL_PAGES: Final = 2 * 2**20
"""Bytes at the start of a body that lie on small pages; huge pages follow."""


class Budget:
    """Limit of the bytes that requests hold at once, bodies and answers together; beyond it, clients must retry.

    The body that began first keeps its place to its end, so that one of any number that arrive together gets through.

    Parameters
    ----------
    limit_bytes : int
    longest_bytes : int
        The most that any one request may hold: the first request has this much reserved.
    """

    def __init__(self, limit_bytes: int, longest_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._longest_bytes = longest_bytes
        self._held: list[Hold] = []

    @contextmanager
    def hold(self, announced: int = 0) -> Iterator[Hold]:
        """Hold the bytes of one body as they arrive; refuse at once a body that does not fit now.

        Parameters
        ----------
        announced : int
            Its length, as far as it is known. Bytes are held only once they arrive: a client that announces much and
            sends nothing keeps no other out.

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
        """Check that so many more bytes can be held, of a body that is held already or of a new one.

        Raises
        ------
        QueueFull
        """
        first = self._held[0] if self._held else None
        reserved = 0 if first is None or first is of else max(self._longest_bytes - first.count, 0)
        if self.held_bytes + reserved + count > self.limit_bytes:
            raise QueueFull(f"requests that hold {self.held_bytes} bytes are being worked on, of {self.limit_bytes}")


@dataclass(eq=False)
class Hold:
    """The bytes held of one body."""

    budget: Budget
    count: int = 0

    def more(self, count: int) -> None:
        """Hold so many more bytes.

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
    """Read the body; memory is touched only as bytes arrive, so that a false Content-Length costs nothing.

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
    """A buffer that takes memory only as it is written, and gives it back to the system when it is freed.

    Notes
    -----
    NumPy's own long arrays have huge pages: a body would take 2 MiB with its first byte. Here huge pages begin at
    `_OF_SMALL_PAGES`.
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
            detail = f"the body arrives at less than {LEAST_BYTES_PER_S} bytes a second, or not at all"
            raise HTTPException(408, detail, {"Connection": "close"}) from None
        if not chunk:
            return
        count += len(chunk)
        yield chunk


@asynccontextmanager
async def json_body(request: Request, limit: int, budget: Budget) -> AsyncIterator[bytes]:
    """A JSON body, held until its request is done.

    Raises
    ------
    HTTPException
        415 where its Content-Type is another.
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
    actual = media_type(request.headers)
    if actual not in allowed:
        raise HTTPException(415, f"Content-Type is {actual or 'missing'}; allowed: {', '.join(allowed)}")
    return actual


def parse_json(model: type[Model], text: bytes) -> Model:
    """A model from JSON, read strictly: no string counts as a number or a boolean, nor 1.0 or true as an integer.

    Raises
    ------
    RequestValidationError, InvalidInput
    """
    parsed = _reported(model, lambda: model.model_validate_json(text, strict=True))
    check_distinct(text)
    return parsed


def parse_strings(model: type[Model], values: Mapping[str, str]) -> Model:
    """A model from strings, such as metadata.

    Raises
    ------
    RequestValidationError
    """
    return _reported(model, lambda: model.model_validate_strings(values))


def parse_values(model: type[Model], values: Mapping[str, Any], where: str) -> Model:
    """A model from values of any type, which are converted where that loses nothing.

    Raises
    ------
    RequestValidationError
        ``where`` begins the location of each fault.
    """
    return _reported(model, lambda: model.model_validate(values), where)


def _reported(model: type[Model], validate: Callable[[], Model], where: str = "body") -> Model:
    try:
        return validate()
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        for fault in faults[:_MOST_EXPLAINED]:
            fault["msg"] = _said(model, fault)
        raise RequestValidationError([fault | {"loc": (where, *fault["loc"])} for fault in faults]) from None


def _said(model: type[BaseModel], fault: ErrorDetails) -> str:
    """What is wrong, and what the model's own field would be; Pydantic names only the type."""
    from difflib import get_close_matches  # needed only after a mistake

    fields, name = model.model_fields, str(fault["loc"][-1]) if fault["loc"] else ""
    if len(fault["loc"]) == 1 and fault["type"] == "extra_forbidden":
        near = get_close_matches(name[:_LONGEST_FIELD], fields, n=1)
        return f"no such field; did you mean {near[0]}?" if near else f"no such field; allowed: {', '.join(fields)}"
    is_ours = fault["type"] == "value_error"
    if len(fault["loc"]) == 1 and name in fields and fields[name].description and not is_ours:
        return f"{fault['msg']}: {fields[name].description}"
    return fault["msg"]


def media_type(headers: Headers) -> str:
    """The media type of the body, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def too_long(limit: int) -> str:
    """Why a body is refused."""
    return f"the body is longer than {limit} bytes"
