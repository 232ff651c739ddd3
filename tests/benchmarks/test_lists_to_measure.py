"""Lists of layers to measure next: of models, and those that trees disagree on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import unsure, zoo
from conv_advisor.data import networks
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.models.costs import Costs, from_table
from tests.models import synthetic


@pytest.fixture(scope="module")
def costs() -> Costs:
    return from_table(synthetic.table(synthetic.all_problems()), synthetic.DEVICE.id)


def module(**changes: Any) -> SimpleNamespace:
    pair = {"kernel_size": (3, 5), "stride": (2, 1), "dilation": (1, 2), "padding": (1, 4)}
    return SimpleNamespace(**{"in_channels": 8, "out_channels": 16, "groups": 4, **pair, **changes})


def test_a_module_is_a_problem() -> None:
    assert zoo.problem_of(module(), 9, 17) == [ConvProblem(1, 8, 9, 17, 16, 3, 5, 2, 1, 1, 4, 1, 2, 4)]
    (same,) = zoo.problem_of(module(padding="same"), 9, 17)
    (valid,) = zoo.problem_of(module(padding="valid"), 9, 17)
    assert (same.pad_h, same.pad_w, valid.pad_h, valid.pad_w) == (1, 4, 0, 0)


def test_packages_that_are_missing_are_named_with_what_installs_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zoo, "find_spec", lambda package: None)
    with pytest.raises(SystemExit) as ended:
        zoo.main([])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(": pip install torch timm torchvision\n")


def test_what_is_no_layer_or_judges_advice_is_left_out() -> None:
    assert zoo.problem_of(module(padding="valid"), 2, 17) == []
    judge = next(each for each in networks.held_out_layers() if each.groups == 1)
    same = module(
        in_channels=judge.c,
        out_channels=judge.k,
        groups=1,
        kernel_size=(judge.r, judge.s),
        stride=(judge.stride_h, judge.stride_w),
        padding=(judge.pad_h, judge.pad_w),
        dilation=(judge.dilation_h, judge.dilation_w),
    )
    assert zoo.problem_of(same, judge.h, judge.w) == []


@pytest.mark.parametrize("name", networks.GROUPS["held-out"])
def test_every_family_of_judges_is_left_out(name: str) -> None:
    assert zoo.JUDGES.search(name)


def test_layers_that_trees_disagree_on_are_drawn_and_none_that_was_measured(costs: Costs) -> None:
    known = costs.problems[0]
    found = unsure.unsure(costs, [known, ConvProblem.parse("40-1-3-64-64")], made_up=60, count=8, seed=3, trees=4)
    kinds = {(problem.dtype, problem.layout) for problem in costs.problems}
    assert {(problem.dtype, problem.layout) for problem in found} == kinds
    assert len(found) == 8 * len(kinds)
    assert not set(found) & set(costs.problems)
    assert found == unsure.unsure(
        costs, [known, ConvProblem.parse("40-1-3-64-64")], made_up=60, count=8, seed=3, trees=4
    )


def test_regret_is_expected_where_the_fastest_changes(costs: Costs) -> None:
    alone = costs.take([row for row, problem in enumerate(costs.problems) if problem.dtype is DType.FLOAT32])
    regret = unsure.expected_regret(alone, alone.problems, seed=0, trees=6)
    assert (regret >= 0).all()
    assert regret.max() > regret.min()
