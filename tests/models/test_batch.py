"""Many problems at once: what is said of each alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conv_advisor.data.errors import InvalidProblem, NoAdvice
from conv_advisor.data.problem import MAX_ELEMENTS, ConvProblem, DType, Layout
from conv_advisor.data.sampling import sample_problems
from conv_advisor.data.table import SIZES, is_sound, problem_of, row_of, row_of_short, sizes_of, table
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.ranking.batch import predict_many, walk_many
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.tree.features import feature_matrix, features
from conv_advisor.models.tree.file import read, walk

LIMITS = [(2**30, False), (2**20, False), (0, True), (2**40, True)]
SIZE = st.one_of(st.integers(-1, 12), st.sampled_from([2**10, 2**16, 2**20, MAX_ELEMENTS, MAX_ELEMENTS + 1, 2**40]))
SHIPPED_TREE = SHIPPED / "nvidia-h200"


@pytest.fixture(scope="module")
def advisor() -> Advisor:
    return Advisor(read(SHIPPED_TREE))


@pytest.fixture(scope="module")
def problems() -> list[ConvProblem]:
    found = sample_problems(700, seed=3, dtypes=tuple(DType), layouts=tuple(Layout))
    odd = [
        dataclasses.replace(problem, s=1, pad_w=0, pad_w_end=0, w=problem.w + 3, stride_h=2, dilation_h=1, groups=1)
        for problem in found[:300]
    ]
    grouped = [dataclasses.replace(problem, c=64, k=32, groups=32) for problem in found[:50]]
    largest = [ConvProblem(1, 2**20, 1, 1, 2**11 - 1, 1, 1), ConvProblem(1, 1, 2**15, 2**15, 1, 2**15, 2**15)]
    return [*found, *odd, *grouped, *largest]


def test_features_are_equal_to_the_last_bit(problems: list[ConvProblem]) -> None:
    np.testing.assert_array_equal(feature_matrix(problems), [features(problem) for problem in problems])


def test_every_walk_ends_in_the_same_leaf(advisor: Advisor, problems: list[ConvProblem]) -> None:
    values = feature_matrix(problems)
    expected = [walk(advisor.model, row) for row in values.tolist()]
    assert walk_many(advisor.model, values).tolist() == expected
    assert len(set(expected)) > 100


@pytest.mark.parametrize(("max_workspace_bytes", "is_deterministic"), LIMITS)
def test_predictions_are_those_that_advice_puts_first(
    advisor: Advisor, problems: list[ConvProblem], max_workspace_bytes: int, is_deterministic: bool
) -> None:
    limits: dict[str, Any] = {"max_workspace_bytes": max_workspace_bytes, "is_deterministic": is_deterministic}
    found = predict_many(advisor, problems, sizes_of(problems), **limits)
    assert found == [advisor.predict(problem, **limits) for problem in problems]
    for problem, prediction in list(zip(problems, found, strict=True))[::37]:
        if prediction is None:
            with pytest.raises(NoAdvice):
                advisor.advise(problem, **limits)
            continue
        best = advisor.advise(problem, **limits).best
        assert prediction == (best.variant, best.time_ms)


def test_without_a_model_nothing_is_predicted(advisor: Advisor) -> None:
    problem = ConvProblem.parse("14-1-3-256-128")
    alone = Advisor(None, advisor.device)
    limits: dict[str, Any] = {"max_workspace_bytes": 0, "is_deterministic": False}
    assert predict_many(alone, [problem], sizes_of([problem]), **limits) == [None]
    assert alone.predict(problem) is None
    assert predict_many(advisor, [], table([]), **limits) == []


@settings(max_examples=1500)
@given(st.tuples(*[SIZE] * len(SIZES)))
def test_a_row_is_sound_exactly_where_a_problem_is_valid(row: tuple[int, ...]) -> None:
    try:
        expected: ConvProblem | None = ConvProblem(**dict(zip(SIZES, row, strict=True)))
    except InvalidProblem:
        expected = None
    (found,) = is_sound(table([row])).tolist()
    assert found == (expected is not None)
    if expected is not None:
        made = problem_of(row, DType.FLOAT32, Layout.NCHW)
        assert (made, made.key, hash(made)) == (expected, expected.key, hash(expected))
        assert row_of(made) == row


NUMBER = st.one_of(st.integers(1, 40), st.sampled_from([0, MAX_ELEMENTS, 10**11])).map(str)


@given(st.tuples(*[st.one_of(NUMBER, NUMBER.map("0{}".format))] * 5))
def test_a_plain_short_form_is_what_a_problem_says_of_itself(parts: tuple[str, ...]) -> None:
    layer = "-".join(parts)
    row = row_of_short(layer)
    if row is None:
        assert any(part.startswith("0") or len(part) > 10 for part in parts)
        return
    if not is_sound(table([row])).item():
        with pytest.raises(InvalidProblem):
            ConvProblem.parse(layer)
        return
    same = ConvProblem.parse(layer, dtype="tf32", layout="nhwc")
    assert row == row_of(same)
    made = problem_of(row, DType.TF32, Layout.NHWC, layer)
    assert (made, made.short, made.key) == (same, same.short, same.key)


@pytest.mark.parametrize("layer", ["", "14-1-3-256", "14-1-3-256-128 ", "14-1-3-256-128\n", "+1-1-1-1-1", "٣-1-1-1-1"])
def test_what_is_no_plain_short_form_is_left_to_others(layer: str) -> None:
    assert row_of_short(layer) is None
