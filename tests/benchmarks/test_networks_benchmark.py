"""The table of whole networks: which cells come first, what counts as PyTorch's best, and what a file gives back."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from benchmarks.networks.__main__ import main
from benchmarks.networks.cells import PEERS, Cell, Row, cells, layers_of, report
from benchmarks.networks.first_call import table
from benchmarks.networks.shares import table as shares
from benchmarks.networks.shares import variants_of

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "networks-nvidia-h100.json"
H200 = ROOT / "benchmarks" / "results" / "networks-nvidia-h200.json"

ROW = Row(
    Cell("resnet50", "float32", 1),
    device_ms={"eager": 2.0, "benchmark": 1.5, "compile": 1.8, "ours": 0.5},
    wall_ms={"eager": 5.1, "ours": 1.9},
    first_call_s={"ours": 4.0},
    error=2e-7,
    torch_error=1e-7,
    replaced=50,
    fused=40,
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
    assert "| resnet50 | 2.000 | 1.500 | 1.800 | 0.500 | 3.000 | 5.10 | 1.90 | 4.0 | 2.00 | 50 of 53, 40 |" in said
    assert "| vgg19 | 0.750 | – | – | 1.000 | 0.750 | – | – | – | – | 0 of 0, 0 |" in said
    assert "| float32, batch 1 | 2 | 1.500 | 0.750 | 2.684 | 2.684 |" in said
    assert "vgg19, compile: broken" in said


def test_devices_are_told_apart() -> None:
    said = report([ROW, replace(ROW, device="NVIDIA H200")])
    assert "| float32, batch 1 | 1 | 3.000 | 3.000 | 2.684 | 2.684 |" in said
    assert "| float32, batch 1 on NVIDIA H200 | 1 | 3.000 | 3.000 | 2.684 | 2.684 |" in said


def test_measuring_a_few_is_held_against_measuring_all() -> None:
    all_ = replace(ROW, device_ms=ROW.device_ms | {"all": 0.49})
    assert all_.slowdown == pytest.approx(0.5 / 0.49)
    assert all_.gain == ROW.gain
    assert "ours ÷ all measured" not in report([ROW])
    said = report([all_, replace(ROW, cell=Cell("vgg19", "float32", 1))])
    assert "| best PyTorch ÷ ours | ours ÷ all measured |" in said
    assert "| 0.500 | 3.000 | 1.020 | 5.10 |" in said
    assert "| 0.500 | 3.000 | – | 5.10 |" in said


def test_layers_are_counted_by_what_runs_them() -> None:
    said = [
        "conv1: 56-1-3-64-64-bias-relu-float16-nhwc by cuda.implicit_gemm_nhwc, 1.00 µs against 2.00 of PyTorch's own",
        "conv2: 56-1-3-64-64-float16-nhwc by cudnn.graph.eng62, 1.00 µs against 2.00 of PyTorch's own",
        "conv3: 28-1-1-64-64-bias-float16-nhwc by PyTorch's own (it is as fast as the first variants)",
    ]
    assert layers_of(said) == {"replaced": 2, "fused": 1, "convolutions": 3}


def test_first_calls_are_told_beside_eagers() -> None:
    times = {"eager": 0.5, "backend, kept": 0.6}
    lines = list(table(ROW.cell, lambda way: (times.get(way, 2.0), "fxgraph_cache_hit" if "kept" in way else "")))
    assert "| eager | 0.50 | 1.00 |  |" in lines
    assert "| backend, kept | 0.60 | 1.20 | fxgraph_cache_hit |" in lines
    assert "| optimize | 2.00 | 4.00 |  |" in lines
    assert list(table(ROW.cell, lambda _: (2.0, ""), ["optimize"]))[2:] == ["| optimize | 2.00 | – |  |"]


def test_files_are_merged_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([ROW.to_json()]))
    assert main(["--report", str(tmp_path / "rows.json")]) == 0
    assert "| float32, batch 1 | 1 | 3.000 | 3.000 |" in capsys.readouterr().out


def test_the_pages_say_what_was_measured() -> None:
    measured = [Row.from_json(fields) for fields in json.loads(RESULTS.read_text(encoding="utf-8"))]
    mean, least, n = {}, {}, {}
    for column in {(row.cell.precision, row.cell.batch) for row in measured}:
        gains = [row.gain for row in measured if (row.cell.precision, row.cell.batch) == column and row.gain]
        mean[column] = math.exp(math.fsum(map(math.log, gains)) / len(gains))
        least[column], n[column] = min(gains), len(gains)
    torch_page = (ROOT / "docs" / "torch.md").read_text(encoding="utf-8")
    layouts = {"float32": "NCHW", "float16": "NHWC"}
    for (precision, batch), gain in mean.items():
        row = f"| {precision} {layouts[precision]}, batch {batch} | {n[precision, batch]} | {gain:.2f} |"
        assert f"{row} {least[precision, batch]:.2f} |" in torch_page


def test_the_host_is_told_by_what_it_calls() -> None:
    spent = {"Triton": [8e-6] * 120, "cuda.pointwise": [5e-6] * 55 + [1e-3] * 5}
    lines = shares(1e-3, spent)
    assert lines[2:] == [
        "| cuda.pointwise | 1 | 5.0 | 1000.0 | 0.005 |",
        "| Triton | 2 | 8.0 | 8.0 | 0.016 |",
        "| all else | | | | 0.979 |",
        "| a call, unwatched | | | | 1.000 |",
    ]


def test_plans_are_told_by_their_variants() -> None:
    said = ["conv1: 56-1-3-64-64-bias-relu-float16-nhwc by cuda.pointwise, 1.00 µs against 2.00 of PyTorch's own"]
    assert variants_of(said) == {"56-1-3-64-64-bias-relu-float16-nhwc": "cuda.pointwise"}


def test_the_pages_have_what_an_h200_gave() -> None:
    page = (ROOT / "docs" / "torch.md").read_text(encoding="utf-8").replace("* |", " |")  # of a run before
    rows = [Row.from_json(fields) for fields in json.loads(H200.read_text(encoding="utf-8"))]
    gains: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        best = row.device_ms[row.best_peer or ""]
        assert f"| {best:.3f} → {row.device_ms['ours']:.3f}, {row.gain or 0:.2f} |" in page
        wall = min(row.wall_ms[peer] for peer in PEERS if peer in row.wall_ms)
        assert f"| {wall:.2f} → {row.wall_ms['ours']:.2f} |" in page
        gains.setdefault((row.cell.precision, row.cell.batch), []).append(row.gain or 0)
    columns = list(product(("float16", "bfloat16", "float32", "tf32"), (1, 32)))
    mean = {column: f"{math.prod(gains[column]) ** (1 / len(gains[column])):.2f}" for column in columns}
    assert f"| geometric mean | {' | '.join(mean.values())} |" in page
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for precision in ("float16", "float32"):
        assert f"| {mean[precision, 1]}× and {mean[precision, 32]}× |" in readme
