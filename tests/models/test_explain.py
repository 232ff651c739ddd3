"""Explanations: the walk in words, and what lies beyond each decision."""

from __future__ import annotations

import numpy as np
import pytest

from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.models.registry.on_disk import Registry
from conv_advisor.models.tree.explain import QUANTITIES, Branch, decisive, explain, favourites
from conv_advisor.models.tree.features import FEATURES, features
from conv_advisor.models.tree.file import TreeModel, path, walk
from tests.models import hand_made


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> TreeModel:
    return Registry(tmp_path_factory.mktemp("home")).active("nvidia-h200")


def test_every_feature_means_something_to_people() -> None:
    assert list(QUANTITIES) == list(FEATURES)
    assert all(quantity.label for quantity in QUANTITIES.values())


def test_decisions_are_told_in_words_with_what_lies_beyond() -> None:
    first, second = explain(hand_made.model(), hand_made.LARGE)
    assert (first.label, first.actual, first.limit, first.is_below) == ("input height", 28.0, 16.0, False)
    assert (second.label, second.actual, second.limit, second.is_below) == ("filters", 512.0, 128.0, False)
    # Leaf 0 predicts cuda.big as the fastest, leaf 1 cuda.plain, leaf 2 all alike, of which the first counts.
    assert first.other == Branch(1, "cuda.big", 1.0)
    assert first.taken == Branch(2, "cuda.plain", 1.0)
    assert second.other == second.taken == Branch(1, "cuda.plain", 1.0)


def test_a_variant_that_does_not_run_is_nobodys_favourite() -> None:
    support = np.array([[0, 0, 0, 0, 0], [0.2, 1, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=np.float32)
    (first,) = explain(hand_made.model(support=support), hand_made.SMALL)
    assert first.taken == Branch(1, None, 0.0)
    assert first.other.n_leaves == 2
    assert first.other.share == 0.5


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("layer", ["14-1-3-256-128", "7-1-1-32-832", "224-64-3-64-3", "28-32-5-96-16"])
def test_an_explanation_follows_the_walk(shipped: TreeModel, layer: str, dtype: DType) -> None:
    problem = ConvProblem.parse(layer, dtype=dtype)
    decisions, steps = explain(shipped, problem), path(shipped, features(problem))
    assert [(each.feature, each.value, each.threshold, each.is_below) for each in decisions] == [
        (step.feature, step.value, step.threshold, step.is_below) for step in steps
    ]
    counts = [decision.taken.n_leaves + decision.other.n_leaves for decision in decisions]
    assert counts[0] == np.count_nonzero(shipped.arrays["feature"] < 0)
    assert counts[1:] == [decision.taken.n_leaves for decision in decisions[:-1]]
    assert decisions[-1].taken.n_leaves == 1
    row = shipped.arrays["next"][walk(shipped, features(problem))]
    runs = shipped.ranked("support", row) >= 0.5
    best = np.where(runs, shipped.ranked("log_slowdown", row), np.inf).argmin()
    assert decisions[-1].taken.favourite == shipped.variants[int(best)]


def test_numbers_keep_the_truth_of_the_comparison(shipped: TreeModel) -> None:
    for layer in ("14-1-3-256-128", "56-8-1-64-256", "13-256-3-384-256"):
        for decision in explain(shipped, ConvProblem.parse(layer)):
            if isinstance(decision.actual, str):
                assert decision.actual in str(decision.limit).split(" or ")
            else:
                assert isinstance(decision.limit, float)
                assert (decision.actual <= decision.limit) == decision.is_below, decision


def test_favourites_are_those_of_one_precision_and_layout(shipped: TreeModel) -> None:
    tensor_cores = favourites(shipped, DType.FLOAT16, Layout.NHWC)
    plain = favourites(shipped, DType.FLOAT32, Layout.NCHW)
    assert set(tensor_cores) <= set(shipped.variants)
    assert "cuda.winograd_nonfused_4x4_3x3" in plain
    assert "cuda.winograd_nonfused_4x4_3x3" not in tensor_cores
    assert len(set(plain)) == len(plain) > 3


def test_what_each_decision_did_adds_up_to_the_leaf(shipped: TreeModel) -> None:
    decisions = explain(shipped, ConvProblem.parse("14-8-3-256-128"))
    assert decisions[-1].share_after == 1.0
    assert [decision.share_after for decision in decisions[:-1]] == [
        decision.share_before for decision in decisions[1:]
    ]
    total = sum(decision.weight_bits for decision in decisions)
    assert total == pytest.approx(-np.log2(decisions[0].share_before))
    assert {decision.leaf for decision in decisions} == {decisions[-1].taken.favourite}


def test_the_decisive_ones_are_the_heaviest_in_the_order_of_the_path(shipped: TreeModel) -> None:
    decisions = explain(shipped, ConvProblem.parse("14-8-3-256-128"))
    chosen = decisive(decisions, 3)
    assert len(chosen) == 3
    assert [decisions.index(decision) for decision in chosen] == sorted(decisions.index(each) for each in chosen)
    least = min(decision.weight_bits for decision in chosen)
    assert all(decision.weight_bits <= least for decision in decisions if decision not in chosen)
    # Both of the second decision's sides predict cuda.plain: it singles out nothing.
    first, second = explain(hand_made.model(), hand_made.LARGE)
    assert (first.share_before, first.share_after) == (pytest.approx(2 / 3), 1.0)
    assert second.weight_bits == 0
    assert decisive([first, second], 3) == [first]
    assert decisive([second], 3) == [second]
