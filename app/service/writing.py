"""What requests write to the database, on threads of their own: what reads waits for no lock that a write waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final, TypeVar

from conv_advisor.data.errors import StoreError

T = TypeVar("T")

WAIT_S: Final = 5.0
"""For another's lock; and before that for a thread. A write that comes this late is refused, and asked for again."""
READ_WAIT_S: Final = 1.0
"""For a lock on PostgreSQL's tables against reading, as whoever alters them has: advice is then refused, not late."""
_THREADS: Final = 4
"""SQLite lets one write at a time; PostgreSQL gains little by more."""


class Writing:
    """Threads that write. What waits for the database waits here, and everything else goes on."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="writes")

    async def run(self, write: Callable[..., T], *args: Any) -> T:
        """Write, and wait for it.

        Parameters
        ----------
        write : callable
            On a store that waits at most `WAIT_S` for a lock.

        Raises
        ------
        StoreError
            Nothing is written: others have been writing for too long.
        """
        begun = self._threads.submit(copy_context().run, write, *args)
        future = asyncio.wrap_future(begun)
        await asyncio.wait([future], timeout=WAIT_S)
        if not future.done() and begun.cancel():
            raise StoreError(f"others have been writing to the store for {WAIT_S:g} s; nothing is written")
        return await future

    def close(self) -> None:
        """Wait for what is being written; write nothing more."""
        self._threads.shutdown(cancel_futures=True)
