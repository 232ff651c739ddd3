"""Kernels that begin while the kernel before them in the stream still runs: programmatic dependent launch.

In a network this hides most of the time that a kernel takes to begin. It is off where a variant is timed alone, since
the kernel would overlap with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

from conv_advisor.kernels.cuda.parts.source import Source

MACRO: Final = "OVERLAPS"
"""The macro that makes a source overlap with the kernel before it and wait for that kernel (``overlap.cuh``)."""

LEAST_CAPABILITY: Final = 9.0
"""The least compute capability that supports overlap."""

_Made = TypeVar("_Made")
_is_asked: Final[ContextVar[bool]] = ContextVar("overlap", default=False)


@contextmanager
def overlapping(is_asked: bool = True) -> Iterator[None]:
    """Launches that this thread prepares inside overlap the kernel before; for devices from `LEAST_CAPABILITY` on."""
    token = _is_asked.set(is_asked)
    try:
        yield
    finally:
        _is_asked.reset(token)


def as_now(prepare: Callable[[int], _Made]) -> Callable[[int], _Made]:
    """What prepares launches when it is called, so that they overlap if those that are prepared now do."""
    is_asked = _is_asked.get()

    def prepare_as_then(channels: int) -> _Made:
        with overlapping(is_asked):
            return prepare(channels)

    return prepare_as_then


def overlaps(source: Source) -> bool:
    """Whether kernels of a source overlap the kernel before them; a source that cannot wait for it never does."""
    return _is_asked.get() and source.waits
