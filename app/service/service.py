"""What a running service holds: the store, the models, the workers; started and stopped together."""

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
"""Bodies of the longest length whose tensors may be worked on at once."""
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
        """Stop everything; a job that runs is taken up by the next start."""
        self.worker.stop_opening()
        self.background.close()
        self.writing.close()
        self.trainer.close()
        self.worker.close()
        self.store.close()

    def stop_soon(self) -> None:
        """Say from now on that the service is not ready, and end what would last as long as it does."""
        self._is_stopping = True
        self.streams.end()

    def give_up(self) -> None:
        """Give up what is not done: each who waits for it is told so."""
        self._is_given_up = True
        self.worker.give_up()

    def check(self) -> None:
        """See that long work on a thread, which nobody can stop, is still waited for.

        Raises
        ------
        WorkerError
            It is not: see `give_up`.
        """
        if self._is_given_up:
            raise WorkerError("the service is being stopped")

    def json_body(self, request: Request) -> AbstractAsyncContextManager[bytes]:
        """A JSON body within what all of them may hold; see `app.wire.body.json_body`."""
        return json_body(request, self.settings.max_body_bytes, self._json_budget)

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
        return {"device": self.worker.engine, "trainer": self.trainer}

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
            basis = self.basis(device_id or self.known.asked_id())
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
        is_known = self.recall.is_recent(device_id or self.known.asked_id())
        return self.recent_basis(device_id) if is_known else None

    def shortcomings(self) -> dict[str, str]:
        """What keeps the service from doing all it is for: part to reason; empty when it is ready."""
        found = {"server": "it is being stopped"} if self._is_stopping else {}
        if reason := self.worker.why_not_ready():
            found["worker"] = reason
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
        device_id = self.known.asked_id()
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


def service_of(request: Request) -> Service:
    """The service behind the application that is asked."""
    service: Service = request.app.state.service
    return service
