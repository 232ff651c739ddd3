"""How work is spread over the cores, or kept on one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache, partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

LEAST_FLOPS: Final = 2_000_000
"""Work below which a thread costs more than it saves: handing work over takes some 20 µs, and a thread usually does
10¹¹ flop/s."""


class Threads:
    """A fixed number of threads, the caller's own among them.

    Parameters
    ----------
    count : int
        1 keeps all work on the calling thread.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._others = ThreadPoolExecutor(count - 1, thread_name_prefix="conv") if count > 1 else None

    def worth(self, flops: int) -> int:
        """How many of the threads this many operations are worth."""
        return max(1, min(self.count, flops // LEAST_FLOPS))

    def over(self, items: int, flops: int, work: Callable[[int, int], object]) -> None:
        """Call ``work(first, last)`` on ranges that together cover `items`, at the same time.

        Parameters
        ----------
        items : int
        flops : int
            Operations of all items together, which decide how many threads to use.
        work : callable (first, last) -> None
            Must release the interpreter lock while it works.
        """
        parts = max(1, min(items, self.worth(flops)))
        bounds = [items * part // parts for part in range(parts + 1)]
        if self._others is None or parts == 1:
            work(0, items)
            return
        # In copies of the caller's context, so that np.errstate holds there too.
        waiting = [
            self._others.submit(partial(copy_context().run, work, bounds[part], bounds[part + 1]))
            for part in range(1, parts)
        ]
        try:
            work(0, bounds[1])
        finally:
            for future in waiting:
                future.result()


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS on the thread that calls it; `Threads` spreads the work, without the spinning of BLAS's own threads."""
    with _blas_libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _blas_libraries() -> ThreadpoolController:
    """The loaded BLAS libraries; the search takes milliseconds, so it is done once."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
