"""The one writer of a sweep: what waits in its queue is written together, and no worker waits for it."""

from __future__ import annotations

import threading
from queue import Empty, Queue
from typing import TYPE_CHECKING, Final

from conv_advisor.app.sweep.attempt import Result

if TYPE_CHECKING:
    from conv_advisor.data.store import Store

_MOST_WAITING: Final = 64
"""Results that may wait: beyond these, workers do, since what waits is lost with this process."""


class Writer:
    """Writes results in their order of arrival, in one transaction all that came while the last one was written.

    Parameters
    ----------
    store : Store
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: Queue[Result | None] = Queue(_MOST_WAITING)
        self._error: BaseException | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._write_all, name="sweep-store")
        self._thread.start()

    @property
    def has_failed(self) -> bool:
        """Whether a write has failed: nothing is written after it."""
        return self._error is not None

    def put(self, result: Result) -> None:
        """Have a result written; returns at once unless very many wait.

        Raises
        ------
        StoreError
            An earlier write failed; nothing is written after it.
        """
        self.check()
        if not self._is_closed:  # else the sweep has failed, and its workers are about to be stopped
            self._waiting.put(result)

    def close(self) -> None:
        """Write what waits, and end."""
        self._is_closed = True
        self._waiting.put(None)
        self._thread.join()

    def check(self) -> None:
        """Raise the error of the write that failed, if one did."""
        if self._error:
            raise self._error

    def _write_all(self) -> None:
        is_over = False
        while not is_over:
            taken = [self._waiting.get(), *self._rest()]
            is_over = None in taken
            results = [result for result in taken if result is not None]
            if results and not self._error:
                self._write(results)

    def _rest(self) -> list[Result | None]:
        """What waits now."""
        taken: list[Result | None] = []
        while True:
            try:
                taken.append(self._waiting.get_nowait())
            except Empty:
                return taken

    def _write(self, results: list[Result]) -> None:
        measurements = [measurement for result in results for measurement in result.measurements]
        try:
            self._store.append(measurements, [pick for result in results for pick in result.picks])
        except BaseException as error:
            self._error = error  # of the store, or of its guard: whoever comes next, and the sweep's end, raise it
