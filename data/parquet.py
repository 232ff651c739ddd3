"""Measurements and picks as Arrow tables and Parquet files: one flat schema, every sample kept."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conv_advisor.data.errors import InvalidInput, StoreError
from conv_advisor.data.measurement import Device, L2State, Outcome
from conv_advisor.data.problem import COLUMNS, ENDINGS, FIELDS, ConvProblem, DType, Layout, of_columns

DEVICE_TYPE: Final = pa.dictionary(pa.int32(), pa.string())

_PROBLEM_FIELDS: Final = [
    *(pa.field(name, pa.string() if name in ("dtype", "layout") else pa.int32(), nullable=False) for name in FIELDS),
    *(pa.field(name, pa.string() if name == "epilogue" else pa.int32()) for name in ENDINGS),
]

SCHEMA: Final = pa.schema(
    [
        *_PROBLEM_FIELDS,
        pa.field("variant", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("samples_ms", pa.list_(pa.float32()), nullable=False),
        pa.field("time_ms", pa.float64()),
        pa.field("workspace_bytes", pa.int64()),
        pa.field("max_error", pa.float64()),
        pa.field("plan", pa.string(), nullable=False),
        pa.field("l2", pa.string(), nullable=False),
        pa.field("floor_ms", pa.float64()),
        pa.field("clock_start_mhz", pa.int32()),
        pa.field("clock_end_mhz", pa.int32()),
        pa.field("measured_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("device", DEVICE_TYPE, nullable=False),
    ]
)
"""A row is one attempt: the problem's `COLUMNS`, then the columns of `Measurement`.

time_ms is the median of samples_ms, for readers who want no more; no code here reads it back. plan and device are JSON.
"""

PICKS_SCHEMA: Final = pa.schema(
    [
        *_PROBLEM_FIELDS,
        pa.field("source", pa.string(), nullable=False),
        pa.field("variant", pa.string(), nullable=False),
        pa.field("plan", pa.string(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("device", DEVICE_TYPE, nullable=False),
    ]
)
"""A row is one choice of another library's rule: the problem's `COLUMNS`, then the columns of `Pick`."""

_ONLY_MEASURED: Final = ("samples_ms", "floor_ms", "clock_start_mhz", "clock_end_mhz")

ATTEMPTS: Final = pa.schema(
    [
        *(field for field in SCHEMA if field.name not in _ONLY_MEASURED),
        pa.field("noise", pa.float64()),
        pa.field("n_samples", pa.int32(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
    ]
)
"""Columns of the rows of `SCHEMA` where samples are not kept, but their number, median and noise.

An unsteady time has that outcome already. source is the file that a row was packed from; empty where there was none.
"""

_CLOSED_LISTS: Final = {"dtype": DType, "layout": Layout, "outcome": Outcome, "l2": L2State}


def distinct_problems(table: pa.Table) -> tuple[list[ConvProblem], np.ndarray]:
    """The problems of a table, each once, and for each row the index of its problem among them.

    A table without the columns of epilogues and uneven padding has neither.

    Raises
    ------
    InvalidProblem
    """
    table = _with_endings(table, SCHEMA)
    codes = np.stack([_codes(table[name]) for name in COLUMNS])
    # A sweep writes the rows of one problem together, so only the first row of each run is looked at in Python.
    is_start = np.ones(table.num_rows, dtype=bool)
    is_start[1:] = (codes[:, 1:] != codes[:, :-1]).any(axis=0)
    starts = table.select(COLUMNS).filter(pa.array(is_start))
    rows = list(zip(*(column.to_pylist() for column in starts.columns), strict=True))
    place = {row: code for code, row in enumerate(dict.fromkeys(rows))}
    run_codes = np.array([place[row] for row in rows], dtype=np.int64)
    return [of_columns(row) for row in place], run_codes[np.cumsum(is_start) - 1]


def sample_medians(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Median and `data.measurement.relative_noise` of each row's samples, all at once; NaN where there are none."""
    lengths = pc.list_value_length(column).to_numpy().astype(np.int64)
    values = pc.list_flatten(column).to_numpy().astype(np.float64)
    starts = np.cumsum(lengths) - lengths
    middle, noise = np.full(len(lengths), np.nan), np.full(len(lengths), np.nan)
    for length in np.unique(lengths[lengths > 0]).tolist():
        rows = np.flatnonzero(lengths == length)
        samples = values[starts[rows, None] + np.arange(length)]
        middle[rows] = np.median(samples, axis=1)
        deviation = 1.4826 * np.median(np.abs(samples - middle[rows, None]), axis=1)
        noise[rows] = math.sqrt(math.pi / 2) * deviation / (middle[rows] * math.sqrt(length)) if length > 1 else 1.0
    return middle, noise


def times(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Median and noise of each row of `SCHEMA` or `ATTEMPTS`, float64 arrays; NaN where there are no samples."""
    if "samples_ms" in table.column_names:
        return sample_medians(table["samples_ms"])
    middle, noise = (pc.fill_null(table[name], np.nan).to_numpy() for name in ("time_ms", "noise"))
    return middle, noise


def to_attempts(table: pa.Table, source: str = "") -> pa.Table:
    """Rows of `SCHEMA`, with unsteady ones already refused, as rows of `ATTEMPTS`."""
    middle, noise = sample_medians(table["samples_ms"])
    columns = {
        "time_ms": pa.array(middle, from_pandas=True),
        "noise": pa.array(noise, from_pandas=True),
        "n_samples": pc.cast(pc.list_value_length(table["samples_ms"]), pa.int32()),
        "source": pa.repeat(pa.scalar(source), table.num_rows),
    }
    return pa.table([columns[name] if name in columns else table[name] for name in ATTEMPTS.names], schema=ATTEMPTS)


def write(table: pa.Table, path: Path) -> None:
    """Write a table whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    has_samples = "samples_ms" in table.column_names
    floats = ["samples_ms.list.element", "time_ms", "max_error"] if has_samples else []
    delta = {"measured_at": "DELTA_BINARY_PACKED"} if has_samples else {}
    try:
        pq.write_table(
            table,
            unfinished,
            compression="zstd",
            compression_level=9,
            use_dictionary=[name for name in table.column_names if name not in ("samples_ms", *floats, *delta)],
            use_byte_stream_split=floats,
            column_encoding=delta,
        )
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a file of exactly this schema, and check every value with a meaning here.

    Raises
    ------
    StoreError
        Naming the file, the column, what it holds and what is allowed.
    """
    try:
        with pq.ParquetFile(path) as file:
            table = _with_endings(file.read(), schema)
        check(table, schema)
    except (OSError, pa.ArrowException, InvalidInput, StoreError) as error:
        raise StoreError(f"{path}: {error}") from error
    return table


def _with_endings(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table from before problems had epilogues and uneven padding, with these columns empty."""
    missing = [name for name in ENDINGS if name in schema.names and name not in table.column_names]
    for name in missing:
        table = table.append_column(schema.field(name), pa.nulls(table.num_rows, schema.field(name).type))
    known = [name for name in schema.names if name in table.column_names]
    return table.select([*known, *(name for name in table.column_names if name not in known)]) if missing else table


@contextmanager
def border(verb: str) -> Iterator[None]:
    """Turns Arrow's errors into this project's."""
    try:
        yield
    except pa.ArrowException as error:
        raise StoreError(f"cannot {verb} the store: {error}") from error


def check(table: pa.Table, schema: pa.Schema) -> None:
    """Refuse a table that does not hold what the schema promises.

    Raises
    ------
    StoreError, InvalidProblem
        Naming the column, what it holds and what is allowed.
    """
    for name in table.column_names:
        if name not in schema.names:
            raise StoreError(f"column {name} is not in the schema; allowed: {', '.join(schema.names)}")
    for field in schema:
        if table.column_names.count(field.name) != 1:
            raise StoreError(f"column {field.name} is missing or there twice; allowed: one of {field.type}")
        column = table[field.name]
        if column.type != field.type:
            raise StoreError(f"column {field.name} is {column.type}; allowed: {field.type}")
        if column.null_count and not field.nullable:
            raise StoreError(f"column {field.name} has {column.null_count} nulls; allowed: none")
    for name, members in _CLOSED_LISTS.items():
        if name in schema.names:
            _check_members(name, table[name], members)
    for name in ("plan", "device"):
        _check_json(name, table[name])
    distinct_problems(table)
    if "samples_ms" in schema.names:
        _check_samples(table)


def _check_members(name: str, column: pa.ChunkedArray, members: type[StrEnum]) -> None:
    for value in column.unique().to_pylist():
        if value not in set(members):
            raise StoreError(f"column {name} has {value!r}; allowed: {', '.join(members)}")


def _check_json(name: str, column: pa.ChunkedArray) -> None:
    for text in pc.cast(column, pa.string()).unique().to_pylist():
        try:
            value = Device.from_json(text) if name == "device" else json.loads(text)
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"column {name} has {text[:80]!r} ({error}); allowed: JSON as this project writes"
            ) from None
        if name == "plan" and not isinstance(value, dict):
            raise StoreError(f"column {name} has {text[:80]!r}; allowed: a JSON object")


def _check_samples(table: pa.Table) -> None:
    samples = pc.list_flatten(table["samples_ms"])
    is_time = pc.and_(pc.is_finite(samples), pc.greater(samples, 0))
    if samples.null_count or not pc.all(is_time, min_count=0).as_py():
        raise StoreError("column samples_ms has a sample that is no time; allowed: finite, above 0")
    counts = pc.list_value_length(table["samples_ms"])
    if pc.any(pc.and_(pc.equal(table["outcome"], Outcome.MEASURED), pc.equal(counts, 0)), min_count=0).as_py():
        raise StoreError("column samples_ms is empty in a row whose outcome is measured; allowed: at least one sample")


def _codes(column: pa.ChunkedArray) -> np.ndarray:
    chunks = pc.dictionary_encode(column).unify_dictionaries().chunks
    indices = [pc.fill_null(chunk.indices, -1).to_numpy() for chunk in chunks]
    return np.concatenate([np.empty(0, dtype=np.int32), *indices])
