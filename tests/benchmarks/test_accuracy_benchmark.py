"""What a bound on errors costs: worked by hand, and the rows on docs/torch.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.accuracy import RATIOS, slowdowns, table
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.shipped import TIMINGS, ShippedTable
from conv_advisor.data.summary import Attempt

PAGE = Path(__file__).parent.parent.parent / "docs" / "torch.md"
PROBLEM = ConvProblem.parse("14-1-3-256-128", dtype="float32")


def attempt(variant: str, time_ms: float, max_error: float | None) -> Attempt:
    return Attempt(variant, Outcome.MEASURED, time_ms, 0.0, 1, 0, max_error, "", "", 0)


def test_a_bound_leaves_the_fastest_of_those_within_it() -> None:
    attempts = [attempt("a", 4.0, 1e-6), attempt("b", 2.0, 3e-6), attempt("c", 1.0, 1e-5), attempt("d", 0.1, None)]
    assert dict(zip(RATIOS, slowdowns(PROBLEM, attempts, "a") or [], strict=False)) == {
        1.0: 4.0,
        2.0: 4.0,
        4.0: 2.0,
        8.0: 2.0,
        16.0: 1.0,
    }
    assert (slowdowns(PROBLEM, attempts, "a") or [])[-1] == 4.0


def test_nothing_is_said_where_the_error_of_the_usual_choice_is_unknown() -> None:
    attempts = [attempt("a", 4.0, 1e-6), attempt("d", 0.1, None)]
    assert slowdowns(PROBLEM, attempts, "d") is None
    assert slowdowns(PROBLEM, attempts, "b") is None


@pytest.mark.slow
def test_the_page_has_the_rows_that_the_measurements_give() -> None:
    rows = table(ShippedTable(TIMINGS / "nvidia-h200.safetensors"))
    text = PAGE.read_text()
    assert len(rows) == 8
    for row in rows:
        if "float32" in row:
            assert row in text
