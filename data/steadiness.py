"""Whether a measurement was taken on a device that was undisturbed: neither throttled nor shared.

The bounds come from the 408,649 times of an H200 that ship in November 2026. Of these, 0.016 % have a clock that
changed by more than `MOST_CLOCK_CHANGE` between start and end, 0.058 % a clock below `LEAST_CLOCK` of the usual one,
and 0.046 % samples wider than `MOST_NOISE`: together 448 times, 0.11 %. An undisturbed device stays far inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from conv_advisor.data.measurement import Device, Measurement, Outcome

if TYPE_CHECKING:
    import pyarrow as pa

MOST_CLOCK_CHANGE: Final = 0.03
"""How far the SM clock may move between the start and the end of the samples, as a share."""
LEAST_CLOCK: Final = 0.95
"""The least share of the device's usual clock."""
MOST_NOISE: Final = 0.02
"""Relative standard error of the median: ten times what the stop rule asks for."""
LEAST_SAMPLES: Final = 5
"""Fewer samples do not show how wide they are; the stop rule takes this many unless a launch is long."""
LEAST_ROWS: Final = 100
"""Fewer times of a device do not show its usual clock."""


def why_unsteady(measurement: Measurement, usual_mhz: float | None = None) -> str | None:
    """Why a time is not to be relied on; None where nothing speaks against it.

    Parameters
    ----------
    measurement : Measurement
        Times on a CPU always pass: it reports no clock, and no shipped times give bounds for it.
    usual_mhz : float, optional
        The usual SM clock of the device; without it, times are not compared with that clock.
    """
    if measurement.outcome is not Outcome.MEASURED or measurement.device.kind == "cpu":
        return None
    clocks = measurement.clock_start_mhz, measurement.clock_end_mhz
    return _why(len(measurement.samples_ms), measurement.noise or 0.0, *clocks, usual_mhz)


def _why(n_samples: int, noise: float, start: int | None, end: int | None, usual_mhz: float | None) -> str | None:
    if n_samples >= LEAST_SAMPLES and noise > MOST_NOISE:
        return f"samples are wide: the median errs by {noise:.1%}, above {MOST_NOISE:.0%}"
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


def unsteady_rows(table: pa.Table, usual_mhz: Mapping[str, float | None] = MappingProxyType({})) -> np.ndarray:
    """`why_unsteady` for each row of a table, as an array.

    Parameters
    ----------
    table : pyarrow.Table
        In `data.parquet.SCHEMA` or `ATTEMPTS`.
    usual_mhz : mapping of device id to float or None
        For a device that is missing here, the clock that most of the table's times were taken at.

    Returns
    -------
    bool array of shape (n_rows,)
        Nowhere true in rows of `data.parquet.ATTEMPTS`, whose unsteady times have that outcome already.
    """
    if "samples_ms" not in table.column_names:
        return np.zeros(table.num_rows, dtype=bool)
    return _unsteady(table, usual_mhz)[0]


def refuse_unsteady_rows(table: pa.Table, usual_mhz: Mapping[str, float | None] = MappingProxyType({})) -> pa.Table:
    """`refuse_unsteady` for a table; parameters as in `unsteady_rows`."""
    import pyarrow as pa  # a store that takes single measurements does without tables
    import pyarrow.compute as pc

    is_unsteady, noise, usual = _unsteady(table, usual_mhz)
    rows = np.flatnonzero(is_unsteady)
    if not len(rows):
        return table
    bad = table.select(["samples_ms", "clock_start_mhz", "clock_end_mhz"]).take(rows).to_pylist()
    reasons = [
        _why(len(row["samples_ms"]), noise[place], row["clock_start_mhz"], row["clock_end_mhz"], usual[place])
        for place, row in zip(rows.tolist(), bad, strict=True)
    ]
    mask = pa.array(is_unsteady)
    for name, values in (("outcome", [str(Outcome.UNSTEADY)] * len(rows)), ("detail", reasons)):
        place = table.schema.get_field_index(name)
        column = pc.replace_with_mask(table[name].combine_chunks(), mask, pa.array(values, pa.string()))
        table = table.set_column(place, table.schema.field(name), column)
    return table


def _unsteady(table: pa.Table, usual_mhz: Mapping[str, float | None]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whether each row is unsteady, its noise, and the usual clock of its device, 0 where unknown."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from conv_advisor.data.parquet import sample_medians

    start, end = (
        pc.fill_null(pc.cast(table[name], pa.float64()), np.nan).to_numpy()
        for name in ("clock_start_mhz", "clock_end_mhz")
    )
    is_measured = np.asarray(pc.equal(table["outcome"], str(Outcome.MEASURED)).to_numpy())
    is_timed, usual = np.zeros(table.num_rows, dtype=bool), np.zeros(table.num_rows)
    texts = pc.cast(table["device"], pa.string())
    by_id: dict[str, list[str]] = {}
    for text in texts.unique().to_pylist():
        device = Device.from_json(text)
        if device.kind != "cpu":
            by_id.setdefault(device.id, []).append(text)
    for device_id, its_texts in by_id.items():
        is_its = is_measured & np.asarray(pc.is_in(texts, value_set=pa.array(its_texts, pa.string())).to_numpy())
        is_timed |= is_its
        usual[is_its] = usual_mhz.get(device_id) or _usual(end[is_its & np.isfinite(end)])
    _, noise = sample_medians(table["samples_ms"])
    is_wide = (pc.list_value_length(table["samples_ms"]).to_numpy() >= LEAST_SAMPLES) & (noise > MOST_NOISE)
    has_changed = np.abs(start - end) > MOST_CLOCK_CHANGE * np.maximum(start, end)
    is_slow = np.minimum(start, end) < LEAST_CLOCK * usual
    return is_timed & (is_wide | has_changed | is_slow), noise, usual


def _usual(clocks_mhz: np.ndarray) -> float:
    clocks, counts = np.unique(clocks_mhz, return_counts=True)
    return float(clocks[counts.argmax()]) if len(clocks_mhz) >= LEAST_ROWS else 0.0
