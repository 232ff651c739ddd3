"""The state of a running service: the store, the models, the workers; started and stopped together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conv_advisor.app.jobs.background import Background
from conv_advisor.app.jobs.events import Streams
from conv_advisor.app.service.devices import KnownDevices
from conv_advisor.app.service.kept import Answers, Parts
from conv_advisor.app.service.neighbours import Neighbourhoods
from conv_advisor.app.service.ready import Readiness
from conv_advisor.app.service.recall import Recall
from conv_advisor.app.service.worker import Worker
from conv_advisor.app.service.writing import READ_WAIT_S, WAIT_S, Writing
from conv_advisor.app.settings import Settings
from conv_advisor.app.wire.body import Budget, json_body
from conv_advisor.app.workers.any_engine import AnyEngine
from conv_advisor.app.workers.engine import NO_DEVICE, Engine
from conv_advisor.app.workers.opening import OpenEngine
from conv_advisor.data.errors import ConvAdvisorError, StoreError, WorkerError
from conv_advisor.data.measurement import Measurement
from conv_advisor.data.records import Records
from conv_advisor.data.shipped import Shipped
from conv_advisor.data.store import Store
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.registry.on_disk import Registry

if TYPE_CHECKING:
    from starlette.requests import Request

log = logging.getLogger(__name__)

BODIES_AT_ONCE: Final = 4
"""Bodies of the longest length whose tensors may be in memory at once."""
_ANSWERS_BYTES: Final = 32 * 2**20
"""Room for some 4,000 answers with their whole rankings."""
KEPT_PARTS: Final = 100_000
"""Most cached answers of lists, some 300 bytes each with their keys."""
PROMOTED_S: Final = 0.002
"""How long a cached answer may be given after another process has put another tree in charge: checking takes
longer than giving ten such answers."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What advice on a device depends on; equal if and only if neither the tree nor the measurements have changed."""

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
        Folder of the shipped tables.
    """

    def __init__(self, settings: Settings, open_engine: OpenEngine, timings: Path) -> None:
        self.settings = settings
        longest = settings.max_body_bytes
        self.budget = Budget(BODIES_AT_ONCE * longest, 2 * longest)  # for tensors: x and weight, then y
        self._json_budget = Budget(BODIES_AT_ONCE * longest, longest)  # separate, so that tensors do not block advice
        self.registry = Registry(settings.models_home)
        self.answers = Answers(_ANSWERS_BYTES)
        self.parts = Parts(KEPT_PARTS)
        self.streams = Streams()
        self.writing = Writing()
        self._seen: dict[str | None, _Seen] = {}
        self._timings = timings
        self.worker = Worker(settings, open_engine)
        self.readiness = Readiness(self._unready)
        self._is_stopping = self._is_given_up = False

    def start(self) -> None:
        """Open the store and resume its jobs; slower parts follow in the background.

        Raises
        ------
        StoreError
        """
        shipped = Shipped(self._timings)
        patient = Store(self.settings.store_url, shipped=shipped)
        self.store = patient.waiting_at_most(WAIT_S)
        # A reader waits for no writer: locks of PostgreSQL against readers are rare, and last long.
        reading = self.store if self.store.is_local else self.store.waiting_at_most(READ_WAIT_S)
        self.records = Records(reading, shipped)
        self.recall = Recall(self.records)
        self.known = KnownDevices(self.registry, self.records, lambda: self.worker.device, self.settings.advice_device)
        self.neighbours = Neighbourhoods(self.records)
        self.trainer = Engine(
            NO_DEVICE, max_queue=self.settings.max_queue, start_timeout_s=self.settings.start_timeout_s
        )
        self.background = Background(self.settings, patient, self.store, self.registry, self.trainer)
        self.jobs, self.models = self.background.jobs, self.background.models
        self.background.start()
        self.worker.start(self.background.offer)

    def close(self) -> None:
        """Stop everything; the next start resumes a running job."""
        self.worker.stop_opening()
        self.background.close()
        self.writing.close()
        self.trainer.close()
        self.worker.close()
        self.store.close()

    def stop_soon(self) -> None:
        """Report from now on that the service is not ready, and end the streams, which would last as long."""
        self._is_stopping = True
        self.streams.end()

    def give_up(self) -> None:
        """Give up unfinished work; everyone who waits for it gets an error."""
        self._is_given_up = True
        self.worker.give_up()

    def check(self) -> None:
        """Raise if long work on a thread, which cannot be interrupted, is no longer needed.

        Raises
        ------
        WorkerError
            The work was given up: see `give_up`.
        """
        if self._is_given_up:
            raise WorkerError("the service is being stopped")

    def json_body(self, request: Request) -> AbstractAsyncContextManager[bytes]:
        """A JSON body within the memory for all of them; see `app.wire.body.json_body`."""
        return json_body(request, self.settings.max_body_bytes, self._json_budget)

    async def keep(self, measurements: Sequence[Measurement]) -> str:
        """Add measurements to the store, if that is soon possible: the answer is useful even if not.

        Returns
        -------
        str
            Why they are not stored; empty where they are.
        """
        try:
            await self.writing.run(self.store.append, measurements)
        except StoreError as error:
            log.warning("%d measurements are not kept: %s", len(measurements), error)
            return str(error)
        return ""

    def workers(self) -> dict[str, AnyEngine | None]:
        """The engines by purpose; None where one is not open yet."""
        return {"device": self.worker.engine, "trainer": self.trainer}

    def advisor(self, device_id: str) -> Advisor:
        """The advisor of a device: with its active model, else with a lent one, else with measurements alone.

        Raises
        ------
        UnknownDevice, ModelRejected
        """
        return self.known.advisor(device_id)

    def basis(self, device_id: str) -> Basis:
        """What advice on a device depends on now.

        Raises
        ------
        UnknownDevice, ModelRejected, StoreError
        """
        return Basis(self.advisor(device_id), self.recall.version(device_id))

    def recent_basis(self, device_id: str | None) -> Basis:
        """What advice on a device, by default the default one, depended on at most `PROMOTED_S` ago.

        Changes by this process count at once.

        Raises
        ------
        UnknownDevice, ModelRejected, StoreError
        """
        now, changes, seen = time.monotonic(), (self.store.writes, self.registry.activations), self._seen.get(device_id)
        if seen is None or now >= seen.until or seen.changes != changes:
            basis = self.basis(device_id or self.known.asked_id())
            if seen is not None and seen.basis == basis:
                basis = seen.basis
            seen = self._seen[device_id] = _Seen(basis, changes, now + PROMOTED_S)
        return seen.basis

    def known_basis(self, device_id: str | None) -> Basis | None:
        """`recent_basis` if it needs no database query; else None, which equals no basis.

        Raises
        ------
        UnknownDevice, ModelRejected
        """
        is_known = self.recall.is_recent(device_id or self.known.asked_id())
        return self.recent_basis(device_id) if is_known else None

    def shortcomings(self) -> dict[str, str]:
        """The reasons why parts of the service do not work, by part; empty when it is ready."""
        reasons = {"server": "it is being stopped"} if self._is_stopping else {}
        if reason := self.worker.why_not_ready():
            reasons["worker"] = reason
        checks: dict[str, Callable[[], object]] = {
            "store": self._check_store,
            "model": self._check_model,
        }
        for part, check in checks.items():
            try:
                check()
            except ConvAdvisorError as error:
                reasons[part] = str(error)
        return reasons

    def _check_store(self) -> None:
        self.store.presence.check()
        self.store.devices()

    def _check_model(self) -> None:
        device_id = self.known.asked_id()
        if self.advisor(device_id).loan is None:
            self.registry.active(device_id)

    def _unready(self) -> dict[str, str]:
        """`shortcomings`, also of writing to the store, which may have to wait for another process's lock."""
        reasons = self.shortcomings()
        if "store" not in reasons:
            try:
                self.store.check_writable()
            except StoreError as error:
                reasons["store"] = str(error)
        return reasons


def service_of(request: Request) -> Service:
    """The service behind a request's application."""
    service: Service = request.app.state.service
    return service
