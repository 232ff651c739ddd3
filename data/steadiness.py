"""Whether a measurement was taken on a device that was undisturbed: neither throttled nor shared.

The bounds come from the 408,649 times of an H200 that ship in November 2026. Of these, 0.016 % have a clock that
changed by more than `MOST_CLOCK_CHANGE` between start and end, 0.058 % a clock below `LEAST_CLOCK` of the usual one,
and 0.046 % samples wider than `MOST_NOISE`: together 448 times, 0.11 %. An undisturbed device stays far inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from data.measurement import Measurement, Outcome

MOST_CLOCK_CHANGE: Final = 0.03
"""Of the SM clock, between the start and the end of the samples."""
LEAST_CLOCK: Final = 0.95
"""Of the usual clock of the device."""
MOST_NOISE: Final = 0.02
"""Relative standard error of the median: ten times what the stop rule asks for."""
LEAST_SAMPLES: Final = 5
"""Fewer samples do not say how wide they are; the stop rule takes so many unless a launch is long."""
LEAST_ROWS: Final = 100
"""Fewer times of a device do not say what its usual clock is."""


def why_unsteady(measurement: Measurement, usual_mhz: float | None = None) -> str | None:
    """Why a time is not to be relied on; None where nothing speaks against it.

    Parameters
    ----------
    measurement : Measurement
        Times on a CPU always pass: it says no clock, and nothing ships that bounds could be drawn from.
    usual_mhz : float, optional
        The usual SM clock of the device; without it that bound is not looked at.
    """
    if measurement.outcome is not Outcome.MEASURED or measurement.device.kind == "cpu":
        return None
    noise = measurement.noise or 0.0
    if len(measurement.samples_ms) >= LEAST_SAMPLES and noise > MOST_NOISE:
        return f"samples are wide: the median errs by {noise:.1%}, above {MOST_NOISE:.0%}"
    start, end = measurement.clock_start_mhz, measurement.clock_end_mhz
    if start is None or end is None:
        return None
    if abs(start - end) > MOST_CLOCK_CHANGE * max(start, end):
        return f"the clock went from {start} to {end} MHz, by more than {MOST_CLOCK_CHANGE:.0%}"
    if usual_mhz is not None and min(start, end) < LEAST_CLOCK * usual_mhz:
        return f"the clock was {min(start, end)} MHz, below {LEAST_CLOCK:.0%} of the usual {usual_mhz:.0f} MHz"
    return None


def refuse_unsteady(measurements: Sequence[Measurement], usual_mhz: float | None = None) -> list[Measurement]:
    """The same attempts, with the outcome ``unsteady`` and the reason where a time is not to be relied on."""
    reasons = [why_unsteady(measurement, usual_mhz) for measurement in measurements]
    return [
        replace(measurement, outcome=Outcome.UNSTEADY, detail=reason) if reason else measurement
        for measurement, reason in zip(measurements, reasons, strict=True)
    ]
