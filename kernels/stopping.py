"""When to stop sampling: a pure function of the samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from conv_advisor.data.measurement import relative_noise


@dataclass(frozen=True)
class StopRule:
    """Stop once the median is known well enough, or when the time is spent.

    Parameters
    ----------
    min_samples, max_samples : int
        Bounds on the number of samples.
    max_noise : float
        Relative standard error of the median that is good enough.
    budget_ms : float
        Device time after which sampling stops, once there are two samples.

    Notes
    -----
    Source: NVBench's standard-relative criterion (``detail/stdrel_criterion.cxx``), on the median instead of the mean.
    """

    min_samples: int = 5
    max_samples: int = 20
    max_noise: float = 0.002
    budget_ms: float = 40.0

    def is_done(self, samples_ms: Sequence[float], spent_ms: float) -> bool:
        """Whether these samples, which took spent_ms of device time, are enough."""
        count = len(samples_ms)
        if count < min(2, self.max_samples):
            return False
        if count >= self.max_samples or spent_ms >= self.budget_ms:
            return True
        return count >= self.min_samples and relative_noise(samples_ms) <= self.max_noise

    def next_samples(self, samples_ms: Sequence[float], region_ms: float) -> int:
        """How many regions to queue before checking again: up to min_samples, fewer where a region is long."""
        affordable = max(1, int(self.budget_ms / max(region_ms, 1e-6)))
        return max(1, min(self.min_samples, self.max_samples - len(samples_ms), affordable))


def launches_per_region(launch_ms: float, least_region_ms: float, most_launches: int) -> int:
    """How many launches a timed region holds, to make the clock's resolution and the region's own cost negligible.

    Parameters
    ----------
    launch_ms : float
        Estimated time of one launch, ms.
    least_region_ms : float
    most_launches : int
    """
    if launch_ms <= 0:
        return most_launches
    return max(1, min(most_launches, math.ceil(least_region_ms / launch_ms)))
