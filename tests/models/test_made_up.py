"""Layers made up of measured ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.table import SIZES, problem_of
from conv_advisor.models.training.made_up import sample_like
from tests.models import synthetic


def made_of(problems: list[ConvProblem], count: int, seed: int = 0) -> list[ConvProblem]:
    made = sample_like(problems, count, np.random.default_rng(seed))
    assert made.dtype == np.int64
    found = [problem_of(row, problems[0].dtype, problems[0].layout) for row in made.tolist()]
    for problem in found:  # checked as any that a user writes
        assert ConvProblem(**{name: getattr(problem, name) for name in SIZES}).short == problem.short
    return found


def test_they_are_no_larger_and_keep_filter_and_padding() -> None:
    problems = synthetic.problems(["7-1-3-64-32", "28-1-1-128-64"], dtypes=["float16"], layouts=["nhwc"])
    made = made_of(problems, 200)
    assert len(made) == 200
    for name in ("flops", "bytes"):
        assert max(getattr(each, name) for each in made) <= max(getattr(problem, name) for problem in problems)
    assert {(problem.r, problem.pad_h) for problem in made} == {(3, 1), (1, 0)}
    assert made == made_of(problems, 200)
    assert made != made_of(problems, 200, seed=1)


def test_most_of_their_sizes_are_measured_ones() -> None:
    problems = synthetic.all_problems()
    made = made_of(problems, 1000)
    for name in ("h", "c", "k"):
        measured = {getattr(problem, name) for problem in problems}
        assert 0.7 < np.mean([getattr(problem, name) in measured for problem in made]) < 0.95, name


def test_kinds_that_are_rare_are_made_up_more_often_than_they_were_measured() -> None:
    usual = synthetic.problems([f"14-1-3-{k}-32" for k in range(16, 416, 4)])
    dilated = ConvProblem.parse("14x14-1-3x3-64-32-stride1x1-pad2x2-dilation2x2-groups1")
    made = made_of([*usual, dilated], 2000)
    share = np.mean([problem.dilation_h == 2 for problem in made])
    expected = 1 / (1 + len(usual) ** 0.7)
    assert 5 / len(usual) < 0.6 * expected < share < 1.4 * expected


def test_some_are_heads_though_none_was_measured() -> None:
    made = made_of(synthetic.problems([f"14-1-3-64-{c}" for c in (32, 256)]), 2000)
    heads = [each for each in made if each.k <= 4]
    assert {each.k for each in heads} == {1, 2, 3, 4}
    assert 0.03 < len(heads) / len(made) < 0.07
    assert {32, 256} <= {each.c for each in heads}


@pytest.mark.parametrize(("c", "k", "of_c", "of_k"), [(32, 32, 1, 1), (64, 128, 4, 8), (64, 16, 4, 1)])
def test_groups_keep_their_size_and_there_are_more_or_fewer(c: int, k: int, of_c: int, of_k: int) -> None:
    sizes: dict[str, Any] = {"n": 1, "h": 14, "w": 14, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1}
    made = made_of([ConvProblem(**sizes, c=c, k=k, groups=c // of_c)], 300)
    assert {(each.c // each.groups, each.k // each.groups) for each in made} == {(of_c, of_k)}
    assert len({each.groups for each in made}) > 3


def test_no_more_are_made_than_there_are_layers_to_make() -> None:
    alone = ConvProblem(1, 1, 1, 1, 1, 1, 1, dtype=DType.FLOAT32, layout=Layout.NCHW)
    assert set(made_of([alone], 5)) == {alone}
    assert sample_like([alone], 0, np.random.default_rng(0)).shape == (0, len(SIZES))
