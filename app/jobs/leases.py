"""Expired leases and pauses of jobs, recognised by a monotonic clock, which cannot be set."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.engine import Connection

from conv_advisor.app.jobs.job import JobState
from conv_advisor.data.database.tables import JOBS

BEAT_S: Final = 1.0
"""Longest time between two renewals of a running job's lease."""
_FEWEST_BEATS: Final = 10
"""Renewals that must be missing before another runner takes a job, however short its own leases are."""
LONGEST_PAUSE_S: Final = 60.0
"""Longest time that a job waits after its worker was killed: memory that others use may be free again by then."""

_Lease = tuple[str, str, int, float]
"""Of a job: state, id, attempt, and when its lease or pause ends by the database's clock."""


class Leases:
    """The leases and pauses of jobs that a process has seen, and for how long by its own monotonic clock.

    A lease ends by the database's clock. SQLite uses the clock of its host, which can be set: a lease from a time when
    it was an hour ahead would outlive its owner by an hour. Every renewal changes the lease, so an unchanged one has no
    owner, whatever its end says. The pause of a queued job is stored as a lease is, and ends after `LONGEST_PAUSE_S`.

    Parameters
    ----------
    clock : callable () -> float
        Seconds of a monotonic clock; `time.monotonic`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s: dict[_Lease, float] = {}
        self._lock = threading.Lock()

    def stale(self, connection: Connection, lease_s: float) -> list[ColumnElement[bool]]:
        """Read the leases; conditions for the rows whose lease or pause has not changed for as long as one may last."""
        columns = (JOBS.c.state, JOBS.c.id, JOBS.c.attempt, JOBS.c.lease_ends_s)
        query = select(*columns).where(JOBS.c.lease_ends_s.is_not(None))
        leases: list[_Lease] = [(row[0], row[1], row[2], row[3]) for row in connection.execute(query)]
        longest_s = max(lease_s, BEAT_S * _FEWEST_BEATS)
        with self._lock:
            now_s = self._clock()
            self._since_s = {lease: self._since_s.get(lease, now_s) for lease in leases}
            ages_s = {lease: now_s - since_s for lease, since_s in self._since_s.items()}
        return [
            and_(*(column == value for column, value in zip(columns, lease, strict=True)))
            for lease, age_s in ages_s.items()
            if age_s > (LONGEST_PAUSE_S if lease[0] == JobState.QUEUED else longest_s)
        ]
