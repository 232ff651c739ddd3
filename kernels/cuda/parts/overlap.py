"""Kernels that begin while the kernel before them in the stream still runs: programmatic dependent launch.

In a network this hides most of the time that a kernel takes to begin. It is off where a variant is timed alone, since
the kernel would overlap with itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from conv_advisor.kernels.cuda.parts.source import Source

MACRO: Final = "OVERLAPS"
"""The macro that makes a source overlap with the kernel before it and wait for that kernel (``overlap.cuh``)."""

LEAST_CAPABILITY: Final = 9.0
"""The least compute capability that supports overlap."""

_is_asked: Final[ContextVar[bool]] = ContextVar("overlap", default=False)


@contextmanager
def overlapping() -> Iterator[None]:
    """Launches that this thread prepares inside overlap the kernel before; for devices from `LEAST_CAPABILITY` on."""
    token = _is_asked.set(True)
    try:
        yield
    finally:
        _is_asked.reset(token)


def overlaps(source: Source) -> bool:
    """Whether kernels of a source overlap the kernel before them; a source that cannot wait for it never does."""
    return _is_asked.get() and source.waits
