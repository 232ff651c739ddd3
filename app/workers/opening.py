"""Opens the engine of a server's device, as the settings say; its start can precede the server's imports."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from conv_advisor.app.settings import Settings
from conv_advisor.app.workers.any_engine import AnyEngine
from conv_advisor.app.workers.engine import Engine, resolve_device

OpenEngine = Callable[[Settings], AnyEngine]


def open_engine(settings: Settings) -> AnyEngine:
    """Start a worker on the device that the settings name, or connect to the cluster's workers.

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
    """`open_engine` with a first call already under way: a worker takes as long to start as a server to import.

    Only for workers of this host: its thread then imports nothing while other threads do.

    Parameters
    ----------
    settings : Settings
    """

    def __init__(self, settings: Settings) -> None:
        self._first: Future[AnyEngine] | None = Future()
        threading.Thread(target=_settle, args=(self._first, settings), name="open engine", daemon=True).start()

    def __call__(self, settings: Settings) -> AnyEngine:
        """The engine, or the error of opening it; another call opens it anew."""
        first, self._first = self._first, None
        return open_engine(settings) if first is None else first.result()


def _settle(first: Future[AnyEngine], settings: Settings) -> None:
    try:
        first.set_result(open_engine(settings))
    except Exception as error:
        first.set_exception(error)
