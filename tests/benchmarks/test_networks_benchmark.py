"""The table of whole networks: which cells come first, what counts as PyTorch's best, and what a file gives back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.networks.__main__ import main
from benchmarks.networks.cells import Cell, Row, cells, report

ROW = Row(
    Cell("resnet50", "float32", 1),
    device_ms={"eager": 2.0, "benchmark": 1.5, "compile": 1.8, "ours": 0.5},
    first_call_s={"ours": 4.0},
    error=2e-7,
    torch_error=1e-7,
    replaced=50,
    convolutions=53,
)


def test_a_time_limit_cuts_off_what_matters_least() -> None:
    order = list(cells(("a", "b"), ("float32", "float16", "tf32", "bfloat16"), (1, 32)))
    assert len(order) == 16
    columns = [(cell.precision, cell.batch) for cell in order[::2]]
    assert columns[:4] == [("float32", 1), ("float16", 1), ("float32", 32), ("float16", 32)]
    assert sorted(columns[4:]) == [("bfloat16", 1), ("bfloat16", 32), ("tf32", 1), ("tf32", 32)]


def test_the_best_of_pytorchs_modes_counts() -> None:
    assert ROW.best_peer == "benchmark"
    assert ROW.gain == pytest.approx(3.0)
    assert Row(ROW.cell, device_ms={"ours": 0.5}).gain is None
    assert Row(ROW.cell, device_ms={"eager": 0.5}).gain is None


def test_half_precision_runs_in_channels_last() -> None:
    assert [Cell("a", each, 1).is_nhwc for each in ("float32", "tf32", "float16", "bfloat16")] == [
        *(False, False),
        *(True, True),
    ]


def test_the_report_has_means_and_leasts() -> None:
    slower = Row(Cell("vgg19", "float32", 1), device_ms={"eager": 0.75, "ours": 1.0}, failures={"compile": "broken"})
    said = report([ROW, slower])
    assert "| resnet50 | 2.000 | 1.500 | 1.800 | 0.500 | 3.000 | 4.0 | 2.00 | 50 of 53 |" in said
    assert "| float32, batch 1 | 2 | 1.500 | 0.750 |" in said
    assert "vgg19, compile: broken" in said


def test_files_are_merged_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([ROW.to_json()]))
    assert main(["--report", str(tmp_path / "rows.json")]) == 0
    assert "| float32, batch 1 | 1 | 3.000 | 3.000 |" in capsys.readouterr().out
