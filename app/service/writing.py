"""Database writes of requests, on threads of their own: a reader never waits for a lock that a writer waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final, TypeVar

from conv_advisor.data.errors import StoreError

T = TypeVar("T")

WAIT_S: Final = 5.0
"""Time limit for another's lock, and before that for a thread. A later write is refused, and the client retries."""
READ_WAIT_S: Final = 1.0
"""Time limit for a lock of PostgreSQL against reading, as an ALTER TABLE takes: advice is then refused, not late."""
_THREADS: Final = 4
"""SQLite allows one write at a time; PostgreSQL gains little from more."""


class Writing:
    """Threads that write. They alone wait for the database, and everything else goes on."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="writes")

    async def run(self, write: Callable[..., T], *args: Any) -> T:
        """Write, and wait for the result.

        Parameters
        ----------
        write : callable
            Uses a store that waits at most `WAIT_S` for a lock.

        Raises
        ------
        StoreError
            Nothing was written, because others have been writing for too long.
        """
        pending = self._threads.submit(copy_context().run, write, *args)
        future = asyncio.wrap_future(pending)
        await asyncio.wait([future], timeout=WAIT_S)
        if not future.done() and pending.cancel():
            raise StoreError(f"others have been writing to the store for {WAIT_S:g} s; nothing is written")
        return await future

    def close(self) -> None:
        """Wait for running writes; start no more."""
        self._threads.shutdown(cancel_futures=True)
