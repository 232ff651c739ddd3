"""What plans say that networks take against what was measured: what counts, and what a table says."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.networks.cells import Cell
from benchmarks.networks.totals import compare, main
from conv_advisor.app.advice.library import known_within
from conv_advisor.app.plans.known import known_network
from conv_advisor.app.plans.planning import plan_network
from conv_advisor.data.problem import DType
from conv_advisor.models.planning.plan import Plan

CELL = Cell("alexnet", "float16", 1)


@pytest.fixture(scope="module")
def plan() -> Plan:
    known, limits = known_within("nvidia-h200", None, False, None)
    return plan_network(known, known_network("alexnet", batch=1, dtype=DType.FLOAT16), limits)


def test_a_plan_is_held_against_the_sum_of_its_layers(plan: Plan) -> None:
    twice = {layer.problem: 2 * layer.advice.best.time_ms for layer in plan.layers}
    row = compare(CELL, plan, twice, 2 * plan.conversions_ms)
    assert row.planned_ms == pytest.approx(plan.time_ms)
    assert row.off == pytest.approx(-0.5)
    assert row.n_layers == plan.n_convolutions == 5
    assert row.n_known <= row.n_layers
    assert not row.failed


def test_a_layer_that_fails_counts_on_neither_side(plan: Plan) -> None:
    taken: dict = {layer.problem: layer.advice.best.time_ms for layer in plan.layers}
    first = plan.layers[0]
    taken[first.problem] = "wrong_result: max error 1"
    row = compare(CELL, plan, taken, plan.conversions_ms)
    assert row.planned_ms == pytest.approx(plan.time_ms - first.total_ms)
    assert row.off == pytest.approx(0)
    assert row.failed == (f"{first.problem.short} by {first.advice.variant}: wrong_result: max error 1",)


def test_a_report_says_how_far_off_plans_are(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exact = {layer.problem: layer.advice.best.time_ms for layer in plan.layers}
    rows = [
        compare(CELL, plan, {problem: factor * ms for problem, ms in exact.items()}, factor * plan.conversions_ms)
        for factor in (1.0, 0.8, 1.25)
    ]
    (tmp_path / "rows.json").write_text(json.dumps([asdict(row) for row in rows]))
    assert main(["--report", str(tmp_path / "rows.json")]) == 0
    said = capsys.readouterr().out
    assert "off by 20.0% in the median (asked 7 %), by 25.0% at worst (asked 15 %)" in said
    assert "| alexnet, float16, batch 1 | " in said
