"""An engine lent to one piece of work, which can be stopped without stopping the engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, Final

from conv_advisor.app.workers.any_engine import AnyEngine
from conv_advisor.app.workers.child import OnProgress
from conv_advisor.data.errors import QueueFull

_TICK_S: Final = 0.1


class Lent:
    """An engine lent to one piece of work: the work can be stopped, while the engine goes on."""

    def __init__(self, engine: AnyEngine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._running: Future[Any] | None = None
        self._is_stopped = False

    @property
    def device_id(self) -> str:
        """What to call the device in a message."""
        return self._engine.device_id

    def run(
        self, task: Callable[..., Any], *args: Any, deadline_s: float, on_progress: OnProgress | None = None
    ) -> Any:
        """Run one task and wait for it, also for a place in the queue; raises CancelledError once stopped."""
        while (future := self._submit(task, *args, deadline_s=deadline_s, on_progress=on_progress)) is None:
            time.sleep(_TICK_S)
        try:
            return future.result()
        finally:
            future.cancel()

    def stop(self) -> None:
        """Kill the process of the running task, if there is one, and run no more."""
        with self._lock:
            self._is_stopped = True
            if self._running:
                self._running.cancel()

    def _submit(self, task: Callable[..., Any], *args: Any, **options: Any) -> Future[Any] | None:
        with self._lock:
            if self._is_stopped:
                raise CancelledError
            try:
                self._running = self._engine.submit(task, *args, **options)
            except QueueFull:  # others use the engine too: the work is not at fault
                return None
            return self._running
