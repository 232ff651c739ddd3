"""What is known of one variant on one problem and device: all attempts taken together."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any, Final

from conv_advisor.data.database import AnyRow
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.tables import MEASUREMENTS

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

COLUMNS: Final = [
    MEASUREMENTS.c[name]
    for name in (
        *("problem_key", "variant", "outcome", "time_ms", "noise", "samples_ms"),
        *("workspace_bytes", "max_error", "plan", "detail", "measured_at_us"),
    )
]
"""Of `data.tables.MEASUREMENTS`: what a summary is made of."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known of one variant on one problem and device, all attempts taken together.

    Where any attempt was measured only those count, else those that were pruned, else the newest one; an unsteady one
    has no time.

    Parameters
    ----------
    variant : str
    outcome : Outcome
    time_ms : float or None
        Median over the attempts of their medians; None where nothing was timed.
    noise : float or None
        Relative standard error of time_ms, as `data.measurement.relative_noise` estimates it from the median absolute
        deviation of an attempt's samples; median over the attempts.
    n_samples : int
        Of all these attempts.
    workspace_bytes, max_error, plan, detail, measured_at
        As in `Measurement`, of the newest of these attempts.
    """

    variant: str
    outcome: Outcome
    time_ms: float | None
    noise: float | None
    n_samples: int
    workspace_bytes: int | None
    max_error: float | None
    plan: dict[str, Any]
    detail: str
    measured_at: datetime


def summary_of(rows: list[AnyRow]) -> Summary:
    """Sum up the attempts of one variant on one problem: rows of `COLUMNS`, at least one."""
    if len(rows) > 1:
        rows = _those_that_count(rows)
    _, variant, outcome, time_ms, noise, samples_ms, workspace_bytes, max_error, plan, detail, measured_at_us = rows[-1]
    n_samples = len(samples_ms) // 4
    if len(rows) > 1:
        time_ms, noise = median(row.time_ms for row in rows), median(row.noise for row in rows)
        n_samples = sum(len(row.samples_ms) // 4 for row in rows)
    if outcome == Outcome.UNSTEADY:
        time_ms = noise = None
    return Summary(
        variant,
        Outcome(outcome),
        time_ms,
        noise,
        n_samples,
        workspace_bytes,
        max_error,
        json.loads(plan),
        detail,
        _EPOCH + timedelta(microseconds=measured_at_us),
    )


def _those_that_count(rows: list[AnyRow]) -> list[AnyRow]:
    """The attempts that make a summary, the newest last."""
    rows = sorted(rows, key=lambda row: row.measured_at_us)
    for outcome in (Outcome.MEASURED, Outcome.PRUNED):
        timed = [row for row in rows if row.outcome == outcome and row.time_ms is not None]
        if timed:
            return timed
    return rows[-1:]
