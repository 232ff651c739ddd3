"""Bodies: read into one buffer, of which only so many bytes exist at a time, and JSON checked against its model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from app.border import media_type
from data.errors import InvalidTensor, QueueFull

Model = TypeVar("Model", bound=BaseModel)

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class Budget:
    """Bytes of request bodies that may be held at once; what exceeds them is asked to come back.

    Parameters
    ----------
    limit_bytes : int
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._held_bytes = 0

    @contextmanager
    def hold(self, count: int) -> Iterator[None]:
        """Hold this many bytes.

        Raises
        ------
        QueueFull
        """
        if self._held_bytes + count > self.limit_bytes:
            raise QueueFull(f"request bodies of {self._held_bytes} bytes are being worked on, of {self.limit_bytes}")
        self._held_bytes += count
        try:
            yield
        finally:
            self._held_bytes -= count


def announced_bytes(request: Request, limit: int) -> int:
    """Length that the request says its body has; the limit where it does not say."""
    return int(request.headers.get("content-length", limit))


async def read(request: Request, limit: int) -> Bytes:
    """Read the body; memory is touched only as bytes arrive, so a false Content-Length costs nothing.

    Raises
    ------
    InvalidTensor
        It ends before its announced length.
    """
    buffer = np.empty(announced_bytes(request, limit), np.uint8)
    filled = 0
    try:
        async for chunk in request.stream():
            end = filled + len(chunk)
            buffer[filled:end] = np.frombuffer(chunk, np.uint8)
            filled = end
    except ClientDisconnect:
        raise InvalidTensor("body", f"{filled} bytes", f"the announced {len(buffer)}") from None
    return buffer[:filled]


async def read_json(request: Request, limit: int) -> bytes:
    """Read a JSON body.

    Raises
    ------
    HTTPException
        415 where it says that it is something else.
    """
    require_media_type(request, "application/json")
    return (await read(request, limit)).tobytes()


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
    """A model from JSON.

    Raises
    ------
    RequestValidationError
    """
    return _reported(lambda: model.model_validate_json(text))


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
