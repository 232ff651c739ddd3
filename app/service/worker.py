"""The worker that owns a server's device: opened in the background; its tasks stop when their client hangs up."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

from conv_advisor.app.settings import Settings
from conv_advisor.app.wire.errors import ClientGone
from conv_advisor.app.workers import tasks
from conv_advisor.app.workers.any_engine import AnyEngine
from conv_advisor.app.workers.opening import OpenEngine
from conv_advisor.app.workers.visible import visible_gpus
from conv_advisor.data.errors import ConvAdvisorError, NotInstalled, WorkerError
from conv_advisor.data.measurement import Device

if TYPE_CHECKING:
    from starlette.requests import Request

log = logging.getLogger(__name__)

T = TypeVar("T")

OnOpen = Callable[[AnyEngine, Device], object]
"""Called with an engine that has been opened, and its device."""

_RETRY_S: Final = 1.0
_LAST_START_S: Final = 5.0
"""Time limit for a worker that is starting when the service ends."""


class Worker:
    """Opens the engine of the server's device, retrying until that succeeds, and runs tasks on it.

    Parameters
    ----------
    settings : Settings
    open_engine : callable (settings) -> Engine
        Finds the device and starts its worker.

    Attributes
    ----------
    engine : AnyEngine or None
        None until it is open.
    device : Device or None
        None until the worker has described it.
    """

    def __init__(self, settings: Settings, open_engine: OpenEngine) -> None:
        self.engine: AnyEngine | None = None
        self.device: Device | None = None
        self._settings = settings
        self._open = open_engine
        self._ready: Future[tuple[AnyEngine, Device]] = Future()
        self._failure: ConvAdvisorError | None = None
        self._closing = threading.Event()
        self._opener: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self, on_open: OnOpen) -> None:
        """Begin to open the engine; `on_open` is called once, on a separate thread."""
        self._opener = threading.Thread(target=self._keep_opening, args=(on_open,), name="open engine", daemon=True)
        self._opener.start()

    def stop_opening(self) -> None:
        """Begin no further attempt to open the engine."""
        with self._lock:
            self._closing.set()

    def give_up(self) -> None:
        """Give up the engine's work; everyone who waits for it gets an error."""
        if self.engine is not None:
            self.engine.close()

    def close(self) -> None:
        """Close the engine, after `stop_opening`."""
        self.give_up()
        if self._opener is not None:
            self._opener.join(_LAST_START_S)

    def why_not_ready(self) -> str:
        """Why no task can run now; empty if one can, and if this installation is for advice alone."""
        is_ready = self.engine is not None and self.engine.is_alive and self.device is not None
        if is_ready or isinstance(self._failure, NotInstalled):
            return ""
        state = self.engine.state if self.engine else "starting"
        return f"its state is {state}" + (f"; {self._failure}" if self._failure else "")

    async def opened(self) -> tuple[AnyEngine, Device]:
        """The engine and its device, once the worker has started.

        Raises
        ------
        WorkerError
            The worker does not start.
        NotInstalled
            The worker can never start in this installation.
        """
        if isinstance(self._failure, NotInstalled):
            raise NotInstalled(self._failure.extra, self._failure.package)
        if self._failure is not None and not self._ready.done():
            raise WorkerError(f"the worker does not start: {self._failure}")
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                return await asyncio.shield(asyncio.wrap_future(self._ready))
        except TimeoutError:
            raise WorkerError("the worker is still being started") from None

    async def run(self, request: Request, task: Callable[..., T], *args: Any, deadline_s: float) -> T:
        """Run one task; it is stopped if the client hangs up.

        Raises
        ------
        ClientGone, QueueFull, DeadlineExceeded, WorkerDied
        ConvAdvisorError
            Raised by the task.
        """
        engine, _ = await self.opened()
        future = asyncio.wrap_future(engine.submit(task, *args, deadline_s=deadline_s))
        hung_up = asyncio.ensure_future(request.receive())
        try:
            await asyncio.wait((future, hung_up), return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                raise ClientGone
            if future.cancelled():
                raise WorkerError("the service is being stopped")
            return future.result()
        finally:
            hung_up.cancel()
            future.cancel()
            del future, hung_up  # an error holds this frame, which must not hold it: it has a caller's tensors

    def _keep_opening(self, on_open: OnOpen) -> None:
        while not self._closing.is_set():
            try:
                self._open_engine(on_open)
            except CancelledError:  # by close()
                return
            except NotInstalled as error:
                log.warning("no convolution can be run: %s", error)
                self._failure = error
                if self.engine is not None:
                    self.engine.close()
                return
            except Exception as error:  # any error: nothing else starts the worker
                failure = (
                    error if isinstance(error, ConvAdvisorError) else WorkerError(f"{type(error).__name__}: {error}")
                )
                log.warning("the worker does not start: %s", failure, exc_info=failure is not error)
                self._failure = failure
                self._closing.wait(_RETRY_S)
            else:
                return

    def _open_engine(self, on_open: OnOpen) -> None:
        if self.engine is None:
            engine = self._open(self._settings)
            with self._lock:
                if self._closing.is_set():
                    engine.close()
                    return
                self.engine = engine
        self.device = self.engine.run(tasks.describe_device, deadline_s=self._settings.start_timeout_s)
        self._failure = None
        on_open(self.engine, self.device)
        self._ready.set_result((self.engine, self.device))
        log.info("the worker owns %s (%s)", self.device.id, self.device.name)
        if self.device.kind == "cuda":
            visible_gpus()  # takes long and is cached: a later request for cuda:0 does not have to wait
