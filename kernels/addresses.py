"""Operands told by their addresses, and the stream that work goes to, for whoever has no CuPy array and needs none."""

from __future__ import annotations

import threading
from typing import Final


class Address:
    """Device memory that is told by its address alone: it stands where a launch reads nothing of an array but that.

    Attributes
    ----------
    ptr : int
        May be changed between launches.
    """

    __slots__ = ("ptr",)

    def __init__(self, ptr: int = 0) -> None:
        self.ptr = ptr

    @property
    def data(self) -> Address:
        """Itself, as an array's memory is asked for its address."""
        return self


class _Asked(threading.local):
    stream: int | None = None


ASKED: Final = _Asked()
"""The stream that launches of this thread go to meanwhile; None for CuPy's current one.

Entering one of CuPy's streams costs the host as much as a launch. Whoever sets this sets it back.
"""


def current_stream() -> int:
    """The address of the stream that launches of this thread go to."""
    if ASKED.stream is not None:
        return ASKED.stream
    import cupy

    return int(cupy.cuda.get_current_stream().ptr)
