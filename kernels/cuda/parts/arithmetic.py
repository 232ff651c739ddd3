"""Whole numbers: quotients rounded up, and the threads and filters of kernels that compute so many outputs a thread."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

SHARED_BYTES: Final = 48 * 1024
"""Shared memory that every block may have without asking for more."""
LEAST_THREADS_PER_PROCESSOR: Final = 512
"""Threads that keep a multiprocessor busy; with fewer, a thread computes fewer outputs so that there are more."""
STAGE_BYTES: Final = 24 * 1024
"""Shared memory filled between two barriers: two blocks of 48 KB or more fit a multiprocessor."""


def ceil_div(dividend: Any, divisor: Any) -> Any:
    """The quotient of whole numbers, or of arrays of them, rounded up."""
    return -(-dividend // divisor)


def threads_for(count: int) -> int:
    """Threads a block for so many elements in a row: 64, 128 or 256."""
    return 64 if count <= 64 else 128 if count <= 128 else 256


def filters_per_thread(
    choices: tuple[int, ...],
    filters: int,
    pixels: int,
    processors: int,
    least_threads: int = LEAST_THREADS_PER_PROCESSOR,
) -> int:
    """The most filters a thread may compute, of descending choices, while the device stays busy."""
    for choice in choices:
        if choice <= filters and pixels * ceil(filters / choice) >= processors * least_threads:
            return choice
    return choices[-1]
