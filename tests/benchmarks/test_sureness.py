"""How sure the tree is and how often it is right: the table by hand, and the one on docs/advice.md."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.plots.pages import rewritten
from benchmarks.sureness import (
    Answer,
    answers,
    answers_on,
    attempt_ms,
    main,
    middle_ms,
    sure_table,
    tables,
    top_table,
    unsure_table,
)
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.shipped import TIMINGS
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import from_table
from conv_advisor.models.evaluation.judging import even_weights, judge
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.tree.file import read
from tests.data import arrow
from tests.fakes import SMALL_DEVICE, small_measurements, small_tree

DEVICE = "nvidia-h200"
PAGE = Path(__file__).parent.parent.parent / "docs" / "advice.md"


def answer(confidence: float | None, *slowdowns: float, layout: str = "nchw") -> Answer:
    return Answer(ConvProblem.parse("7-1-3-8-8", layout=layout), confidence, 2.0, slowdowns)


def test_answers_are_told_by_how_sure_they_are() -> None:
    judged = [answer(1.0, 1.0), answer(0.95, 1.05), answer(0.94, 2.0), answer(0.2, 1.0), answer(None, 4.0)]
    assert sure_table(judged).splitlines()[2:] == [
        "| 95 % and more | 2 (40 %) | 98 % | 100 % | 1.025 · 1.05 · 1.1 |",
        "| 90 % to 95 % | 1 (20 %) | 94 % | 0 % | 2.000 · 2.00 · 2.0 |",
        "| below 80 % | 1 (20 %) | 20 % | 100 % | 1.000 · 1.00 · 1.0 |",
        "| abstains | 1 (20 %) | - | 0 % | 4.000 · 4.00 · 4.0 |",
        "| all | 5 (100 %) | 77 % | 60 % | 1.531 · 3.60 · 4.0 |",
    ]


def test_what_is_left_of_the_first_few_is_told_by_dtype_and_layout() -> None:
    judged = [answer(1.0, 4.0, 1.0, 1.0, 1.0), answer(None, 2.0, 2.0, 1.5, 1.0, layout="nhwc")]
    assert top_table(judged).splitlines()[2:] == [
        "| float32 NCHW | 1 | 4.000 · 4.00 · 4.0 | 1.000 · 1.00 · 1.0 | 1.000 · 1.00 · 1.0 | 1.000 · 1.00 · 1.0 |",
        "| float32 NHWC | 1 | 2.000 · 2.00 · 2.0 | 2.000 · 2.00 · 2.0 | 1.500 · 1.50 · 1.5 | 1.000 · 1.00 · 1.0 |",
        "| all | 2 | 2.828 · 3.90 · 4.0 | 1.414 · 1.95 · 2.0 | 1.225 · 1.48 · 1.5 | 1.000 · 1.00 · 1.0 |",
    ]


def test_measuring_has_paid_after_so_many_calls() -> None:
    # Of 2 ms each, the second saves 2 ms a call, and measuring a variant takes 10 ms.
    judged = [answer(0.97, 1.0, 1.0, 1.0, 1.0), answer(0.82, 2.0, 2.0, 1.0, 1.0), answer(None, 1.0, 1.0, 1.0, 1.0)]
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ") for row in unsure_table(judged, 10.0).splitlines()[2:]}
    assert rows["below 80 %"][1:4] == ["33 %", "1.260 · 1.90 · 2.0", "-"], "the one that abstains, and gains nothing"
    assert rows["below 85 %"][1:6] == ["67 %", "1.260 · 1.90 · 2.0", "-", "1.000 · 1.00 · 1.0", "30"]
    assert rows["below 85 %"][7] == "50 |", "five take longer to pay than three"
    assert rows["all"][1:6] == ["100 %", "1.260 · 1.90 · 2.0", "-", "1.000 · 1.00 · 1.0", "45"]


def test_what_a_sweep_took_is_that_of_one_that_did_not_wait_for_others() -> None:
    # Run 1 is alone, and interrupted once; runs 0 and 2 take turns. Every second attempt is timed.
    run = np.repeat([0, 1, 2], [4, 8, 4])
    at_s = np.concatenate([np.arange(4) * 8, np.arange(8) + np.repeat([0, 5000], 4), np.arange(4) * 8 + 4])
    is_timed = np.tile([True, False], 8)
    backwards = np.arange(len(run))[::-1]
    for order in (slice(None), backwards):
        assert middle_ms(run[order], at_s[order], is_timed[order]) == pytest.approx(1e3 * 6 / 4)


def test_over_all_every_dtype_and_layout_counts_the_same() -> None:
    judged = [answer(1.0, 1.0)] * 3 + [answer(1.0, 4.0, layout="nhwc")]
    assert sure_table(judged).splitlines()[-1] == "| all | 4 (100 %) | 100 % | 50 % | 2.000 · 3.73 · 4.0 |"


@pytest.mark.parametrize("is_swapped", [False, True])
def test_an_answer_is_judged_by_what_was_measured(is_swapped: bool) -> None:
    other = {"cpu.direct": "cpu.gemm", "cpu.gemm": "cpu.direct"}
    rows = [replace(row, variant=other[row.variant]) if is_swapped else row for row in small_measurements(0.01)]
    costs = from_table(arrow.measurements_to_table(rows), SMALL_DEVICE.id)
    advisor = Advisor(small_tree(0.01))
    judged = answers_on(costs, advisor)
    assert [each.problem for each in judged] == list(costs.problems)
    assert all(each.confidence is not None and each.confidence > 0.99 for each in judged)
    assert [each.slowdowns[0] for each in judged] == [each.slowdown for each in judge(costs, advisor.predict_order)]
    assert [each.slowdowns[0] for each in judged] == pytest.approx([2.0 if is_swapped else 1.0] * len(judged))
    assert {each.slowdowns[1:] for each in judged} == {(1.0, 1.0, 1.0)}, "both were measured"


def test_a_refused_choice_leaves_its_place_to_the_next() -> None:
    rows = [
        replace(row, outcome=Outcome.NOT_SUPPORTED, samples_ms=()) if row.variant == "cpu.direct" else row
        for row in small_measurements(0.01)
    ]
    advisor = Advisor(small_tree(0.01))
    judged = answers_on(from_table(arrow.measurements_to_table(rows), SMALL_DEVICE.id), advisor)
    assert {each.slowdowns for each in judged} == {(1.0, 1.0, 1.0, 1.0)}
    assert len(judged) == 30


def test_a_first_launch_is_no_answer() -> None:
    rows = [
        replace(row, outcome=Outcome.PRUNED, samples_ms=row.samples_ms[:1]) if row.variant == "cpu.direct" else row
        for row in small_measurements(0.01)
    ]
    costs = from_table(arrow.measurements_to_table(rows), SMALL_DEVICE.id)
    advisor = Advisor(small_tree(0.01))
    judged = [each.problem for each in answers_on(costs, advisor)]
    assert judged == [problem for problem in costs.problems if advisor.choose(problem) == "cpu.gemm"]
    assert judged == [each.problem for each in judge(costs, advisor.predict_order) if each.is_timed]
    assert 0 < len(judged) < len(costs.problems)


@pytest.mark.slow
def test_the_page_says_how_sure_the_shipped_tree_is() -> None:
    page, timings = PAGE.read_text(encoding="utf-8"), TIMINGS / DEVICE
    judged = answers(timings, read(SHIPPED / DEVICE))
    assert rewritten(page, tables(judged, attempt_ms(timings))) == page
    behind = [sum(each.slowdowns[0] > limit for each in judged) for limit in (1.2, 1.4, 1.6)]
    said = f"Of the {len(judged):,} problems, {behind[0]} are more than 1.2 times behind the fastest, {behind[1]} more"
    assert f"{said} than 1.4 times, and {behind[2]} more than 1.6 times." in " ".join(page.split())
    weights = even_weights([each.problem for each in judged])
    for is_of, mean in (
        (lambda each: 0.016 <= each.best_ms < 0.032, "16 to 32 µs (geometric mean {:.3f};"),
        (lambda each: each.best_ms < 0.004, "those under 4 µs are at {:.3f})"),
        (lambda each: _is_grouped_half_nhwc(each.problem), "in half precision and NHWC ({:.3f}, but only 41 problems)"),
    ):
        among = np.array([is_of(each) for each in judged])
        logs = np.log([each.slowdowns[0] for each in judged])
        assert mean.format(np.exp(np.average(logs[among], weights=weights[among]))) in " ".join(page.split())


def _is_grouped_half_nhwc(problem: ConvProblem) -> bool:
    is_half_nhwc = problem.dtype in (DType.FLOAT16, DType.BFLOAT16) and problem.layout is Layout.NHWC
    return is_half_nhwc and 1 < problem.groups < problem.c


def test_without_measurements_there_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--timings", str(tmp_path)]) == 1
    assert "nothing was measured of the networks held-out" in capsys.readouterr().err
