"""The table of grouped layers counts what was timed on both sides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import grouped
from conv_advisor.data import parquet
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.problem import ConvProblem, DType
from tests.benchmarks.made_up import GPU
from tests.data import arrow

DEPTHWISE = ConvProblem(1, 16, 14, 14, 16, 3, 3, 1, 1, 1, 1, 1, 1, 16)
GROUPED = replace(DEPTHWISE, groups=4)


def timed(problem: ConvProblem, **times_ms: float) -> list[Measurement]:
    """A row a variant, named with underscores for dots."""
    return [
        Measurement(problem, name.replace("__", "."), GPU, Outcome.MEASURED, samples_ms=(ms, ms), max_error=0.0)
        for name, ms in times_ms.items()
    ]


def test_a_row_a_dtype_and_layout_of_each_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = replace(DEPTHWISE, n=64)
    rows = [
        *timed(DEPTHWISE, cuda__depthwise=1.0, cudnn__gemm=2.0, cudnn__graph__eng5=4.0),
        *timed(many, cuda__depthwise=2.0, cudnn__gemm=1.0),
        *timed(replace(many, dtype=DType.TF32), cuda__depthwise=2.0),
        *timed(GROUPED, cuda__grouped=1.0, cudnn__gemm=3.0),
        *timed(replace(GROUPED, groups=1), cuda__implicit_gemm=1.0, cudnn__gemm=9.0),
    ]
    path = tmp_path / "rows.parquet"
    parquet.write(arrow.measurements_to_table(rows), path)
    assert grouped.main(["--device", GPU.id, "--timings", str(path), "--source", "rows"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| float32") or "tf32" in line]
    assert lines == [
        "| float32 nchw | 2 | 50 % | 1.00 | 2.00 | 0.50 | 0.50 |",
        "| float32 nchw | 1 | 100 % | 3.00 | 3.00 | - | 3.00 |",
    ]
