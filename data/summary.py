"""The summary of one variant on one problem and device: all attempts taken together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec

from conv_advisor.data.measurement import Outcome

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known of one variant on one problem and device, all attempts taken together.

    If any attempt was measured only those count, else those that were pruned, else the newest; an unsteady attempt has
    no time.

    Parameters
    ----------
    variant : str
    outcome : Outcome
    time_ms : float or None
        Median of the attempts' medians; None where nothing was timed.
    noise : float or None
        Relative standard error of time_ms, as `data.measurement.relative_noise` estimates it from the median absolute
        deviation of an attempt's samples; median over the attempts.
    n_samples : int
        Samples of all these attempts.
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


class Attempt(NamedTuple):
    """One attempt of a variant at a problem, as a summary needs it.

    Parameters
    ----------
    variant, outcome, detail : str
    time_ms, noise : float or None
        None where there are no samples.
    n_samples : int
    workspace_bytes, max_error
        As in `data.measurement.Measurement`.
    plan : str
        JSON.
    measured_at_us : int
        Microseconds since 1970, UTC.
    """

    variant: str
    outcome: str
    time_ms: float | None
    noise: float | None
    n_samples: int
    workspace_bytes: int | None
    max_error: float | None
    plan: str
    detail: str
    measured_at_us: int


def summarise(attempts: Iterable[Attempt]) -> dict[str, Summary]:
    """Sum up the attempts at one problem, by variant."""
    by_variant: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        by_variant.setdefault(attempt.variant, []).append(attempt)
    return {variant: summary_of(rows) for variant, rows in by_variant.items()}


def summary_of(attempts: list[Attempt]) -> Summary:
    """Sum up the attempts of one variant on one problem, at least one."""
    if len(attempts) > 1:
        attempts = _those_that_count(attempts)
    last = attempts[-1]
    time_ms, noise = last.time_ms, last.noise
    if len(attempts) > 1:
        time_ms, noise = _median_of(attempts, "time_ms"), _median_of(attempts, "noise")
    if last.outcome == Outcome.UNSTEADY:
        time_ms = noise = None
    return Summary(
        last.variant,
        Outcome(last.outcome),
        time_ms,
        noise,
        sum(attempt.n_samples for attempt in attempts),
        last.workspace_bytes,
        last.max_error,
        msgspec.json.decode(last.plan),  # 25 times a problem: a fifth of what json.loads takes
        last.detail,
        _EPOCH + timedelta(microseconds=last.measured_at_us),
    )


def _median_of(attempts: list[Attempt], name: str) -> float | None:
    values = [value for attempt in attempts if (value := getattr(attempt, name)) is not None]
    return median(values) if values else None


def _those_that_count(attempts: list[Attempt]) -> list[Attempt]:
    """The attempts that make a summary, the newest last."""
    attempts = sorted(attempts, key=lambda attempt: attempt.measured_at_us)
    for outcome in (Outcome.MEASURED, Outcome.PRUNED):
        timed = [attempt for attempt in attempts if attempt.outcome == outcome and attempt.time_ms is not None]
        if timed:
            return timed
    return attempts[-1:]
