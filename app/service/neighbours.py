"""The measured layers of each device, kept for looking up those that are most like another."""

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
"""How old a neighbourhood may be: while a sweep adds layers, looking at all of them takes about a second each time."""


@dataclass(frozen=True, slots=True)
class _Kept:
    version: int
    looked_at: float
    neighbourhood: Neighbourhood


class Neighbourhoods:
    """Neighbours from what is known.

    Parameters
    ----------
    records : Records
        What ships, and the store on top if there is one.

    Raises
    ------
    StoreError
        From every method.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()

    def of(self, problem: ConvProblem, device_id: str, *, count: int, advised: str) -> list[Neighbour]:
        """The nearest measured layers in the same dtype and layout but for the layer itself, nearest first.

        Parameters
        ----------
        problem : ConvProblem
        device_id : str
        count : int
            At most.
        advised : str
            The variant that is advised on the layer.
        """
        nearest = self._neighbourhood(device_id).nearest(problem, count)
        return describe(nearest, self._records.summaries([each for each, _ in nearest], device_id), advised)

    def _neighbourhood(self, device_id: str) -> Neighbourhood:
        with self._lock:  # several requests would all look at every layer
            kept, now = self._kept.get(device_id), monotonic()
            if kept is not None and now < kept.looked_at + LOOK_AGAIN_S:
                return kept.neighbourhood
            store = self._records.store
            version = store.version(device_id) if store else 0
            if kept is not None and kept.version == version:
                found = kept.neighbourhood
            else:
                found = Neighbourhood(self._records.measured_keys(device_id))
            self._kept[device_id] = _Kept(version, now, found)
            return found
