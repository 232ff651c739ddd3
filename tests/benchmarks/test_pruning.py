"""What is drawn of pruned attempts, what is measured again, and the table, by hand and on this processor."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.pruning import OPTIONS, Again, draw, main, measure_again, report
from conv_advisor.data import parquet
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.bench import measure, open_runner
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.runner import Runner
from conv_advisor.kernels.variant import Backend
from conv_advisor.models.costs import from_table
from tests.data import arrow

LAYER = ConvProblem.parse("12-2-3-8-4")
LARGER = replace(LAYER, n=4)


@pytest.fixture(scope="module")
def runner() -> Runner:
    return open_runner("cpu")


@pytest.fixture(scope="module")
def measured(runner: Runner) -> list[Measurement]:
    """Every variant of this processor on two batches of a layer, each 0.1 ms slower than the one before it."""
    mine = [variant for variant in VARIANTS.values() if variant.backend is Backend.CPU]
    rows = [row for layer in (LAYER, LARGER) for row in measure(runner, layer, mine, options=OPTIONS)]
    return [
        replace(row, samples_ms=(0.1 * (place + 1),) * 5) if row.outcome is Outcome.MEASURED else row
        for place, row in enumerate(rows)
    ]


def sweep(measured: list[Measurement], first_ms: dict[str, float]) -> list[Measurement]:
    """The same with some variants pruned at the larger batch, after a first launch of that time."""
    return [
        replace(row, outcome=Outcome.PRUNED, samples_ms=(first_ms[row.variant],))
        if row.problem == LARGER and row.variant in first_ms
        else row
        for row in measured
    ]


def test_pruned_attempts_are_drawn_far_ones_and_others_in_turns(runner: Runner, measured: list[Measurement]) -> None:
    best, *slower = [row for row in measured if row.problem == LARGER and row.time_ms]
    assert best.time_ms is not None
    times = [10 * best.time_ms, 300.0, 100 * best.time_ms]  # the second is too long to be drawn
    first_ms = {row.variant: time_ms for row, time_ms in zip(slower, times, strict=False)}
    assert len(first_ms) == 3
    costs = from_table(arrow.measurements_to_table(sweep(measured, first_ms)), runner.device.id)
    drawn = draw(costs, seed=0)
    assert [one.variant for one in drawn] == [slower[2].variant, slower[0].variant]
    assert [one.first_ms / one.best_ms for one in drawn] == pytest.approx([100, 10])
    assert {one.layer for one in drawn} == {LARGER.short}


def test_what_a_sweep_pruned_is_measured_to_the_end_and_reported(
    runner: Runner, measured: list[Measurement], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slowest = [row for row in measured if row.problem == LARGER and row.time_ms][-1]
    rows = sweep(measured, {slowest.variant: 200.0})
    parquet.write(arrow.measurements_to_table(rows), tmp_path / "sweep.parquet")
    output = tmp_path / "again.json"
    assert main(["--device", "cpu", "--timings", str(tmp_path), "--output", str(output)]) == 0
    [one] = json.loads(output.read_text())
    assert (one["layer"], one["variant"], one["first_ms"]) == (LARGER.short, slowest.variant, 200.0)
    assert 0 < one["time_ms"] < 200
    printed = capsys.readouterr().out
    assert "| all | 1 | " in printed
    assert main(["--report", str(output)]) == 0
    assert capsys.readouterr().out == printed
    assert measure_again(runner, [Again(**one)], time_limit_s=-1) == []


def test_the_table_tells_by_distance_what_the_first_launch_had_said_too_much() -> None:
    attempts = [
        Again("14-1-3-8-8", "float32", "nchw", "cuda.gemm", first_ms, best_ms=1.0, time_ms=time_ms)
        for first_ms, time_ms in ((6.0, 6.0), (8.0, 4.0), (40.0, 1.05), (200.0, 2.0), (7.0, None))
    ]
    lines = report(attempts).splitlines()
    assert lines[2] == "| 5 to 10 | 2 | 1.50 · 1.90 · 1.99 | 0 | 0 | 0 |"
    assert lines[3] == "| 20 to 50 | 1 | 38.10 · 38.10 · 38.10 | 1 | 1 | 1 |"
    assert lines[4] == "| 100 to inf | 1 | 100.00 · 100.00 · 100.00 | 0 | 0 | 1 |"
    assert lines[5].startswith("| all | 4 | ")
    assert lines[5].endswith(" | 1 | 1 | 2 |")
