"""What the rows of `benchmarks.advice` say, worked by hand, and the tables that say it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.rivals import scores
from benchmarks.rivals.rows import ADVICE, DEFAULT, LAYER, ORACLE, TUNED, Row, append, merge, read, write
from benchmarks.rivals.tables import report
from conv_advisor.data.problem import ConvProblem

FIRST, SECOND = "7-1-3-8-8", "9-1-3-8-8"
TIMES_MS = {
    FIRST: {ORACLE: 1.0, ADVICE: 1.0, DEFAULT: 2.0, TUNED: 1.6},
    SECOND: {ORACLE: 2.0, ADVICE: 2.5, DEFAULT: 2.25, TUNED: 2.0},
}
FIRST_CALLS_S = {DEFAULT: 0.01, TUNED: 0.502}


def made(**changes: object) -> list[Row]:
    """Two layers of float32 NCHW, advice off by 10 % and by 20 % of what it takes."""
    return [
        Row(
            ConvProblem.parse(layer),
            rule,
            samples_ms=(time_ms, time_ms * 0.99, time_ms * 1.01),
            predicted_ms={FIRST: 1.1, SECOND: 2.0}[layer] if rule == ADVICE else None,
            first_call_s=FIRST_CALLS_S.get(rule),
            networks="small" if layer == FIRST else "small large",
            device="test-gpu",
            **changes,
        )
        for layer, times in TIMES_MS.items()
        for rule, time_ms in times.items()
    ]


def test_slowdown_of_two_layers() -> None:
    found = scores.slowdown(scores.layers_of(made()), ADVICE)
    assert found is not None
    assert (found.n_layers, found.worst) == (2, pytest.approx(1.25))
    assert found.geometric_mean == pytest.approx(math.sqrt(1.25))
    assert found.p95 == pytest.approx(1.2375)
    assert found.worst_layer == ConvProblem.parse(SECOND).key


def test_speedup_counts_layers_that_are_much_slower() -> None:
    layers = scores.layers_of(made())
    default, tuned = scores.speedup(layers, DEFAULT), scores.speedup(layers, TUNED)
    assert default is not None
    assert tuned is not None
    assert default.geometric_mean == pytest.approx(math.sqrt(2 * 0.9))
    assert (default.share_faster, default.share_much_slower, default.worst) == (0.5, 0.5, pytest.approx(0.9))
    assert tuned.geometric_mean == pytest.approx(math.sqrt(1.6 * 0.8))


def test_a_layer_within_five_percent_is_not_much_slower() -> None:
    rows = [replace(row, samples_ms=(2.4,)) if row.rule == DEFAULT else row for row in made()]
    found = scores.speedup(scores.layers_of(rows), DEFAULT)
    assert found is not None
    assert found.share_much_slower == 0


def test_errors_of_predictions() -> None:
    found = scores.prediction(scores.layers_of(made()))
    assert found is not None
    assert (found.n_layers, found.median, found.p90) == (2, pytest.approx(0.15), pytest.approx(0.19))


def test_tuning_pays_after_its_time_over_what_it_gains() -> None:
    found = scores.worth(scores.layers_of(made()))
    assert found is not None
    assert found.share_never == 0.5
    assert found.calls == 1000  # 0.5 s over 0.5 ms a call
    assert found.total_s == pytest.approx(0.5004 + 0.5)
    assert found.untuned_s == pytest.approx((0.008 + 0.00775) / 2)


def test_what_has_no_time_is_left_out_and_counted() -> None:
    refused = [replace(row, samples_ms=(), failure="crashed: boom") if row.rule == TUNED else row for row in made()]
    lost = Row(ConvProblem.parse("11-1-3-8-8"), LAYER, failure="out_of_memory: too large")
    layers = scores.layers_of([*refused, lost])
    assert len(layers) == 2
    assert scores.speedup(layers, TUNED) is None
    assert scores.worth(layers) is None
    assert scores.failures([*refused, lost]) == {(TUNED, "crashed"): 2, (LAYER, "out_of_memory"): 1}
    text = report([*refused, lost])
    assert "1 layers could not be measured at all." in text
    assert "11-1-3-8-8-float32-nchw: out_of_memory: too large" in text


def test_a_report_says_what_is_reached_and_what_is_missed() -> None:
    text = report(made())
    assert "1.118 · 1.24 · 1.25" in text
    assert "1.000 · 1.00 · 1.00" not in text  # no line of the oracle against itself
    assert "1.118 (missed: 1.03) | 1.24 (missed: 1.12) | 1.25 (reached: 1.5)" in text
    assert "1.34 (reached: 1.30)" in text
    assert "1.13 (reached: 1.00)" in text
    assert "15.0 % (missed: 10.0 %)" in text
    assert "1,000 calls" in text
    assert [line.split("|")[2].strip() for line in text.splitlines() if line[:7] in ("| small", "| large")] == [
        "1",
        "2",
    ]
    assert "could not be captured" not in text
    assert "Some calls could not be captured" in report(made(is_captured=False))


def test_rows_survive_the_file_and_the_journal(tmp_path) -> None:
    rows = made(others_ms={"cuda.fft": 3.0}, max_error=1e-6, software="torch 2.11")
    write(rows, tmp_path / "rows.parquet")
    assert read(tmp_path / "rows.parquet") == rows
    append(rows[:4], tmp_path / "rows.jsonl")
    append(rows[4:], tmp_path / "rows.jsonl")
    assert read(tmp_path / "rows.jsonl") == rows


def test_of_a_layer_measured_twice_the_last_run_counts() -> None:
    again = [replace(row, samples_ms=(9.0,)) for row in made() if row.problem.h == 7]
    merged = merge([made(), again])
    assert len(merged) == 8
    assert {row.time_ms for row in merged if row.problem.h == 7} == {9.0}
