"""Measurements and picks as the tables that sweeps write, and back: what is made by hand is read as if measured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from statistics import median
from typing import Any

import pyarrow as pa

from conv_advisor.data import parquet
from conv_advisor.data.measurement import Device, L2State, Measurement, Outcome, Pick
from conv_advisor.data.problem import COLUMNS, of_columns, to_columns


def measurements_to_table(measurements: Iterable[Measurement]) -> pa.Table:
    """Put measurements in `data.parquet.SCHEMA`.

    Samples become float32. A max_error that is no number becomes infinite: not every database keeps NaN.
    """
    rows = list(measurements)
    samples = pa.array([row.samples_ms for row in rows], parquet.SCHEMA.field("samples_ms").type)
    return _table(
        parquet.SCHEMA,
        _shared_columns(rows)
        | {
            "outcome": [str(row.outcome) for row in rows],
            "detail": [row.detail for row in rows],
            "samples_ms": samples,
            "time_ms": [median(rounded) if rounded else None for rounded in samples.to_pylist()],
            "workspace_bytes": [row.workspace_bytes for row in rows],
            "max_error": [_number_or_inf(row.max_error) for row in rows],
            "l2": [str(row.l2) for row in rows],
            "floor_ms": [row.floor_ms for row in rows],
            "clock_start_mhz": [row.clock_start_mhz for row in rows],
            "clock_end_mhz": [row.clock_end_mhz for row in rows],
            "measured_at": [_utc(row.measured_at) for row in rows],
        },
    )


def picks_to_table(picks: Iterable[Pick]) -> pa.Table:
    """Put picks in `data.parquet.PICKS_SCHEMA`."""
    rows = list(picks)
    return _table(parquet.PICKS_SCHEMA, _shared_columns(rows) | {"source": [row.source for row in rows]})


def table_to_measurements(table: pa.Table) -> list[Measurement]:
    """What `measurements_to_table` was given."""
    return [
        Measurement(
            **_shared_values(row),
            outcome=Outcome(row["outcome"]),
            detail=row["detail"],
            samples_ms=tuple(row["samples_ms"]),
            workspace_bytes=row["workspace_bytes"],
            max_error=row["max_error"],
            l2=L2State(row["l2"]),
            floor_ms=row["floor_ms"],
            clock_start_mhz=row["clock_start_mhz"],
            clock_end_mhz=row["clock_end_mhz"],
            measured_at=row["measured_at"],
        )
        for row in table.to_pylist()
    ]


def table_to_picks(table: pa.Table) -> list[Pick]:
    """What `picks_to_table` was given."""
    return [Pick(**_shared_values(row), source=row["source"]) for row in table.to_pylist()]


def _table(schema: pa.Schema, columns: dict[str, Any]) -> pa.Table:
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def _shared_columns(rows: Sequence[Measurement] | Sequence[Pick]) -> dict[str, list[Any]]:
    problems = [to_columns(row.problem) for row in rows]
    columns: dict[str, list[Any]] = {name: [row[place] for row in problems] for place, name in enumerate(COLUMNS)}
    return columns | {
        "variant": [row.variant for row in rows],
        "plan": [json.dumps(row.plan, sort_keys=True, separators=(",", ":")) for row in rows],
        "run_id": [row.run_id for row in rows],
        "device": [row.device.json for row in rows],
    }


def _shared_values(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "problem": of_columns([row[name] for name in COLUMNS]),
        "device": _device(row["device"]),
        "variant": row["variant"],
        "plan": json.loads(row["plan"]),
        "run_id": row["run_id"],
    }


@lru_cache(maxsize=64)
def _device(text: str) -> Device:
    return Device.from_json(text)


def _number_or_inf(error: float | None) -> float | None:
    return math.inf if error is not None and math.isnan(error) else error


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
