"""Our own rules: found where one hides in a table, worded for people, and the same whatever is measured beside."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.guidelines import rules
from benchmarks.guidelines.rules import QUESTIONS, Fared, Rule
from benchmarks.measured import only
from conv_advisor.data.networks import problems
from tests.benchmarks.tables import costs_of

GEMM, WINOGRAD, FFT = "cudnn.implicit_gemm", "cudnn.winograd_nonfused", "cudnn.fft"
SHAPES = [problem for problem in problems("seeds") if problem.r < 5]


def hidden():
    """1x1: GEMM; 3x3: Winograd from batch 8 on, GEMM at batch 1."""
    times = {}
    for problem in SHAPES:
        is_winograd = problem.r == 3 and problem.n > 1
        times[problem.short] = {GEMM: 3.0 if is_winograd else 1.0, WINOGRAD: 1.0 if is_winograd else 3.0}
    return {("float32", "nchw"): costs_of(times)}


def by_words(found: list[Rule]) -> dict[str, str]:
    return {rule.words: rule.order[0] for rule in found}


def test_the_hidden_rules_are_found() -> None:
    known = hidden()
    found = rules.grow(rules.gather(known), 8)
    assert by_words(found) == {"1×1": GEMM, "above 1×1, batch 1": GEMM, "above 1×1, batch > 1": WINOGRAD}
    fared = Fared.of(rules.judged(known["float32", "nchw"], found))
    assert fared == Fared(len(SHAPES), 1.0, 1.0, 1.0)


def test_fewer_rules_are_the_first_splits_of_more() -> None:
    table = rules.gather(hidden())
    assert by_words(rules.grow(table, 1)) == {"always": GEMM}
    costs = [rules.judged(hidden()["float32", "nchw"], rules.grow(table, count)) for count in (1, 2, 3)]
    means = [Fared.of(results).slowdown for results in costs]
    assert means[0] > means[1] > means[2] == pytest.approx(1.0)


def test_one_rule_speaks_of_each_problem() -> None:
    found = rules.grow(rules.gather(hidden()), 8)
    assert all(sum(rule.speaks_of(problem) for rule in found) == 1 for problem in SHAPES)
    followed = rules.followed(hidden(), found)
    assert sum(map(len, followed.values())) == len(SHAPES)


def test_the_first_that_runs_is_run() -> None:
    costs = costs_of({problem.short: {GEMM: 2.0} | ({FFT: 1.0} if problem.n > 1 else {}) for problem in SHAPES})
    (rule,) = rules.grow(rules.gather({("float32", "nchw"): costs}), 1)
    assert rule.order == (FFT, GEMM)
    assert Fared.of(rules.judged(costs, [rule])).slowdown == pytest.approx(1.0)


def test_held_out_layers_are_not_looked_at() -> None:
    found = rules.held_out(hidden(), (1, 3))
    assert {column for column, _ in found[3]} == {"float32/nchw"}
    assert Fared.of([result for _, result in found[3]]).slowdown == pytest.approx(1.0)
    assert Fared.of([result for _, result in found[1]]).slowdown > 1.3


def question(words: str):
    return next(each for each in QUESTIONS if each.yes == words)


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ([], "always"),
        ([("1×1", False), ("up to 3×3", True)], "3×3"),
        ([("up to 3×3", True), ("1×1", True)], "1×1"),
        ([("1×1", False), ("up to 3×3", False)], "above 3×3"),
        ([("batch ≤ 32", True), ("batch 1", False)], "batch ≤ 32, batch > 1"),
        ([("batch ≤ 32", True), ("batch ≤ 8", True)], "batch ≤ 8"),
        ([("16 bit", True), ("float32", False), ("NHWC", True)], "16 bit, NHWC"),
        ([("16 bit", False), ("float32", False)], "32 bit, tensor cores"),
        ([("float32", True), ("16 bit", False)], "float32"),
    ],
)
def test_words(conditions, words: str) -> None:
    rule = Rule(tuple((question(yes), answer) for yes, answer in conditions), ())
    assert rule.words == words


def test_of_some_variants_the_best_of_them_is_the_oracle() -> None:
    costs = costs_of({"7-1-1-32-832": {GEMM: 2.0, FFT: 1.0}, "7-8-1-32-832": {FFT: 1.0}})
    alone = only(costs, [GEMM])
    assert alone.variants == (GEMM,)
    assert [problem.short for problem in alone.problems] == ["7-1-1-32-832"]
    np.testing.assert_array_equal(alone.best_ms, [2.0])
