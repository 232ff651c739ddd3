"""Cached knowledge of layers, which asks the store only after it changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.records import Records
from conv_advisor.data.summary import Summary

ASK_AGAIN_S: Final = 0.5
"""Longest delay before rows of another process count; rows of this process count at once."""

_SOON_S: Final = 0.05
_LOAD_AGAIN_S: Final = 1.0
"""Time between two loads of all measured keys: while a sweep adds some, each layer is looked up instead."""


@dataclass(frozen=True, slots=True)
class _Version:
    number: int
    writes: int
    until: float


class Recall:
    """Summaries of measurements, without database queries for layers that were never measured here.

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
        self._store, self._records = records.store, records
        self._versions: dict[str, _Version] = {}
        self._keys: set[str] = set()
        self._keys_at: dict[str, int] = {}
        self._load_from = 0.0

    def version(self, device_id: str) -> int:
        """The store's version for a device, at most `ASK_AGAIN_S` old; 0 without a store."""
        if self._store is None:
            return 0
        seen, writes, now = self._versions.get(device_id), self._store.writes, monotonic()
        if seen is None or seen.writes != writes or now >= seen.until:
            seen = _Version(self._store.version(device_id), writes, now + ASK_AGAIN_S)
            self._versions[device_id] = seen
        return seen.number

    def is_recent(self, device_id: str) -> bool:
        """Whether `version`, called now, would need no database query."""
        if self._store is None:
            return True
        seen = self._versions.get(device_id)
        return seen is not None and seen.writes == self._store.writes and monotonic() + _SOON_S < seen.until

    def summaries(self, problems: Sequence[ConvProblem], device_id: str) -> dict[str, dict[str, Summary]]:
        """As `Records.summaries`."""
        return self._records.summaries(problems, device_id, stored=self._known(device_id))

    def picked(self, problem: ConvProblem, device_id: str) -> dict[str, str]:
        """As `Records.picked`."""
        return self._records.picked(problem, device_id, stored=self._known(device_id))

    def _known(self, device_id: str) -> set[str] | None:
        """The keys of all problems ever measured here; None where that would be queried too often."""
        if self._store is None:
            return set()
        version = self.version(device_id)
        if self._keys_at.get(device_id) != version:
            now = monotonic()
            if now < self._load_from:
                return None
            self._load_from = now + _LOAD_AGAIN_S
            # In this order: keys are never removed, so the set includes all keys of this version.
            self._keys = self._store.problem_keys()
            self._keys_at[device_id] = version
        return self._keys
