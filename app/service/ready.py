"""Whether the service can do what it is for, asked so that a part which hangs is told like one that fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

LONGEST_S: Final = 1.5
"""How long all checks together may take."""

Shortcomings = dict[str, str]


class Readiness:
    """Runs a check on a thread of its own, one at a time, whatever else waits for threads.

    Parameters
    ----------
    check : callable () -> dict of str to str
        Part to what it lacks; may take for ever.
    """

    def __init__(self, check: Callable[[], Shortcomings]) -> None:
        self._check = check
        self._running: Future[Shortcomings] | None = None

    async def shortcomings(self) -> Shortcomings:
        """What the check finds, or that it finds nothing within `LONGEST_S`; on the event loop alone."""
        running = self._running
        if running is None or running.done():
            running = self._running = Future()
            threading.Thread(target=_settle, args=(running, self._check), name="readiness", daemon=True).start()
        try:
            async with asyncio.timeout(LONGEST_S):
                return await asyncio.shield(asyncio.wrap_future(running))
        except TimeoutError:
            return {"checks": f"a part did not answer within {LONGEST_S:g} s"}


def _settle(future: Future[Shortcomings], check: Callable[[], Shortcomings]) -> None:
    try:
        future.set_result(check())
    except Exception as error:
        future.set_exception(error)
