"""Operands given by their addresses, and the stream that work goes to, for callers that have no CuPy arrays."""

from __future__ import annotations

import threading
from typing import Final


class Address:
    """Device memory known by its address alone: it replaces an array in a launch that reads only the array's address.

    Attributes
    ----------
    ptr : int
        The caller may change it between launches.
    """

    __slots__ = ("ptr",)

    def __init__(self, ptr: int = 0) -> None:
        self.ptr = ptr

    @property
    def data(self) -> Address:
        """Itself, since a launch reads an array's address as ``array.data.ptr``."""
        return self


class _Asked(threading.local):
    stream: int | None = None


ASKED: Final = _Asked()
"""The stream that launches of this thread go to while it is set; None for CuPy's current one.

Entering one of CuPy's streams costs the host as much as a launch. The caller that sets this must set it back.
"""


def current_stream() -> int:
    """The address of the stream that launches of this thread go to."""
    if ASKED.stream is not None:
        return ASKED.stream
    import cupy

    return int(cupy.cuda.get_current_stream().ptr)
