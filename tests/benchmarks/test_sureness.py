"""How sure the tree is and how often it is right: the table by hand, and the one on docs/advice.md."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.shipped import TIMINGS
from benchmarks.plots.pages import rewritten
from benchmarks.sureness import Answer, answers, answers_on, main, sure_table
from data import parquet
from models.advisor import Advisor
from models.costs import from_table
from models.registry import SHIPPED
from tests.fakes import SMALL_DEVICE, small_measurements, small_tree

DEVICE = "nvidia-h200"
PAGE = Path(__file__).parent.parent.parent / "docs" / "advice.md"


def test_answers_are_told_by_how_sure_they_are() -> None:
    found = [Answer(1.0, 1.0), Answer(0.95, 1.05), Answer(0.94, 2.0), Answer(0.2, 1.0), Answer(None, 4.0)]
    assert sure_table(found).splitlines()[2:] == [
        "| 95 % and more | 2 (40 %) | 98 % | 100 % | 1.025 · 1.05 · 1.1 |",
        "| 90 % to 95 % | 1 (20 %) | 94 % | 0 % | 2.000 · 2.00 · 2.0 |",
        "| below 80 % | 1 (20 %) | 20 % | 100 % | 1.000 · 1.00 · 1.0 |",
        "| abstains | 1 (20 %) | - | 0 % | 4.000 · 4.00 · 4.0 |",
        "| all | 5 (100 %) | 77 % | 60 % | 1.531 · 3.60 · 4.0 |",
    ]


@pytest.mark.parametrize("is_swapped", [False, True])
def test_an_answer_is_judged_by_what_was_measured(is_swapped: bool) -> None:
    other = {"cpu.direct": "cpu.gemm", "cpu.gemm": "cpu.direct"}
    rows = [replace(row, variant=other[row.variant]) if is_swapped else row for row in small_measurements(0.01)]
    costs = from_table(parquet.measurements_to_table(rows), SMALL_DEVICE.id)
    found = answers_on(costs, Advisor(small_tree(0.01)))
    assert len(found) == len(costs.problems)
    assert all(answer.confidence is not None and answer.confidence > 0.99 for answer in found)
    assert [answer.slowdown for answer in found] == pytest.approx([2.0 if is_swapped else 1.0] * len(found))


def test_the_page_says_how_sure_the_shipped_tree_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = sure_table(answers(TIMINGS / DEVICE, SHIPPED / DEVICE))
    assert rewritten(page, {"how sure": table}) == page


def test_without_measurements_there_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--timings", str(tmp_path)]) == 1
    assert "nothing was measured of the networks held-out" in capsys.readouterr().err
