"""The engine of a server's device: found as the settings say, and begun before the server itself is imported."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from conv_advisor.app.settings import Settings
from conv_advisor.app.workers.any_engine import AnyEngine
from conv_advisor.app.workers.engine import Engine, resolve_device

OpenEngine = Callable[[Settings], AnyEngine]


def open_engine(settings: Settings) -> AnyEngine:
    """Find the device that the settings name, and start the worker that owns it; or find the cluster's workers.

    Raises
    ------
    WorkerError, InvalidInput
    """
    if settings.scheduler:
        from conv_advisor.app.workers.cluster.engine import open_cluster

        return open_cluster(settings)
    return Engine(
        resolve_device(settings.device, start_timeout_s=settings.start_timeout_s),
        max_queue=settings.max_queue,
        start_timeout_s=settings.start_timeout_s,
    )


class EarlyStart:
    """`open_engine`, whose first call has begun already: a worker takes as long to start as a server to import.

    It is for workers of this host: its thread imports nothing while others do.

    Parameters
    ----------
    settings : Settings
    """

    def __init__(self, settings: Settings) -> None:
        self._first: Future[AnyEngine] | None = Future()
        threading.Thread(target=_settle, args=(self._first, settings), name="open engine", daemon=True).start()

    def __call__(self, settings: Settings) -> AnyEngine:
        """The engine, or why it was not opened; another call opens it anew."""
        first, self._first = self._first, None
        return open_engine(settings) if first is None else first.result()


def _settle(first: Future[AnyEngine], settings: Settings) -> None:
    try:
        first.set_result(open_engine(settings))
    except Exception as error:
        first.set_exception(error)
