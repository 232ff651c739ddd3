"""The interface of every engine, over one device of this host or over the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from enum import StrEnum
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from conv_advisor.app.workers.child import OnProgress

T = TypeVar("T")


class EngineState(StrEnum):
    """What the worker is doing."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    DOWN = "down"
    """Its last start failed; it is tried again every now and then, and by the next job."""
    CLOSED = "closed"


class AnyEngine(Protocol):
    """Runs tasks in processes that own a device, each within a deadline."""

    @property
    def device_id(self) -> str:
        """What to call the device in a message."""
        ...

    @property
    def state(self) -> EngineState:
        """What the worker is doing now."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether a job would be taken at once, or is being run."""
        ...

    @property
    def queued(self) -> int:
        """Jobs that wait."""
        ...

    @property
    def restarts(self) -> int:
        """How often a process took over from one that ended."""
        ...

    @property
    def pid(self) -> int | None:
        """Process id of the child that owns the device; None where it runs on another host."""
        ...

    def submit(
        self, task: Callable[..., T], *args: Any, deadline_s: float, on_progress: OnProgress | None = None
    ) -> Future[T]:
        """Queue one job; see `app.workers.engine.Engine.submit`."""
        ...

    def run(self, task: Callable[..., T], *args: Any, deadline_s: float, on_progress: OnProgress | None = None) -> T:
        """Submit one job and wait for its result; an interrupted wait cancels it."""
        ...

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait for the end of the first start; False where it takes longer or fails."""
        ...

    def close(self) -> None:
        """Cancel everything and end the processes; never hangs, and may be called twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
