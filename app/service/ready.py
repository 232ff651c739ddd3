"""Whether the service is ready, checked so that a part that hangs is reported like one that fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

LONGEST_S: Final = 1.5
"""Time limit of all checks together."""

Shortcomings = dict[str, str]


class Readiness:
    """Runs a check on its own thread, one at a time, independent of busy thread pools.

    Parameters
    ----------
    check : callable () -> dict of str to str
        Maps each part to its shortcoming; may never return.
    """

    def __init__(self, check: Callable[[], Shortcomings]) -> None:
        self._check = check
        self._running: asyncio.Future[Shortcomings] | None = None

    async def shortcomings(self) -> Shortcomings:
        """The result of the check, or that it took longer than `LONGEST_S`; to be called only on the event loop."""
        running = self._running
        if running is None or running.done():
            result = Future[Shortcomings]()
            running = self._running = asyncio.wrap_future(result)  # once: whoever asks meanwhile leaves nothing there
            threading.Thread(target=_settle, args=(result, self._check), name="readiness", daemon=True).start()
        try:
            async with asyncio.timeout(LONGEST_S):
                return await asyncio.shield(running)
        except TimeoutError:
            return {"checks": f"a part did not answer within {LONGEST_S:g} s"}


def _settle(future: Future[Shortcomings], check: Callable[[], Shortcomings]) -> None:
    try:
        future.set_result(check())
    except Exception as error:
        future.set_exception(error)
