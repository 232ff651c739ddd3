"""The measured layers of each device, cached for finding those nearest to a given one."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

from conv_advisor.models.advice.neighbours import Neighbour, Neighbourhood, describe

if TYPE_CHECKING:
    from conv_advisor.data.problem import ConvProblem
    from conv_advisor.data.records import Records

LOOK_AGAIN_S: Final = 10.0
"""Longest age of a neighbourhood: while a sweep adds layers, reading all of them takes about a second each time."""


@dataclass(frozen=True, slots=True)
class _Kept:
    version: int
    looked_at: float
    neighbourhood: Neighbourhood


class Neighbourhoods:
    """The nearest measured layers of a device.

    Parameters
    ----------
    records : Records
        The shipped measurements, with the store on top if there is one.

    Raises
    ------
    StoreError
        Raised by every method.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()

    def of(self, problem: ConvProblem, device_id: str, *, count: int, advised: str) -> list[Neighbour]:
        """The nearest measured layers in the same dtype and layout, without the layer itself, nearest first.

        Parameters
        ----------
        problem : ConvProblem
        device_id : str
        count : int
            Most neighbours.
        advised : str
            The variant advised for the layer.
        """
        nearest = self._neighbourhood(device_id).nearest(problem, count)
        return describe(nearest, self._records.summaries([layer for layer, _ in nearest], device_id), advised)

    def _neighbourhood(self, device_id: str) -> Neighbourhood:
        with self._lock:  # else several requests would each read every layer
            cached, now = self._kept.get(device_id), monotonic()
            if cached is not None and now < cached.looked_at + LOOK_AGAIN_S:
                return cached.neighbourhood
            store = self._records.store
            version = store.version(device_id) if store else 0
            if cached is not None and cached.version == version:
                neighbourhood = cached.neighbourhood
            else:
                neighbourhood = Neighbourhood(self._records.measured_keys(device_id))
            self._kept[device_id] = _Kept(version, now, neighbourhood)
            return neighbourhood
