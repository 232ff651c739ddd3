"""The first decisions of trees, and the plain tree."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

from conv_advisor.data import networks
from conv_advisor.data.errors import InvalidInput, NotEnoughData
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import Costs
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.training.plain import look, plain_tree
from conv_advisor.models.tree.arrays import DOMAIN, LARGE_DOMAIN, domain_sizes
from conv_advisor.models.tree.domain import GROUPS
from conv_advisor.models.tree.file import TreeModel, read
from conv_advisor.models.tree.first_levels import DEPTH, Side, first_levels


@pytest.fixture(scope="module")
def tree() -> TreeModel:
    return read(SHIPPED / "nvidia-h200")


def sides(side: Side, depth: int = 0) -> Iterator[tuple[int, Side]]:
    yield depth, side
    for below in side.below:
        yield from sides(below, depth + 1)


def test_every_precision_and_layout_has_its_first_decisions_and_the_shares_add_up(tree: TreeModel) -> None:
    kinds = first_levels(tree)
    assert {(kind.dtype, kind.layout) for kind in kinds} == set(GROUPS)
    for kind in kinds:
        assert kind.head.share == 1
        assert max(depth for depth, _ in sides(kind.head)) == DEPTH
        for _, side in sides(kind.head):
            assert len(side.below) in (0, 2)
            assert sum(of for _, of in side.winners) <= 1 + 1e-9
            if side.below:
                assert sum(each.share for each in side.below) == pytest.approx(side.share)


def test_what_it_says_of_a_layer_is_what_the_tree_answers(tree: TreeModel) -> None:
    """The share of the layers that are advised the first variant, counted one by one by the advisor."""
    advisor, n_wins, n_layers = Advisor(tree), 0, 0
    kind = next(each for each in first_levels(tree) if (each.dtype, each.layout) == (DType.FLOAT16, Layout.NHWC))
    name, share = kind.head.winners[0]
    kept = domain_sizes(tree.arrays)
    assert kept is not None
    rows = kept[(kept[:, -1] & GROUPS[kind.dtype, kind.layout]) > 0]
    assert len(rows) == kind.n_layers
    for n, c, h, w, k, r, s, stride_h, stride_w, dilation_h, dilation_w, groups, _ in rows[::40].tolist():
        pads = {"pad_h": (r - 1) * dilation_h // 2, "pad_w": (s - 1) * dilation_w // 2}
        problem = ConvProblem(
            *(n, c, h, w, k, r, s, stride_h, stride_w),
            **pads,
            dilation_h=dilation_h,
            dilation_w=dilation_w,
            groups=groups,
            dtype=kind.dtype,
            layout=kind.layout,
        )
        found = advisor.predict(problem)
        n_wins, n_layers = n_wins + (found is not None and found[0] == name), n_layers + 1
    assert n_wins / n_layers == pytest.approx(share, abs=0.12), "ties of the first go to the one with less workspace"


def test_decisions_are_in_words(tree: TreeModel) -> None:
    for kind in first_levels(tree):
        for depth, side in sides(kind.head):
            assert (side.said == "") == (depth == 0)
            assert depth == 0 or re.search(r" (at most|above) [\d,.]+( flop)?$| 1$", side.said), side.said


def test_a_tree_that_keeps_no_layers_has_none(tree: TreeModel) -> None:
    arrays = {name: values for name, values in tree.arrays.items() if name not in (DOMAIN, LARGE_DOMAIN)}
    assert first_levels(TreeModel(tree.card, arrays)) == ()


@pytest.fixture(scope="module")
def costs() -> Costs:
    """Two variants: one is the fastest up to batch 8, the other above."""
    problems = tuple(
        dict.fromkeys(networks.problems("seeds", batches=(1, 4, 8, 32, 128), dtypes=DType, layouts=(Layout.NCHW,)))
    )
    is_large = np.array([problem.n > 8 for problem in problems])
    time_ms = np.stack([np.where(is_large, 2.0, 1.0), np.where(is_large, 1.0, 2.0)], axis=1)
    nothing = np.zeros(time_ms.shape, bool)
    unknown = np.full(time_ms.shape, np.nan)
    return Costs(("few", "many"), problems, time_ms, 0 * time_ms, nothing, nothing, ~nothing, unknown)


def test_the_plain_tree_learns_from_six_quantities_alone(costs: Costs) -> None:
    plain = plain_tree(costs, Layout.NCHW, leaves=4)
    assert look(costs.problems).shape == (len(costs.problems), 6)
    for problem in costs.problems[::50]:
        assert plain.order(problem) == (["many", "few"] if problem.n > 8 else ["few", "many"])
    total = len(costs.problems)
    large = sum(problem.n > 8 for problem in costs.problems)
    assert plain.text().splitlines() == [
        "batch at most 20:",
        f"    few ({total - large:,} layers)",
        "batch above 20:",
        f"    many ({large:,} layers)",
    ]


def test_it_says_nothing_of_layers_that_it_is_not_for(costs: Costs) -> None:
    plain = plain_tree(costs, Layout.NCHW, leaves=4)
    assert plain.order(ConvProblem.parse("14-1-3-256-128", layout="nhwc")) is None
    assert plain.order(ConvProblem.parse("14-1-3-256-128-groups4")) is None


def test_precisions_are_named_and_only_those_that_come_by(costs: Costs) -> None:
    is_tf32 = np.array([problem.dtype == DType.TF32 for problem in costs.problems])
    is_half = np.array([problem.dtype in (DType.FLOAT16, DType.BFLOAT16) for problem in costs.problems])
    time_ms = np.stack([np.where(is_half, 1.0, 3.0), np.where(is_tf32 | is_half, 2.0, 1.0)], axis=1)
    time_ms[is_tf32, 0] = 1.0
    other = Costs(**{name: getattr(costs, name) for name in costs.__dataclass_fields__} | {"time_ms": time_ms})
    said = plain_tree(other, Layout.NCHW, leaves=4).text()
    assert said.splitlines()[0] == "float32:"
    assert "tf32 or float16 or bfloat16:" in said


def test_what_cannot_be_trained_is_refused(costs: Costs) -> None:
    with pytest.raises(InvalidInput, match="leaves is 1; allowed: at least 2"):
        plain_tree(costs, Layout.NCHW, leaves=1)
    with pytest.raises(NotEnoughData, match="no ungrouped layer in nhwc was measured"):
        plain_tree(costs, Layout.NHWC, leaves=4)
