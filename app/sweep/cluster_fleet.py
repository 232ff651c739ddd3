"""A sweep on the workers of a cluster."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

from conv_advisor.app.sweep.attempt import Layer, Result, Terms, sweep_layer
from conv_advisor.app.sweep.fleet import OnBegin, OnResult
from conv_advisor.app.workers import tasks
from conv_advisor.app.workers.engine import settle
from conv_advisor.app.workers.lent import Lent

if TYPE_CHECKING:
    from conv_advisor.app.workers.cluster.engine import ClusterEngine
    from conv_advisor.data.measurement import Device


class ClusterFleet:
    """The workers of a cluster; each measures one layer at a time.

    A layer is one Dask task: its results come when all of it is done, so a lost worker costs its whole layer.

    Parameters
    ----------
    engine : ClusterEngine
    """

    def __init__(self, engine: ClusterEngine) -> None:
        self.patience_s = engine.start_timeout_s
        self._engine = engine
        self._running: set[Future[list[Result]]] = set()

    @property
    def n_workers(self) -> int:
        """Workers that are available now."""
        return self._engine.n_workers

    @property
    def n_places(self) -> int:
        """One layer per worker, and one that waits for the first free worker."""
        n_workers = self._engine.n_workers
        return n_workers + 1 if n_workers else 0

    def describe(self, deadline_s: float) -> Device:
        """The device of the workers; the engine uses no worker with another device.

        Raises
        ------
        WorkerError
        """
        device: Device = Lent(self._engine).run(tasks.describe_device, deadline_s=deadline_s)
        return device

    def delegate(self, layer: Layer, terms: Terms, on_begin: OnBegin, on_result: OnResult) -> Future[None]:
        """Measure a layer on any free worker."""
        outer: Future[None] = Future()

        def begin(_fraction: float, key: str) -> None:
            try:
                on_begin(key)
            except BaseException as error:
                settle(outer, None, error)

        def end(inner: Future[list[Result]]) -> None:
            self._running.discard(inner)
            if outer.done():
                return
            try:
                for result in inner.result():
                    on_result(result)
            except BaseException as error:
                settle(outer, None, error)
            else:
                settle(outer, None, None)

        inner = self._engine.delegate(sweep_layer, layer, terms, on_progress=begin)
        self._running.add(inner)
        inner.add_done_callback(end)
        return outer

    def stop(self) -> None:
        """Stop what is being measured."""
        for inner in list(self._running):
            inner.cancel()
