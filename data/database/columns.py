"""The rows of the database's tables as Arrow columns, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Table

from conv_advisor.data import parquet
from conv_advisor.data.database.addition import Addition, Columns
from conv_advisor.data.database.opening import ROWS_AT_ONCE, AnyRow
from conv_advisor.data.database.tables import PROBLEMS
from conv_advisor.data.measurement import Device, relative_noise
from conv_advisor.data.problem import COLUMNS, ConvProblem


def addition_of(target: Table, table: pa.Table) -> Addition:
    """The rows of a table in `data.parquet.SCHEMA` or `PICKS_SCHEMA`, as an addition to this table of the database."""
    devices = {text: Device.from_json(text) for text in pc.unique(table["device"]).to_pylist()}
    problems, codes = parquet.distinct_problems(table)
    return Addition(target, table.num_rows, problems, devices.values(), _parts(table, problems, codes, devices))


def _parts(
    table: pa.Table, problems: Sequence[ConvProblem], codes: np.ndarray, devices: Mapping[str, Device]
) -> Iterator[Columns]:
    for start in range(0, table.num_rows, ROWS_AT_ONCE):
        keys = [problems[code].key for code in codes[start : start + ROWS_AT_ONCE]]
        yield to_columns(table.slice(start, ROWS_AT_ONCE), keys, devices)


def to_columns(table: pa.Table, keys: list[str], devices: Mapping[str, Device]) -> dict[str, list[Any]]:
    """The database's columns, from a table of either schema."""
    derived = {*COLUMNS, "samples_ms", "measured_at"}
    columns = {name: table[name].to_pylist() for name in table.column_names if name not in derived}
    texts = columns["device"]
    columns |= {
        "problem_key": keys,
        "device": [devices[text].fingerprint for text in texts],
        "device_id": [devices[text].id for text in texts],
    }
    if "samples_ms" in table.column_names:
        samples = table["samples_ms"].to_pylist()
        columns |= {
            "samples_ms": _blobs(table["samples_ms"]),
            "time_ms": [median(row) if row else None for row in samples],
            "noise": [relative_noise(row) if row else None for row in samples],
            "measured_at_us": pc.cast(table["measured_at"], pa.int64()).to_pylist(),
        }
    return columns


def _blobs(lists: pa.ChunkedArray) -> list[bytes]:
    data = pc.list_flatten(lists).to_numpy().astype("<f4", copy=False).tobytes()
    ends = np.cumsum(pc.list_value_length(lists).to_numpy() * 4).tolist()
    return [data[start:end] for start, end in pairwise([0, *ends])]


def to_batch(
    columns: dict[str, Any], schema: pa.Schema, problems: Mapping[str, AnyRow], devices: Mapping[str, str]
) -> pa.RecordBatch:
    """One batch of either schema, from the database's columns."""
    place = {key: code for code, key in enumerate(dict.fromkeys(columns["problem_key"]))}
    codes = pa.array([place[key] for key in columns["problem_key"]], pa.int32())
    fields = zip(*(problems[key] for key in place), strict=True)
    arrays = {
        name: pa.array(values, schema.field(name).type).take(codes)
        for name, values in zip(PROBLEMS.c.keys(), fields, strict=True)
        if name != "key"
    }
    arrays["device"] = _dictionary(columns["device"], devices)
    if "samples_ms" in columns:
        arrays["samples_ms"] = _lists(columns["samples_ms"])
        arrays["measured_at"] = pa.array(columns["measured_at_us"], pa.int64()).cast(schema.field("measured_at").type)
    return pa.record_batch(
        [arrays[field.name] if field.name in arrays else pa.array(columns[field.name], field.type) for field in schema],
        schema=schema,
    )


def _dictionary(names: Sequence[str], texts: Mapping[str, str]) -> pa.DictionaryArray:
    place = {name: code for code, name in enumerate(texts)}
    codes = pa.array([place[name] for name in names], parquet.DEVICE_TYPE.index_type)
    return pa.DictionaryArray.from_arrays(codes, pa.array(texts.values(), pa.string()))


def _lists(blobs: Sequence[bytes]) -> pa.ListArray:
    offsets = np.zeros(len(blobs) + 1, dtype=np.int32)
    np.cumsum([len(blob) // 4 for blob in blobs], out=offsets[1:])
    samples = np.frombuffer(b"".join(blobs), dtype="<f4").astype(np.float32, copy=False)
    return pa.ListArray.from_arrays(offsets, samples)
