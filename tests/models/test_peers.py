"""What other libraries cost, read from what the benchmark wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.rivals.rows import ADVICE, DEFAULT, ORACLE, TUNED, Row, write
from data import parquet
from data.errors import StoreError
from data.problem import ConvProblem
from models.peers import read_peers

PROBLEM = ConvProblem.parse("7-1-3-8-8", dtype="float16", layout="nhwc")
TIMES_MS = {ORACLE: 1.0, ADVICE: 1.1, DEFAULT: 2.0, TUNED: 1.001}


def rows() -> list[Row]:
    """One layer, each time with a spread of a per cent, and one that has no oracle."""
    timed = [
        Row(PROBLEM, rule, samples_ms=(0.99 * time_ms, time_ms, 1.01 * time_ms)) for rule, time_ms in TIMES_MS.items()
    ]
    return [*timed, Row(replace(PROBLEM, n=2), DEFAULT, samples_ms=(1.0,))]


def test_slowdowns_of_pytorch_are_against_the_oracle_of_the_same_run(tmp_path: Path) -> None:
    write(rows(), tmp_path / "gpu.parquet")
    found = read_peers(tmp_path / "gpu.parquet")
    assert {rule: list(of) for rule, of in found.items()} == {DEFAULT: [PROBLEM], TUNED: [PROBLEM]}
    assert (found[DEFAULT][PROBLEM].slowdown, found[DEFAULT][PROBLEM].is_tied) == (2.0, False)
    assert (found[TUNED][PROBLEM].slowdown, found[TUNED][PROBLEM].is_tied) == (1.001, True)


def test_a_file_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    parquet.write(pa.table({"rule": ["oracle"]}), tmp_path / "gpu.parquet")
    for name in ("gpu.parquet", "missing.parquet"):
        with pytest.raises(StoreError, match=name):
            read_peers(tmp_path / name)
