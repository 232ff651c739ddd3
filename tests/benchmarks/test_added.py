"""What a variant adds is told by kind of layer, where it and another were timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import added, advice
from conv_advisor.data import parquet
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.problem import ConvProblem
from tests.benchmarks.made_up import GPU
from tests.benchmarks.test_grouped import timed
from tests.data import arrow

LAYER = ConvProblem.parse("28-16-3-64-96")
IT = "cuda.implicit_gemm_tma_packed"


def test_a_row_a_kind_of_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dilated, far_behind = replace(LAYER, pad_h=2, pad_w=2, dilation_h=2, dilation_w=2), replace(LAYER, n=7)
    rows = [
        *timed(LAYER, cuda__implicit_gemm_tma_packed=2.0, cudnn__gemm=1.0),
        *timed(replace(LAYER, n=8), cuda__implicit_gemm_tma_packed=1.0, cudnn__gemm=4.0, cuda__direct_naive=9.0),
        *timed(dilated, cuda__implicit_gemm_tma_packed=1.0, cuda__direct_naive=2.0),
        *timed(replace(LAYER, n=9), cudnn__gemm=1.0),
        *(replace(row, outcome=Outcome.PRUNED) for row in timed(far_behind, cuda__implicit_gemm_tma_packed=9.0)),
        *timed(far_behind, cudnn__gemm=1.0),
    ]
    path = tmp_path / "rows.parquet"
    parquet.write(arrow.measurements_to_table(rows), path)
    assert added.main([IT, "--device", GPU.id, "--timings", str(path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "float32" in line]
    assert lines == [
        "| float32 nchw | all | 3 | 67 % | 2.00 | 4.00 |",
        "| float32 nchw | dilated | 1 | 100 % | 2.00 | 2.00 |",
        "| float32 nchw | 3×3 | 2 | 50 % | 2.00 | 4.00 |",
    ]


def test_an_unknown_variant_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert added.main(["cuda.magic"]) == 2
    assert "cuda.magic" in capsys.readouterr().err
    assert added.main(["cpu.direct"]) == 2
    assert capsys.readouterr().err == "cpu.direct was not measured on nvidia-h200\n"


def test_measurements_that_are_not_there_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for benchmark in (added.main, advice.main):
        with pytest.raises(SystemExit):
            benchmark([IT, "--timings", str(tmp_path / "typo")])
        assert f"{tmp_path / 'typo'} is neither a file nor a folder" in capsys.readouterr().err
