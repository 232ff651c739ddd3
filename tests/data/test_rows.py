"""Rows of the database made from values: the same as by way of Parquet, and as strict."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conv_advisor.data.database import columns, rows
from conv_advisor.data.database.addition import Addition
from conv_advisor.data.database.tables import MEASUREMENTS, PICKS
from conv_advisor.data.errors import InvalidProblem, StoreError
from conv_advisor.data.measurement import Device, L2State, Measurement, Outcome, Pick
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.table import problem_of
from tests.data import arrow

DEVICES = (Device("nvidia-h200", "NVIDIA H200", "cuda", versions={"cudnn": "9.19.0"}), Device("cpu", "a CPU", "cpu"))
PROBLEMS = tuple(
    ConvProblem.parse(layer, dtype=dtype, layout=Layout.NCHW)
    for layer in ("7-1-3-4-5", "14-2-1-8-3")
    for dtype in DType
)
integers = st.none() | st.integers(-(2**31), 2**31 - 1)
measurements = st.builds(
    Measurement,
    problem=st.sampled_from(PROBLEMS),
    variant=st.sampled_from(["cudnn.fft", "cuda.gemm"]),
    device=st.sampled_from(DEVICES),
    outcome=st.sampled_from([outcome for outcome in Outcome if outcome is not Outcome.MEASURED]),
    detail=st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    samples_ms=st.lists(st.floats(1e-6, 1e6), max_size=7).map(tuple),
    workspace_bytes=st.none() | st.integers(-(2**63), 2**63 - 1),
    max_error=st.none() | st.floats(),
    plan=st.dictionaries(st.sampled_from("ba"), st.integers() | st.text("xy")),
    l2=st.sampled_from(L2State),
    floor_ms=st.none() | st.floats(allow_nan=False),
    clock_start_mhz=integers,
    clock_end_mhz=integers,
    measured_at=st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1))
    | st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.just(timezone(timedelta(hours=-7)))),
    run_id=st.sampled_from(["", "sweep"]),
)
picks = st.builds(
    Pick, st.sampled_from(PROBLEMS), st.sampled_from(DEVICES), st.just("cudnn.heuristic_v7"), st.just("x")
)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MEASURED = Measurement(
    PROBLEMS[0],
    "cudnn.fft",
    DEVICES[0],
    Outcome.MEASURED,
    samples_ms=(0.5,),
    measured_at=datetime(2026, 1, 1, tzinfo=UTC),
)


def contents(addition: Addition) -> tuple[int, set[ConvProblem], set[str], list[dict[str, Any]]]:
    values = [dict(zip(part, row, strict=True)) for part in addition.parts for row in zip(*part.values(), strict=True)]
    return addition.n_rows, set(addition.problems), {device.fingerprint for device in addition.devices}, values


@given(st.lists(measurements, max_size=4))
def test_rows_are_those_that_a_parquet_file_gives(several: list[Measurement]) -> None:
    by_way_of_arrow = columns.addition_of(MEASUREMENTS, arrow.measurements_to_table(several))
    assert contents(rows.of_measurements(several)) == contents(by_way_of_arrow)


@given(st.lists(picks, max_size=3))
def test_picks_are_those_that_a_parquet_file_gives(several: list[Pick]) -> None:
    assert contents(rows.of_picks(several)) == contents(columns.addition_of(PICKS, arrow.picks_to_table(several)))


def test_numbers_of_numpy_become_plain() -> None:
    (row,) = contents(
        rows.of_measurements([replace(MEASURED, workspace_bytes=np.int64(7), max_error=np.float32(0.5))])
    )[3]
    assert [type(row[name]) for name in ("workspace_bytes", "max_error")] == [int, float]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("samples_ms", each) for each in [(), (0.0,), (-1.0,), (float("nan"),), (1e60,)]),
        *(("workspace_bytes", each) for each in [2**63, 1.5, "1"]),
        *(("clock_end_mhz", each) for each in [2**31, 1.5]),
        *[("max_error", "0"), ("floor_ms", "0"), ("outcome", "fine"), ("l2", "hot"), ("detail", None), ("variant", 1)],
        *[("run_id", b"x"), ("plan", [1]), ("device", replace(DEVICES[0], processors="132"))],
    ],
)
def test_a_value_that_the_schema_does_not_allow_is_refused_by_name(column: str, value: Any) -> None:
    with pytest.raises(StoreError, match=f"column {column} .*; allowed: "):
        rows.of_measurements([MEASURED, replace(MEASURED, **{column: value})])


def test_a_problem_that_cannot_be_is_refused() -> None:
    unsound = problem_of((1, 4, 7, 7, 4, 3, 3, 1, 1, 1, 1, 1, 1, 3, 1, 1), DType.FLOAT32, Layout.NCHW)
    with pytest.raises(InvalidProblem, match="groups"):
        rows.of_measurements([replace(MEASURED, problem=unsound)])
