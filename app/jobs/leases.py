"""Expired leases of jobs, recognised by a monotonic clock, which cannot be set."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.engine import Connection

from conv_advisor.data.database.tables import JOBS

BEAT_S: Final = 1.0
"""Longest time between two renewals of a running job's lease."""
_FEWEST_BEATS: Final = 10
"""Renewals that must be missing before another runner takes a job, however short its own leases are."""


class Leases:
    """The leases of running jobs that a process has seen, and for how long by its own monotonic clock.

    A lease ends by the database's clock. SQLite uses the clock of its host, which can be set: a lease from a time when
    it was an hour ahead would outlive its owner by an hour. Every renewal changes the lease, so an unchanged one has no
    owner, whatever its end says.

    Parameters
    ----------
    clock : callable () -> float
        Seconds of a monotonic clock; `time.monotonic`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s: dict[tuple[str, int, float], float] = {}
        self._lock = threading.Lock()

    def stale(self, connection: Connection, lease_s: float) -> list[ColumnElement[bool]]:
        """Read the leases; conditions for the rows whose lease has not changed for a lease's length."""
        query = select(JOBS.c.id, JOBS.c.attempt, JOBS.c.lease_ends_s).where(JOBS.c.lease_ends_s.is_not(None))
        leases = [(row[0], row[1], row[2]) for row in connection.execute(query)]
        longest_s = max(lease_s, BEAT_S * _FEWEST_BEATS)
        with self._lock:
            now_s = self._clock()
            self._since_s = {lease: self._since_s.get(lease, now_s) for lease in leases}
            return [_is(*lease) for lease, since_s in self._since_s.items() if now_s - since_s > longest_s]


def _is(job_id: str, attempt: int, ends_s: float) -> ColumnElement[bool]:
    terms: list[Any] = [JOBS.c.id == job_id, JOBS.c.attempt == attempt, JOBS.c.lease_ends_s == ends_s]
    return and_(*terms)
