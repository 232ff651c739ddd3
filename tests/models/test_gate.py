"""The gate that a retrained tree must pass: no worse in all, much worse nowhere; by hand."""

from __future__ import annotations

import math
from dataclasses import replace

from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.evaluation.judging import Result
from conv_advisor.models.retraining.gate import LEAST_PROBLEMS, objections

LAYER = ConvProblem.parse("7-1-3-8-8")


def results(slowdown: float, *, dtype: str = "float32", count: int = LEAST_PROBLEMS) -> list[Result]:
    """So many problems of one dtype, all with this slowdown."""
    problems = [replace(LAYER, n=n, dtype=dtype) for n in range(1, count + 1)]
    return [Result(problem, slowdown, False, False, False) for problem in problems]


def test_the_same_results_speak_against_nothing() -> None:
    assert objections(results(1.1), results(1.1)) == ()
    assert objections(results(1.1), results(1.05)) == ()
    assert objections([], results(9.0)) == ()


def test_the_mean_over_all_may_not_get_worse_at_all() -> None:
    assert objections(results(1.1), results(1.101)) == (
        "the geometric mean of the slowdown went from 1.1000 to 1.1010; allowed: no more",
    )


def test_one_dtype_may_not_pay_for_the_others() -> None:
    before = results(1.2) + results(1.0, dtype="float16")
    assert objections(before, results(1.1) + results(1.019, dtype="float16")) == ()
    assert objections(before, results(1.1) + results(1.03, dtype="float16")) == (
        "the geometric mean of float16/nchw of the slowdown went from 1.0000 to 1.0300; allowed: at most 2% more",
    )
    few = results(1.2) + results(1.0, dtype="float16", count=LEAST_PROBLEMS - 1)
    assert objections(few, results(1.1) + results(1.03, dtype="float16", count=LEAST_PROBLEMS - 1)) == ()


def test_the_worst_twentieth_may_not_pay_for_the_rest() -> None:
    before = results(1.2, count=100)
    after = [replace(each, slowdown=1.0 if each.problem.n > 10 else 1.3) for each in before]
    assert objections(before, after) == (
        "the 95th percentile of the slowdown went from 1.2000 to 1.3000; allowed: at most 5% more",
    )
    near = [replace(each, slowdown=1.0 if each.problem.n > 10 else 1.25) for each in before]
    assert objections(before, near) == ()


def test_problems_that_only_one_has_are_left_out() -> None:
    assert objections(results(1.0), results(1.0) + results(9.0, dtype="tf32")) == ()


def test_choices_that_were_given_up_on_have_no_slowdown_and_may_not_become_more() -> None:
    before = results(1.2)
    after = [replace(each, slowdown=math.nan if each.problem.n == 1 else 1.0) for each in before]
    assert objections(after, before[:1] + after[1:]) == (), "one fewer"
    assert objections(before, after) == (
        "choices that were given up on after their first launch went from 0 to 1; allowed: at most 0",
    )
    assert objections(before[:1], after[:1]) == objections(before, after)
    many = results(1.2, count=1000)
    assert objections(many, [replace(many[0], slowdown=math.nan), *many[1:]]) == (), "one of a thousand"
