"""One layer under one L2 state: our chosen variant and cuDNN's, timed side by side; kept as Parquet or CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from conv_advisor.data import parquet
from conv_advisor.data.measurement import L2State, relative_noise
from conv_advisor.data.problem import FIELDS, ConvProblem

LEAST_GAIN: Final = 0.03
"""A win is faster by more than this share, beyond noise."""
STANDARD_ERRORS: Final = 2.0
"""The difference of two medians must exceed this many standard errors, or it is noise; as in `models.costs`."""


@dataclass(frozen=True)
class Side:
    """What was chosen for one side on one run, timed on another.

    Parameters
    ----------
    variant : str
    plan : str
        JSON that rebuilds the exact plan; empty where the variant has only one.
    chosen_ms : float
        Its time on the run that it was chosen on.
    samples_ms : tuple of float
        Samples of the run that is reported; at least one.
    """

    variant: str
    plan: str
    chosen_ms: float
    samples_ms: tuple[float, ...]

    @property
    def time_ms(self) -> float:
        """Median of the reported samples."""
        return median(self.samples_ms)

    @property
    def noise(self) -> float:
        """Relative standard error of that median."""
        return relative_noise(self.samples_ms)


@dataclass(frozen=True)
class Row:
    """One layer under one L2 state.

    Parameters
    ----------
    problem : ConvProblem
    l2 : L2State
    cudnn, ours : Side or None
        None where that side has nothing that runs here.
    choosing : str
        The run on which both were chosen.
    failures : dict of str to str
        What was tried here and failed, and how: ``{"cuda.x": "wrong_result: ..."}``.
    others_ms : dict of str to float
        What was timed beside the chosen ones, by variant; of several plans the fastest.
    device : str
        The id of the device.
    """

    problem: ConvProblem
    l2: L2State
    cudnn: Side | None
    ours: Side | None
    choosing: str = ""
    failures: dict[str, str] = field(default_factory=dict, hash=False)
    others_ms: dict[str, float] = field(default_factory=dict, hash=False)
    device: str = ""

    @property
    def column(self) -> tuple[str, str]:
        """Dtype and layout: the line of the table it counts in."""
        return str(self.problem.dtype), str(self.problem.layout)

    @property
    def speedup(self) -> float | None:
        """Time of cuDNN over ours; None where either is missing."""
        if self.cudnn is None or self.ours is None:
            return None
        return self.cudnn.time_ms / self.ours.time_ms

    @property
    def is_win(self) -> bool:
        """Whether ours is faster by more than `LEAST_GAIN`, beyond noise; no win without a time of both."""
        if self.cudnn is None or self.ours is None:
            return False
        bar_ms = self.ours.time_ms * (1 + LEAST_GAIN)
        error_ms = math.hypot(self.cudnn.time_ms * self.cudnn.noise, bar_ms * self.ours.noise)
        return self.cudnn.time_ms - bar_ms > STANDARD_ERRORS * error_ms


_SIDES: Final = ("cudnn", "ours")
_SIDE_COLUMNS: Final = {
    "variant": pa.string(),
    "plan": pa.string(),
    "ms": pa.float64(),
    "noise": pa.float64(),
    "chosen_ms": pa.float64(),
    "samples_ms": pa.list_(pa.float64()),
}

SCHEMA: Final = pa.schema(
    [
        ("layer", pa.string()),
        *((name, pa.string() if name in ("dtype", "layout") else pa.int32()) for name in FIELDS),
        ("l2", pa.string()),
        *((f"{side}_{name}", kind) for side in _SIDES for name, kind in _SIDE_COLUMNS.items()),
        ("speedup", pa.float64()),
        ("is_win", pa.bool_()),
        ("choosing", pa.string()),
        ("failures", pa.string()),
        ("others_ms", pa.string()),
        ("device", pa.string()),
    ]
)
"""A row is one layer under one L2 state; layer, ms, noise, speedup and is_win are for readers and not read back."""


def write(rows: Iterable[Row], path: Path) -> None:
    """Write rows whole or not at all, as CSV or Parquet by the file's suffix."""
    records = [_record(row) for row in rows]
    if path.suffix != ".csv":
        parquet.write(pa.Table.from_pylist(records, SCHEMA), path)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, SCHEMA.names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in record.items()} for record in records)
    unfinished.replace(path)


def read(path: Path) -> list[Row]:
    """What `write` was given."""
    if path.suffix != ".csv":
        with pq.ParquetFile(path) as file:
            return [_row(record) for record in file.read().to_pylist()]
    with path.open(newline="", encoding="utf-8") as lines:
        return [_row({name: _value(name, text) for name, text in record.items()}) for record in csv.DictReader(lines)]


def merge(parts: Iterable[Sequence[Row]]) -> list[Row]:
    """The rows of several runs; the last row of a layer and L2 state counts."""
    return list({(row.problem, row.l2): row for part in parts for row in part}.values())


def _record(row: Row) -> dict[str, Any]:
    sides = {f"{name}_{field}": value for name in _SIDES for field, value in _side_record(getattr(row, name)).items()}
    return {
        "layer": row.problem.short,
        **{name: getattr(row.problem, name) for name in FIELDS},
        "dtype": str(row.problem.dtype),
        "layout": str(row.problem.layout),
        "l2": str(row.l2),
        **sides,
        "speedup": row.speedup,
        "is_win": row.is_win,
        "choosing": row.choosing,
        "failures": json.dumps(row.failures),
        "others_ms": json.dumps(row.others_ms),
        "device": row.device,
    }


def _side_record(side: Side | None) -> dict[str, Any]:
    if side is None:
        return dict.fromkeys(_SIDE_COLUMNS)
    return {
        "variant": side.variant,
        "plan": side.plan,
        "ms": side.time_ms,
        "noise": side.noise,
        "chosen_ms": side.chosen_ms,
        "samples_ms": list(side.samples_ms),
    }


def _row(record: dict[str, Any]) -> Row:
    sides = {}
    for name in _SIDES:
        variant, plan, chosen_ms, samples_ms = (
            record[f"{name}_{field}"] for field in ("variant", "plan", "chosen_ms", "samples_ms")
        )
        sides[name] = Side(variant, plan or "", chosen_ms, tuple(samples_ms)) if variant else None
    return Row(
        ConvProblem(*(record[name] for name in FIELDS)),
        L2State(record["l2"]),
        **sides,
        choosing=record["choosing"],
        failures=json.loads(record["failures"]),
        others_ms=json.loads(record["others_ms"]),
        device=record["device"],
    )


def _cell(value: Any) -> Any:
    return " ".join(map(repr, value)) if isinstance(value, list) else value


def _value(name: str, text: str) -> Any:
    kind = SCHEMA.field(name).type
    if pa.types.is_list(kind):
        return [float(word) for word in text.split()]
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_floating(kind):
        return float(text) if text else None
    return text
