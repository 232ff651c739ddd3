"""The view of a measurement: measured beside predicted times, while it runs and when it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from conv_advisor.app.web.measuring import Run, RunState
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.problem import ConvProblem

_SCALE: Final = 6.0
"""Multiples of the best time that the bars reach to."""

_FAR_OFF: Final = 1.25
"""A prediction that is off by more than this factor is marked."""


@dataclass(frozen=True)
class RunRow:
    """One variant: waiting, being measured, or measured; positions in percent of the width."""

    variant: str
    state: str
    measurement: Measurement | None
    predicted_ms: float | None
    ratio: float | None
    end: float
    predicted_at: float | None
    samples_at: Sequence[float]
    is_best: bool
    is_cut: bool

    @property
    def is_out(self) -> bool:
        """Whether it was measured without getting a time."""
        return self.measurement is not None and self.measurement.time_ms is None

    @property
    def is_far_off(self) -> bool:
        """Whether the prediction errs much."""
        return self.ratio is not None and not 1 / _FAR_OFF <= self.ratio <= _FAR_OFF


@dataclass(frozen=True)
class RunView:
    """One measurement."""

    run: Run
    rows: Sequence[RunRow]
    done: int
    total: int
    median_ratio: float | None

    @property
    def is_running(self) -> bool:
        """Whether there is more to come."""
        return self.run.state is RunState.RUNNING

    @property
    def shown(self) -> Sequence[RunRow]:
        """The rows of the table: all of them while it runs, then those with a time."""
        return [row for row in self.rows if self.is_running or not row.is_out]

    @property
    def out(self) -> Sequence[RunRow]:
        """The rows without a time, once the run has ended."""
        return [] if self.is_running else [row for row in self.rows if row.is_out]

    @property
    def problem(self) -> ConvProblem:
        """The layer."""
        return self.run.problem

    @property
    def percent(self) -> int:
        """The share of the variants that are done."""
        return round(100 * self.done / max(self.total, 1))

    @property
    def best(self) -> RunRow | None:
        """The fastest so far."""
        return next((row for row in self.rows if row.is_best), None)


def run_view(run: Run) -> RunView:
    """What is known of a run now."""
    measured = {measurement.variant: measurement for measurement in run.measurements}
    best_ms = run.best_ms
    times = [*([best_ms] if best_ms else []), *run.predicted_ms.values()]
    full_ms = _SCALE * min(times, default=1.0)
    rows = [_row(run, variant, measured.get(variant), best_ms, full_ms) for variant in run.variants]
    if not run.predicted_ms:  # without predictions, the rows are ordered by time
        rows.sort(key=lambda row: (row.measurement is None, not row.end, row.end, _time(row)))
    ratios = [row.ratio for row in rows if row.ratio is not None]
    return RunView(run, rows, len(measured), len(run.variants), median(ratios) if ratios else None)


def _row(run: Run, variant: str, measurement: Measurement | None, best_ms: float | None, full_ms: float) -> RunRow:
    predicted_ms = run.predicted_ms.get(variant)
    time_ms = measurement.time_ms if measurement else None
    is_timed = measurement is not None and measurement.outcome is Outcome.MEASURED
    return RunRow(
        variant=variant,
        state=measurement.outcome if measurement else "running" if variant == run.current else "waiting",
        measurement=measurement,
        predicted_ms=predicted_ms,
        ratio=time_ms / predicted_ms if is_timed and time_ms and predicted_ms else None,
        end=_at(time_ms, full_ms) or 0.0,
        predicted_at=_at(predicted_ms, full_ms) if predicted_ms is not None and predicted_ms <= full_ms else None,
        samples_at=sorted({_at(sample, full_ms) or 0.0 for sample in measurement.samples_ms[:64]})
        if measurement and is_timed
        else (),
        is_best=is_timed and time_ms == best_ms,
        is_cut=time_ms is not None and time_ms > full_ms,
    )


def _time(row: RunRow) -> float:
    return row.measurement.time_ms or 0.0 if row.measurement else 0.0


def _at(ms: float | None, full_ms: float) -> float | None:
    return None if ms is None else round(min(100 * ms / full_ms, 100), 1)
