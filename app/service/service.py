"""What a running service holds: the store, the models, the workers; started and stopped together."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from conv_advisor.app.jobs.background import Background
from conv_advisor.app.jobs.events import Streams
from conv_advisor.app.service.default import DefaultDevice
from conv_advisor.app.service.devices import KnownDevices
from conv_advisor.app.service.kept import Answers, Parts
from conv_advisor.app.service.neighbours import Neighbourhoods
from conv_advisor.app.service.ready import Readiness
from conv_advisor.app.service.recall import Recall
from conv_advisor.app.service.writing import READ_WAIT_S, WAIT_S, Writing
from conv_advisor.app.settings import Settings
from conv_advisor.app.wire.body import Budget, json_body
from conv_advisor.app.wire.errors import ClientGone
from conv_advisor.app.workers import tasks
from conv_advisor.app.workers.any_engine import AnyEngine
from conv_advisor.app.workers.engine import NO_DEVICE, Engine
from conv_advisor.app.workers.opening import OpenEngine
from conv_advisor.app.workers.visible import visible_gpus
from conv_advisor.data.errors import ConvAdvisorError, NotInstalled, StoreError, WorkerError
from conv_advisor.data.measurement import Device, Measurement
from conv_advisor.data.records import Records
from conv_advisor.data.shipped import Shipped
from conv_advisor.data.store import Store
from conv_advisor.models.advisor import Advisor
from conv_advisor.models.registry import Registry

if TYPE_CHECKING:
    from starlette.requests import Request

log = logging.getLogger(__name__)

T = TypeVar("T")

BODIES_AT_ONCE: Final = 4
"""Bodies of the longest length whose tensors may be worked on at once."""
_RETRY_S: Final = 1.0
_LAST_START_S: Final = 5.0
"""For a start of a worker that the end of the service has met halfway."""
_ANSWERS_BYTES: Final = 32 * 2**20
"""Some 4,000 answers with their whole rankings."""
KEPT_PARTS: Final = 100_000
"""Answers of lists, some 300 bytes each with their keys."""
PROMOTED_S: Final = 0.002
"""For how long an answer that is kept may be given after another process has put another tree in charge: looking takes
longer than giving ten such answers."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What advice on a device is made from; equal if and only if neither the tree nor the measurements have changed."""

    advisor: Advisor
    store_version: int


@dataclass(frozen=True, slots=True)
class _Seen:
    basis: Basis
    changes: tuple[int, int]
    until: float


class Service:
    """Everything that outlives one request.

    Parameters
    ----------
    settings : Settings
    open_engine : callable (settings) -> Engine
        Finds the device and starts its worker; tests give one that replays a recording.
    timings : Path
        Folder of the tables that ship.
    """

    def __init__(self, settings: Settings, open_engine: OpenEngine, timings: Path) -> None:
        self.settings = settings
        longest = settings.max_body_bytes
        self.budget = Budget(BODIES_AT_ONCE * longest, 2 * longest)  # of tensors: x and weight, then y
        self._json_budget = Budget(BODIES_AT_ONCE * longest, longest)  # so that tensors keep no advice out
        self.registry = Registry(settings.models_home)
        self.device: Device | None = None
        self.answers = Answers(_ANSWERS_BYTES)
        self.parts = Parts(KEPT_PARTS)
        self.streams = Streams()
        self.writing = Writing()
        self._seen: dict[str | None, _Seen] = {}
        self._open = open_engine
        self._timings = timings
        self._engine: AnyEngine | None = None
        self._ready: Future[tuple[AnyEngine, Device]] = Future()
        self._failure: ConvAdvisorError | None = None
        self.readiness = Readiness(self._unready)
        self._is_stopping = False
        self._closing = threading.Event()
        self._opener = threading.Thread(target=self._keep_opening, name="open engine", daemon=True)
        self._lock = threading.Lock()

    def start(self) -> None:
        """Open the store and take up its jobs; what takes longer follows in the background.

        Raises
        ------
        StoreError
        """
        shipped = Shipped(self._timings)
        patient = Store(self.settings.store_url, shipped=shipped)
        self.store = patient.waiting_at_most(WAIT_S)
        # A reader waits for no writer: what PostgreSQL keeps it waiting for is rare, and lasts.
        reading = self.store if self.store.is_local else self.store.waiting_at_most(READ_WAIT_S)
        self.records = Records(reading, shipped)
        self.recall = Recall(self.records)
        self.default = DefaultDevice(self.settings, self.registry, self.records)
        self.known = KnownDevices(self.registry, self.records, lambda: self.device)
        self.neighbours = Neighbourhoods(self.records)
        self.trainer = Engine(
            NO_DEVICE, max_queue=self.settings.max_queue, start_timeout_s=self.settings.start_timeout_s
        )
        self.background = Background(self.settings, patient, self.store, self.registry, self.trainer)
        self.jobs, self.models = self.background.jobs, self.background.models
        self.background.start()
        self._opener.start()

    def close(self) -> None:
        """Stop everything; a job that runs is taken up by the next start."""
        with self._lock:
            self._closing.set()
        self.background.close()
        self.writing.close()
        self.trainer.close()
        if self._engine is not None:
            self._engine.close()
        self._opener.join(_LAST_START_S)
        self.store.close()

    def stop_soon(self) -> None:
        """Say from now on that the service is not ready, and end what would last as long as it does."""
        self._is_stopping = True
        self.streams.end()

    def stop_work(self) -> None:
        """Give up what the worker does for those who wait: each is told so."""
        if self._engine is not None:
            self._engine.close()

    def json_body(self, request: Request) -> AbstractAsyncContextManager[bytes]:
        """A JSON body within what all of them may hold; see `app.wire.body.json_body`."""
        return json_body(request, self.settings.max_body_bytes, self._json_budget)

    async def engine(self) -> tuple[AnyEngine, Device]:
        """The worker's engine and its device, once it has started.

        Raises
        ------
        WorkerError
            It does not start.
        NotInstalled
            It never will.
        """
        if isinstance(self._failure, NotInstalled):
            raise NotInstalled(self._failure.extra, self._failure.package)
        if self._failure is not None and not self._ready.done():
            raise WorkerError(f"the worker does not start: {self._failure}")
        try:
            async with asyncio.timeout(self.settings.start_timeout_s):
                return await asyncio.shield(asyncio.wrap_future(self._ready))
        except TimeoutError:
            raise WorkerError("the worker is still being started") from None

    async def run(self, request: Request, task: Callable[..., T], *args: Any, deadline_s: float) -> T:
        """Run one task in the worker; it is stopped if the client hangs up.

        Raises
        ------
        ClientGone, QueueFull, DeadlineExceeded, WorkerDied
        ConvAdvisorError
            The task's own.
        """
        engine, _ = await self.engine()
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
            del future, hung_up  # an error holds this frame, which must not hold the error: it has a caller's tensors

    async def keep(self, measurements: Sequence[Measurement]) -> str:
        """Add measurements to the store, if that can be done soon: what was computed is worth telling all the same.

        Returns
        -------
        str
            Why they are not kept; empty where they are.
        """
        try:
            await self.writing.run(self.store.append, measurements)
        except StoreError as error:
            log.warning("%d measurements are not kept: %s", len(measurements), error)
            return str(error)
        return ""

    def workers(self) -> dict[str, AnyEngine | None]:
        """The engines by what they are for; None where one is not open yet."""
        return {"device": self._engine, "trainer": self.trainer}

    def devices(self) -> dict[str, Device]:
        """Every device that was measured, has a tree, or is the worker's own; by id."""
        return self.known.all()

    def find_device(self, name: str) -> Device:
        """The device of a name that was measured, has a tree, or is the worker's own.

        Raises
        ------
        UnknownDevice
        """
        return self.known.find_met(name)

    def device_id(self, name: str | None) -> str:
        """The id of a device by any of its names; of none, that of the default device.

        Raises
        ------
        UnknownDevice, StoreError
        """
        return self.known.id_of(name) if name else self.default_device_id()

    def default_device_id(self) -> str:
        """The device that advice is for where none is named; see `DefaultDevice`.

        Raises
        ------
        UnknownDevice, StoreError
        """
        return self.known.id_of(self.default.id(self.device))

    def advisor(self, device_id: str) -> Advisor:
        """The advisor of a device: on its active model, else on a lent one, else on measurements alone.

        Raises
        ------
        UnknownDevice, ModelRejected
        """
        return self.known.advisor(device_id)

    def basis(self, device_id: str) -> Basis:
        """What advice on a device is made from now.

        Raises
        ------
        UnknownDevice, ModelRejected, StoreError
        """
        return Basis(self.advisor(device_id), self.recall.version(device_id))

    def recent_basis(self, device_id: str | None) -> Basis:
        """What advice on a device, by default the default one, was made from `PROMOTED_S` ago.

        What this process itself has changed since then counts at once.

        Raises
        ------
        UnknownDevice, ModelRejected, StoreError
        """
        now, changes, seen = time.monotonic(), (self.store.writes, self.registry.activations), self._seen.get(device_id)
        if seen is None or now >= seen.until or seen.changes != changes:
            basis = self.basis(device_id or self.default_device_id())
            if seen is not None and seen.basis == basis:
                basis = seen.basis
            seen = self._seen[device_id] = _Seen(basis, changes, now + PROMOTED_S)
        return seen.basis

    def known_basis(self, device_id: str | None) -> Basis | None:
        """`recent_basis` where it takes no question to the database; else None, which is the basis of nothing.

        Raises
        ------
        UnknownDevice, ModelRejected
        """
        is_known = self.recall.is_recent(device_id or self.default_device_id())
        return self.recent_basis(device_id) if is_known else None

    def shortcomings(self) -> dict[str, str]:
        """What keeps the service from doing all it is for: part to reason; empty when it is ready."""
        found = {"server": "it is being stopped"} if self._is_stopping else {}
        is_wanted = not isinstance(self._failure, NotInstalled)  # else advice is all that this installation is for
        if is_wanted and (self._engine is None or not self._engine.is_alive or self.device is None):
            state = self._engine.state if self._engine else "starting"
            found["worker"] = f"its state is {state}" + (f"; {self._failure}" if self._failure else "")
        checks: dict[str, Callable[[], object]] = {
            "store": self._check_store,
            "model": self._check_model,
        }
        for part, check in checks.items():
            try:
                check()
            except ConvAdvisorError as error:
                found[part] = str(error)
        return found

    def _check_store(self) -> None:
        self.store.presence.check()
        self.store.devices()

    def _check_model(self) -> None:
        device_id = self.default_device_id()
        if self.advisor(device_id).loan is None:
            self.registry.active(device_id)

    def _unready(self) -> dict[str, str]:
        """`shortcomings`, and whether the store can be written, for which it may have to wait for another's lock."""
        found = self.shortcomings()
        if "store" not in found:
            try:
                self.store.check_writable()
            except StoreError as error:
                found["store"] = str(error)
        return found

    def _keep_opening(self) -> None:
        while not self._closing.is_set():
            try:
                self._open_engine()
            except CancelledError:  # by close()
                return
            except NotInstalled as error:
                log.warning("no convolution can be run: %s", error)
                self._failure = error
                if self._engine is not None:
                    self._engine.close()
                return
            except Exception as error:  # whatever it is: nobody else starts the worker
                told = error if isinstance(error, ConvAdvisorError) else WorkerError(f"{type(error).__name__}: {error}")
                log.warning("the worker does not start: %s", told, exc_info=told is not error)
                self._failure = told
                self._closing.wait(_RETRY_S)
            else:
                return

    def _open_engine(self) -> None:
        if self._engine is None:
            engine = self._open(self.settings)
            with self._lock:
                if self._closing.is_set():
                    engine.close()
                    return
                self._engine = engine
        self.device = self._engine.run(tasks.describe_device, deadline_s=self.settings.start_timeout_s)
        self._failure = None
        self.background.offer(self._engine, self.device)
        self._ready.set_result((self._engine, self.device))
        log.info("the worker owns %s (%s)", self.device.id, self.device.name)
        if self.device.kind == "cuda":
            visible_gpus()  # which takes long and is kept: whoever asks for cuda:0 later holds up nobody


def service_of(request: Request) -> Service:
    """The service behind the application that is asked."""
    service: Service = request.app.state.service
    return service
