"""The workers of a sweep: devices of this host, each with its own worker, or the workers of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from conv_advisor.app.sweep.attempt import Layer, Result, Terms, measure_layer
from conv_advisor.app.workers import tasks
from conv_advisor.app.workers.engine import Engine
from conv_advisor.app.workers.lent import Lent
from conv_advisor.data.errors import InvalidInput, WorkerError
from conv_advisor.data.measurement import Device

if TYPE_CHECKING:
    pass

OnBegin = Callable[[str], None]
OnResult = Callable[[Result], None]


class Fleet(Protocol):
    """Workers with equal devices; each measures one layer at a time."""

    patience_s: float
    """How long to wait for a worker if none is left."""

    @property
    def n_workers(self) -> int:
        """Workers that are available now."""
        ...

    @property
    def n_places(self) -> int:
        """Number of layers that should be handed over at once."""
        ...

    def describe(self, deadline_s: float) -> Device:
        """The device of the workers.

        Raises
        ------
        InvalidInput
            The workers have different devices.
        WorkerError
        """
        ...

    def delegate(self, layer: Layer, terms: Terms, on_begin: OnBegin, on_result: OnResult) -> Future[None]:
        """Measure a layer on any free worker; see `app.sweep.attempt.measure_layer`.

        Returns
        -------
        future : Future
            Raises WorkerError if the worker or its device was lost, and any error of the callbacks.
        """
        ...

    def stop(self) -> None:
        """Stop all measuring."""
        ...


class Devices:
    """Devices of this host: one supervised child process each, with a thread here that hands it layers.

    Parameters
    ----------
    engines : sequence of Engine
        The caller closes them.
    """

    patience_s = 0.0

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = list(engines)
        self._idle: SimpleQueue[Engine] = SimpleQueue()
        for engine in self._engines:
            self._idle.put(engine)
        self._n_lost = 0
        self._lent: set[Lent] = set()
        self._is_stopped = False
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(len(self._engines), "sweep")

    @property
    def n_workers(self) -> int:
        """Devices that are still usable."""
        return len(self._engines) - self._n_lost

    @property
    def n_places(self) -> int:
        """One layer per device: handing over the next takes no time here."""
        return self.n_workers

    def describe(self, deadline_s: float) -> Device:
        """The device, which must be the same on every engine.

        Raises
        ------
        InvalidInput, WorkerError
        """
        devices: list[Device] = list(
            self._threads.map(
                lambda engine: Lent(engine).run(tasks.describe_device, deadline_s=deadline_s), self._engines
            )
        )
        for engine, device in zip(self._engines, devices, strict=True):
            if device.fingerprint != devices[0].fingerprint:
                allowed = f"devices like {self._engines[0].device_id} ({devices[0].name}) in one sweep"
                raise InvalidInput("device", f"{engine.device_id} ({device.name})", allowed)
        return devices[0]

    def delegate(self, layer: Layer, terms: Terms, on_begin: OnBegin, on_result: OnResult) -> Future[None]:
        """Measure a layer on a free device; one is free as long as at most `n_places` layers are handed over."""
        return self._threads.submit(self._measure, layer, terms, on_begin, on_result)

    def stop(self) -> None:
        """Stop all measuring, and wait until it has stopped."""
        with self._lock:
            self._is_stopped = True
            for lent in self._lent:
                lent.stop()
        self._threads.shutdown(cancel_futures=True)

    def _measure(self, layer: Layer, terms: Terms, on_begin: OnBegin, on_result: OnResult) -> None:
        engine = self._idle.get_nowait()
        lent = Lent(engine)
        with self._lock:
            if self._is_stopped:
                raise CancelledError
            self._lent.add(lent)
        try:
            measure_layer(lent, layer, terms, on_begin, on_result)
        except WorkerError:
            with self._lock:
                self._n_lost += 1
            raise
        else:
            self._idle.put(engine)
        finally:
            with self._lock:
                self._lent.discard(lent)
