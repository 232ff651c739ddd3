"""Kernels that begin while the one ahead of them in the stream still runs: programmatic dependent launch.

In a network a launch then costs what its kernel computes, and little of what it takes to begin. Where a variant is
timed alone nobody asks for it: a kernel would overlap itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from conv_advisor.kernels.cuda.parts.source import Source

MACRO: Final = "OVERLAPS"
"""What a source that waits for the kernel ahead is compiled with where it is to overlap it (``overlap.cuh``)."""

LEAST_CAPABILITY: Final = 9.0
"""The compute capability from which on a device can do so."""

_is_asked: Final[ContextVar[bool]] = ContextVar("overlap", default=False)


@contextmanager
def overlapping() -> Iterator[None]:
    """What this thread prepares meanwhile overlaps the kernel ahead; for devices from `LEAST_CAPABILITY` on."""
    token = _is_asked.set(True)
    try:
        yield
    finally:
        _is_asked.reset(token)


def overlaps(source: Source) -> bool:
    """Whether kernels of a source are to overlap the one ahead of them: one that does not wait for it never does."""
    return _is_asked.get() and source.waits
