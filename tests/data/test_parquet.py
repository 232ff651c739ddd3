"""Tables and files: nothing is lost, and what is not as promised is refused by column."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conv_advisor import data
from conv_advisor.data import parquet
from conv_advisor.data.errors import StoreError
from conv_advisor.data.problem import ENDINGS, FIELDS
from tests.data import arrow
from tests.data.stored import BARE, ENDING_MEASUREMENTS, H200, LAYER, MEASURED, MEASUREMENTS, PICKS, STRIDED


def test_measurements_and_picks_survive_a_file(tmp_path: Path) -> None:
    parquet.write(arrow.measurements_to_table(MEASUREMENTS), tmp_path / "deep" / "m.parquet")
    parquet.write(arrow.picks_to_table(PICKS), tmp_path / "p.parquet")
    measurements = parquet.read(tmp_path / "deep" / "m.parquet", parquet.SCHEMA)
    assert arrow.table_to_measurements(measurements) == MEASUREMENTS
    assert arrow.table_to_picks(parquet.read(tmp_path / "p.parquet", parquet.PICKS_SCHEMA)) == PICKS


def test_an_empty_table_survives_a_file(tmp_path: Path) -> None:
    parquet.write(arrow.measurements_to_table([]), tmp_path / "m.parquet")
    assert parquet.read(tmp_path / "m.parquet", parquet.SCHEMA).num_rows == 0


def test_a_file_is_flat_compressed_and_readable_without_this_project(tmp_path: Path) -> None:
    parquet.write(arrow.measurements_to_table(MEASUREMENTS), tmp_path / "m.parquet")
    file = pq.ParquetFile(tmp_path / "m.parquet")
    assert file.schema_arrow.names[: len(FIELDS)] == list(FIELDS)
    columns = [file.metadata.row_group(0).column(i) for i in range(file.metadata.num_columns)]
    assert {column.compression for column in columns} == {"ZSTD"}
    encodings = {column.path_in_schema: column.encodings for column in columns}
    assert all("RLE_DICTIONARY" in encodings[name] for name in ("device", "detail", "variant", "h"))
    row = file.read().to_pylist()[0]
    assert row["time_ms"] == 0.25
    assert row["samples_ms"] == [0.25, 0.5, 0.125]
    assert json.loads(row["device"])["name"] == "NVIDIA H200"


def test_samples_become_float32_and_the_time_is_theirs() -> None:
    table = arrow.measurements_to_table([replace(MEASURED, samples_ms=(0.1, 0.2))])
    back = arrow.table_to_measurements(table)[0]
    assert back.samples_ms == (float(np.float32(0.1)), float(np.float32(0.2)))
    assert table["time_ms"].to_pylist() == [back.time_ms]


def test_an_error_that_is_no_number_becomes_infinite() -> None:
    table = arrow.measurements_to_table([replace(MEASURED, max_error=float("nan"))])
    assert table["max_error"].to_pylist() == [float("inf")]


def test_a_time_of_day_without_a_zone_is_utc() -> None:
    naive = replace(MEASURED, measured_at=MEASURED.measured_at.replace(tzinfo=None))
    assert arrow.table_to_measurements(arrow.measurements_to_table([naive])) == [MEASURED]


def test_problems_are_found_once_however_the_rows_are_mixed() -> None:
    rows = [MEASURED, BARE, MEASURED, MEASURED, BARE, BARE, MEASURED]
    problems, codes = parquet.distinct_problems(arrow.measurements_to_table(rows))
    assert problems == [LAYER, STRIDED]
    assert codes.tolist() == [0, 1, 0, 0, 1, 1, 0]


def test_problems_of_a_table_in_chunks_whose_dictionaries_differ() -> None:
    one, other = (arrow.measurements_to_table([row]) for row in (MEASURED, BARE))
    problems, codes = parquet.distinct_problems(pa.concat_tables([other, one, other]))
    assert [problems[code] for code in codes] == [STRIDED, LAYER, STRIDED]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.parquet"
    parquet.write(arrow.measurements_to_table([MEASURED]), path)
    before = path.read_bytes()

    def fail(_table: pa.Table, file: Path, **_: Any) -> None:
        file.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(pq, "write_table", fail)
    with pytest.raises(OSError, match="disk full"):
        parquet.write(arrow.measurements_to_table([BARE]), path)
    assert [file.name for file in tmp_path.iterdir()] == ["m.parquet"]
    assert path.read_bytes() == before


def _with(name: str, values: list[Any], kind: pa.DataType | None = None) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        place = table.column_names.index(name)
        return table.set_column(place, name, pa.array(values, kind or parquet.SCHEMA.field(name).type))

    return change


DEVICE_WITHOUT_NAME = json.dumps({"id": "x", "kind": "cpu"})
BAD_TABLES: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "missing": (lambda table: table.drop_columns(["samples_ms"]), r"column samples_ms is missing"),
    "extra": (lambda table: table.append_column("speed", pa.array([1])), r"column speed is not in the schema; allowed"),
    "twice": (lambda table: table.append_column("n", pa.array([1], pa.int32())), r"column n is missing or there twice"),
    "type": (_with("workspace_bytes", ["8"], pa.string()), r"column workspace_bytes is string; allowed: int64"),
    "float64_samples": (
        _with("samples_ms", [[1.0]], pa.list_(pa.float64())),
        r"column samples_ms is list<\w+: double>; allowed: list<\w+: float>",
    ),
    "time_without_zone": (
        _with("measured_at", [0], pa.timestamp("us")),
        r"column measured_at is timestamp\[us\]; allowed: timestamp\[us, tz=UTC\]",
    ),
    "null": (_with("variant", [None]), r"column variant has 1 nulls; allowed: none"),
    "outcome": (_with("outcome", ["fine"]), r"column outcome has 'fine'; allowed: measured, pruned"),
    "dtype": (_with("dtype", ["float64"]), r"column dtype has 'float64'; allowed: float32, tf32, float16, bfloat16"),
    "layout": (_with("layout", ["nchw32"]), r"column layout has 'nchw32'; allowed: nchw, nhwc"),
    "l2": (_with("l2", ["hot"]), r"column l2 has 'hot'; allowed: warm, cold"),
    "problem": (_with("h", [0]), r"h is 0; allowed: an integer from 1"),
    "groups": (_with("groups", [3]), r"groups is 3; allowed: a divisor of c = 128"),
    "epilogue": (_with("epilogue", ["tanh"]), r"epilogue is 'tanh'; allowed: in this order"),
    "padding": (_with("pad_h_end", [-1]), r"pad_h_end is -1; allowed: an integer from 0"),
    "plan": (_with("plan", ["{"]), r"column plan has '{' .* allowed: JSON"),
    "plan_list": (_with("plan", ["[1]"]), r"column plan has '\[1\]'; allowed: a JSON object"),
    "device": (_with("device", ["H200"]), r"column device has 'H200' .* allowed: JSON"),
    "device_field": (_with("device", [DEVICE_WITHOUT_NAME]), r"column device has .* missing .*'name'"),
    "negative_sample": (_with("samples_ms", [[1.0, -1.0]]), r"column samples_ms .* allowed: finite, above 0"),
    "zero_sample": (_with("samples_ms", [[0.0]]), r"column samples_ms .* allowed: finite, above 0"),
    "infinite_sample": (_with("samples_ms", [[float("inf")]]), r"column samples_ms .* allowed: finite, above 0"),
    "nan_sample": (_with("samples_ms", [[float("nan")]]), r"column samples_ms .* allowed: finite, above 0"),
    "null_sample": (_with("samples_ms", [[None]]), r"column samples_ms .* allowed: finite, above 0"),
    "measured_without_samples": (_with("samples_ms", [[]]), r"column samples_ms is empty .* at least one sample"),
}


@pytest.mark.parametrize(("change", "message"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_file_that_is_not_as_promised_is_refused(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    pq.write_table(change(arrow.measurements_to_table([MEASURED])), tmp_path / "m.parquet")
    with pytest.raises(StoreError, match=message) as caught:
        parquet.read(tmp_path / "m.parquet", parquet.SCHEMA)
    assert str(caught.value).startswith(str(tmp_path / "m.parquet"))


def test_epilogues_and_uneven_padding_survive_a_file(tmp_path: Path) -> None:
    parquet.write(arrow.measurements_to_table(ENDING_MEASUREMENTS), tmp_path / "m.parquet")
    found = parquet.read(tmp_path / "m.parquet", parquet.SCHEMA)
    assert arrow.table_to_measurements(found) == ENDING_MEASUREMENTS
    assert found["epilogue"].to_pylist() == [None, "bias-residual-gelu_tanh", "relu"]
    problems, places = parquet.distinct_problems(found)
    assert [problems[place] for place in places] == [row.problem for row in ENDING_MEASUREMENTS]


def test_rows_from_before_there_were_epilogues_have_none(tmp_path: Path) -> None:
    table = arrow.measurements_to_table(MEASUREMENTS)
    pq.write_table(table.drop_columns(list(ENDINGS)), tmp_path / "m.parquet")
    found = parquet.read(tmp_path / "m.parquet", parquet.SCHEMA)
    assert found.schema == parquet.SCHEMA
    assert arrow.table_to_measurements(found) == arrow.table_to_measurements(table)
    assert {row["epilogue"] for row in found.to_pylist()} == {None}


def test_a_file_that_is_no_parquet_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(StoreError, match=r"m\.parquet"):
        parquet.read(tmp_path / "m.parquet", parquet.SCHEMA)
    with pytest.raises(StoreError, match=r"gone\.parquet"):
        parquet.read(tmp_path / "gone.parquet", parquet.SCHEMA)


def test_picks_are_no_measurements(tmp_path: Path) -> None:
    parquet.write(arrow.picks_to_table(PICKS), tmp_path / "p.parquet")
    with pytest.raises(StoreError, match=r"column source is not in the schema"):
        parquet.read(tmp_path / "p.parquet", parquet.SCHEMA)
    assert arrow.table_to_picks(parquet.read(tmp_path / "p.parquet", parquet.PICKS_SCHEMA))[0].device == H200


def test_what_ships_stays_small() -> None:
    """Everybody who clones or installs the project takes it along."""
    home = Path(data.__file__).parent
    sizes = {path: path.stat().st_size for name in ("timings", "peers") for path in (home / name).rglob("*.*")}
    assert {"timings", "peers"} <= {path.relative_to(home).parts[0] for path in sizes}
    assert sum(sizes.values()) <= 20e6, sizes
