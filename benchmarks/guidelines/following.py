"""What following a guideline costs on what was measured, and whether it still holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from benchmarks.guidelines.study import Choice, Guideline
from benchmarks.measured import mean_ratio, times_of
from conv_advisor.models.costs import Costs

CLOSE: Final = 1.05
"""A choice no further behind than this is as good as the best."""
HOLDS_FROM: Final = 0.75
"""A guideline holds where its choice is close in at least this share of its configurations, ..."""
IN_PART_FROM: Final = 0.40
"""... and in part from this share on."""


class Verdict(StrEnum):
    """Whether a paper's statement holds on this device."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    NO_LONGER = "no longer holds"
    UNKNOWN = "not measured"


@dataclass(frozen=True)
class Followed:
    """What one guideline's choices cost where it makes any.

    Parameters
    ----------
    n_problems : int
        Measured problems that it speaks of.
    share_run : float
        Where its choice runs; the other shares are of all problems too, so a choice that does not run is not close.
    share_best, share_close : float
        Where its choice is the fastest of the pool, and within `CLOSE` of it.
    slowdown, slowdown_of_all : float
        Geometric mean where it was timed to the end, against the fastest of the pool and of everything; NaN where it
        never was.
    instead : str
        The variant of the pool that is the fastest most often.
    share_instead : float
    """

    n_problems: int
    share_run: float
    share_best: float
    share_close: float
    slowdown: float
    slowdown_of_all: float
    instead: str
    share_instead: float

    @property
    def verdict(self) -> Verdict:
        """The verdict by the share of choices that are close."""
        return verdict_of(self.share_close, HOLDS_FROM, IN_PART_FROM)


def verdict_of(value: float, holds_from: float, in_part_from: float) -> Verdict:
    """The verdict on a value by two inclusive bounds; not a number is unknown."""
    if np.isnan(value):
        return Verdict.UNKNOWN
    if value >= holds_from:
        return Verdict.HOLDS
    return Verdict.IN_PART if value >= in_part_from else Verdict.NO_LONGER


def follow(costs: Costs, guideline: Guideline) -> Followed | None:
    """How a guideline fares; None where no problem that it speaks of was measured."""
    rows, chosen_ms, timed_ms = choices_ms(costs, guideline.choose)
    if not len(rows):
        return None
    times = times_of(costs, guideline.pool)[rows]
    best_ms = times.min(axis=1)
    fastest, count = Counter(times.argmin(axis=1).tolist()).most_common(1)[0]
    return Followed(
        n_problems=len(rows),
        share_run=float(np.isfinite(chosen_ms).mean()),
        share_best=float((chosen_ms <= best_ms).mean()),
        share_close=float((chosen_ms <= CLOSE * best_ms).mean()),
        slowdown=mean_ratio(timed_ms, best_ms),
        slowdown_of_all=mean_ratio(timed_ms, costs.best_ms[rows]),
        instead=guideline.pool[fastest],
        share_instead=count / len(rows),
    )


def choices_ms(costs: Costs, choose: Choice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where a guideline makes a choice, and the time of that choice.

    Returns
    -------
    rows : int64 array of shape (R,)
        Places in ``costs.problems``.
    chosen_ms : float64 array of shape (R,)
        Infinite where the choice does not run.
    timed_ms : float64 array of shape (R,)
        The same, but infinite too where it was given up on after its first launch, which is no time to compare.
    """
    chosen = [(row, variant) for row, p in enumerate(costs.problems) if (variant := choose(p)) is not None]
    names = sorted({variant for _, variant in chosen})
    times = times_of(costs, names)
    rows = np.array([row for row, _ in chosen], dtype=np.int64)
    chosen_ms = np.array([times[row, names.index(variant)] for row, variant in chosen], dtype=np.float64)
    is_launch = [
        variant in costs.variants and costs.is_pruned[row, costs.variants.index(variant)] for row, variant in chosen
    ]
    return rows, chosen_ms, np.where(np.array(is_launch, dtype=bool), np.inf, chosen_ms)
