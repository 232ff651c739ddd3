"""Integer arithmetic: quotients rounded up, and threads per block and filters per thread of simple kernels."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

SHARED_BYTES: Final = 48 * 1024
"""Shared memory that a block may use without raising the kernel's limit."""
LEAST_THREADS_PER_PROCESSOR: Final = 512
"""Threads that keep a multiprocessor busy; where there are fewer, each thread computes fewer outputs instead."""
STAGE_BYTES: Final = 24 * 1024
"""Shared memory filled between two barriers: two blocks of 48 KB or more fit a multiprocessor."""


def ceil_div(dividend: Any, divisor: Any) -> Any:
    """The quotient of whole numbers, or of arrays of them, rounded up."""
    return -(-dividend // divisor)


def threads_for(count: int) -> int:
    """Threads per block for ``count`` elements in a row: 64, 128 or 256."""
    return 64 if count <= 64 else 128 if count <= 128 else 256


def filters_per_thread(
    choices: tuple[int, ...],
    filters: int,
    pixels: int,
    processors: int,
    least_threads: int = LEAST_THREADS_PER_PROCESSOR,
) -> int:
    """The first of descending choices, not above ``filters``, that keeps the device busy; else the last."""
    for choice in choices:
        if choice <= filters and pixels * ceil(filters / choice) >= processors * least_threads:
            return choice
    return choices[-1]
