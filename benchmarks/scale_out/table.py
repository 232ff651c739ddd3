"""The table of the benchmark: times, ratios, and the shares of the workers' time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.table import Table

from benchmarks.scale_out.choosing import MOST_SHARE
from conv_advisor.app.sweep.sweep import WorkersTime


@dataclass(frozen=True)
class Row:
    """One timed sweep.

    Parameters
    ----------
    path : str
    n_devices, n_problems, n_attempts, n_measured : int
    elapsed_s : float
    time : WorkersTime
    """

    path: str
    n_devices: int
    n_problems: int
    n_attempts: int
    n_measured: int
    elapsed_s: float
    time: WorkersTime = field(default_factory=WorkersTime)

    @property
    def busy_s(self) -> float:
        """Time of all workers with a problem in hand: the whole of which the longest problem is a share."""
        return self.n_devices * self.elapsed_s - self.time.waiting_s

    @property
    def longest(self) -> float:
        """The longest problem's share of the whole."""
        return self.time.longest_s / self.busy_s


def table(rows: Sequence[Row]) -> Table:
    """Time, throughput, how many times faster than on one device of the same path, and shares of the workers' time."""
    words = ("path", "devices", "problems", "longest", "seconds", "attempts/s", "times one")
    drawn = Table(*words, "measuring", "preparing", "store", "host", "waiting", title_justify="left")
    one_s = {row.path: row.elapsed_s for row in rows if row.n_devices == 1}
    for row in rows:
        ratio = f"{one_s[row.path] / row.elapsed_s:.2f}" if row.path in one_s else ""
        spent, workers_s = row.time, row.n_devices * row.elapsed_s
        parts = (spent.measuring_s, spent.preparing_s, spent.store_s, spent.host_s, spent.waiting_s)
        drawn.add_row(
            *(row.path, str(row.n_devices), str(row.n_problems), f"{row.longest:.1%}", f"{row.elapsed_s:.1f}"),
            *(f"{row.n_attempts / row.elapsed_s:.1f}", ratio),
            *(f"{part / workers_s:.1%}" for part in parts),
        )
    return drawn


def too_short(rows: Sequence[Row]) -> str:
    """The warning that a problem is too large a part of the whole; empty where none is."""
    uneven = [row for row in rows if row.longest > MOST_SHARE]
    if not uneven:
        return ""
    worst = max(uneven, key=lambda row: row.longest)
    needed_s = worst.time.longest_s / MOST_SHARE
    return (
        f"The longest problem is {worst.longest:.1%} of the whole ({worst.path}, {worst.n_devices}), more than"
        f" {MOST_SHARE:.0%}: the ratios say less than they should; --seconds {needed_s:.0f} is enough."
    )
