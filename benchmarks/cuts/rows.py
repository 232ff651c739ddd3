"""Times of cuts as Parquet: a row a cut of a kernel on a problem."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from conv_advisor.data import parquet
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import FIELDS, ConvProblem

SCHEMA: Final = pa.schema(
    [
        *((name, pa.string() if name in ("dtype", "layout") else pa.int32()) for name in FIELDS),
        ("kernel", pa.string()),
        ("cut", pa.string()),
        ("time_ms", pa.float64()),
        ("device", pa.string()),
    ]
)


@dataclass(frozen=True)
class Row:
    """How long one cut took.

    Parameters
    ----------
    problem : ConvProblem
    kernel : str
        One of `benchmarks.cuts.kernels.KERNELS`.
    cut : str
        As `benchmarks.cuts.kernels.name_of` names it.
    time_ms : float
        Median of its samples; of a cut too far behind to be timed, the time of its first launch.
    """

    problem: ConvProblem
    kernel: str
    cut: str
    time_ms: float


def write(rows: Iterable[Row], device: Device, path: Path) -> None:
    """Write them whole or not at all, with the device that they were taken on."""
    records = [
        {name: getattr(row.problem, name) for name in FIELDS}
        | {"dtype": str(row.problem.dtype), "layout": str(row.problem.layout)}
        | {"kernel": row.kernel, "cut": row.cut, "time_ms": row.time_ms, "device": device.json}
        for row in rows
    ]
    parquet.write(pa.Table.from_pylist(records, SCHEMA), path)


def read(paths: Sequence[Path]) -> tuple[list[Row], Device]:
    """The rows of some files, at least one, and the device of the first."""
    tables = []
    for path in paths:
        with pq.ParquetFile(path) as file:
            tables.append(file.read())
    table = pa.concat_tables(tables)
    problems, places = parquet.distinct_problems(table)
    columns = (table[name].to_pylist() for name in ("kernel", "cut", "time_ms"))
    rows = [Row(problems[place], *own) for place, *own in zip(places.tolist(), *columns, strict=True)]
    return rows, Device.from_json(table["device"][0].as_py())
