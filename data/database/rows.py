"""Measurements and picks as rows of the database's tables, checked one value after the other."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from math import inf, isfinite, isnan
from numbers import Real
from operator import index
from statistics import median
from typing import Any, Final

from sqlalchemy import Table

from conv_advisor.data.database.addition import Addition
from conv_advisor.data.database.tables import MEASUREMENTS, PICKS
from conv_advisor.data.errors import StoreError
from conv_advisor.data.measurement import Device, L2State, Measurement, Outcome, Pick, relative_noise
from conv_advisor.data.problem import of_columns, to_columns

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def of_measurements(measurements: Iterable[Measurement]) -> Addition:
    """The rows of measurements, equal to those of their Parquet file: samples are float32.

    A max_error of NaN becomes infinite: not every database keeps NaN.

    Raises
    ------
    StoreError, InvalidProblem
        Naming the column, what it holds and what is allowed.
    """
    rows = list(measurements)
    return _addition(MEASUREMENTS, rows, [_shared(row) | _measured(row) for row in rows])


def of_picks(picks: Iterable[Pick]) -> Addition:
    """The rows of picks.

    Raises
    ------
    StoreError, InvalidProblem
    """
    rows = list(picks)
    return _addition(PICKS, rows, [_shared(row) | {"source": _text("source", row.source)} for row in rows])


def _addition(target: Table, rows: Sequence[Measurement | Pick], values: Sequence[dict[str, Any]]) -> Addition:
    problems = {of_columns(to_columns(row.problem)) for row in rows}  # which checks it
    devices = {row.device.fingerprint: _checked(row.device) for row in rows}
    columns = {name: [row[name] for row in values] for name in (values[0] if values else ())}
    return Addition(target, len(rows), problems, devices.values(), [columns] if values else [])


def _shared(row: Measurement | Pick) -> dict[str, Any]:
    if not isinstance(row.plan, dict):
        raise StoreError(f"column plan has {row.plan!r}; allowed: a JSON object")
    return {
        "problem_key": row.problem.key,
        "device": row.device.fingerprint,
        "device_id": row.device.id,
        "variant": _text("variant", row.variant),
        "plan": json.dumps(row.plan, sort_keys=True, separators=(",", ":")),
        "run_id": _text("run_id", row.run_id),
    }


def _measured(row: Measurement) -> dict[str, Any]:
    samples = _samples(row)
    return {
        "outcome": _member("outcome", row.outcome, Outcome),
        "detail": _text("detail", row.detail),
        "samples_ms": _little_endian(samples),
        "time_ms": median(samples) if samples else None,
        "noise": relative_noise(samples) if samples else None,
        "workspace_bytes": _integer("workspace_bytes", row.workspace_bytes, 64),
        "max_error": _number_or_inf(row.max_error),
        "l2": _member("l2", row.l2, L2State),
        "floor_ms": _number("floor_ms", row.floor_ms),
        "clock_start_mhz": _integer("clock_start_mhz", row.clock_start_mhz, 32),
        "clock_end_mhz": _integer("clock_end_mhz", row.clock_end_mhz, 32),
        "measured_at_us": _since_1970_us(row.measured_at),
    }


def _samples(row: Measurement) -> Sequence[float]:
    samples = array("f", row.samples_ms)
    if not all(isfinite(sample) and sample > 0 for sample in samples):
        raise StoreError("column samples_ms has a sample that is no time; allowed: finite, above 0")
    if row.outcome == Outcome.MEASURED and not samples:
        raise StoreError("column samples_ms is empty in a row whose outcome is measured; allowed: at least one sample")
    return samples


def _little_endian(samples: Sequence[float]) -> bytes:
    values = array("f", samples)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _checked(device: Device) -> Device:
    try:
        return Device.from_json(device.json)
    except (ValueError, TypeError) as error:
        raise StoreError(f"column device has {device.json[:80]!r} ({error}); allowed: what a device is") from None


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise StoreError(f"column {name} has {value!r}; allowed: text")
    return str(value)


def _member(name: str, value: Any, members: type[Outcome | L2State]) -> str:
    if value not in set(members):
        raise StoreError(f"column {name} has {value!r}; allowed: {', '.join(members)}")
    return str(value)


def _integer(name: str, value: Any, bits: int) -> int | None:
    if value is None:
        return None
    if not hasattr(value, "__index__") or not -(2 ** (bits - 1)) <= index(value) < 2 ** (bits - 1):
        raise StoreError(f"cannot write the store: column {name} has {value!r}; allowed: integers of {bits} bits")
    return index(value)


def _number(name: str, value: Any) -> float | None:
    if value is not None and not isinstance(value, Real):
        raise StoreError(f"column {name} has {value!r}; allowed: numbers")
    return None if value is None else float(value)


def _number_or_inf(error: Any) -> float | None:
    number = _number("max_error", error)
    return inf if number is not None and isnan(number) else number


def _since_1970_us(moment: datetime) -> int:
    known = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (known - _EPOCH) // timedelta(microseconds=1)
