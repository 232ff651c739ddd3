"""Curves of size against regret: the first splits of a tree are the smaller tree, and every recipe is judged unseen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

from benchmarks import learners
from benchmarks.learners import Ground, Recipe, report
from benchmarks.shortened import report as report_sizes
from benchmarks.shortened import shortened
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.models.costs import Costs, from_table, roofline_ms
from conv_advisor.models.training import grow, train
from conv_advisor.models.training.graft import graft
from conv_advisor.models.training.options import Options
from conv_advisor.models.training.teacher import lesson_of, orders_of
from conv_advisor.models.tree.features import feature_matrix, features, kinds_of
from conv_advisor.models.tree.file import TreeModel, make, walk
from tests.models import synthetic

KIND = (DType.FLOAT16, Layout.NHWC)
QUICK = Options(n_trees=3, n_rounds=5)


@pytest.fixture(scope="module")
def costs() -> Costs:
    return from_table(synthetic.table(synthetic.all_problems()), synthetic.DEVICE.id)


def plain(costs: Costs, max_leaves: int) -> TreeModel:
    """A tree without a teacher."""
    trees = {}
    for kind, rows in kinds_of(costs.problems).items():
        part = costs.take(rows)
        roofline = grow.roofline_of(part)
        lesson = lesson_of(part, np.log([roofline_ms(problem, roofline.tolist()) for problem in part.problems]))
        options = Options(max_leaves=max_leaves, best_weight=0.0)
        grown = grow._Grown.of(feature_matrix(part.problems), lesson, np.ones(len(rows)), 0, options)
        tree = grown.arrays(min(max_leaves, grown.tree.get_n_leaves()), 0, options)
        trees[*kind, False] = tree | {"roofline": np.tile(roofline, (len(tree["log_best"]), 1))}
    return make(graft(trees), variants=costs.variants, device=synthetic.DEVICE, card={})


def parts(rows: np.ndarray) -> set[frozenset[int]]:
    """Which rows are the same."""
    _, same = np.unique(rows, axis=0, return_inverse=True)
    return {frozenset(np.flatnonzero(same == place).tolist()) for place in same}


def test_the_first_splits_of_a_tree_are_the_smaller_tree() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((300, 4)).astype(np.float32), rng.random((300, 2))
    large, small = (DecisionTreeRegressor(max_leaf_nodes=most, random_state=0).fit(x, y) for most in (40, 9))
    found = learners.shortened(large.tree_, large.apply(x), 9)
    assert parts(found[:, None]) == parts(small.apply(x)[:, None])


def test_a_shortened_tree_tells_apart_what_one_grown_with_fewer_leaves_does(costs: Costs) -> None:
    large, small = plain(costs, 30), plain(costs, 5)
    assert len(large.arrays["log_slowdown"]) > len(small.arrays["log_slowdown"]) == 20
    places = [small.arrays["next"][walk(small, features(problem))] for problem in costs.problems]
    assert parts(shortened(large, costs.problems)(5).log_slowdown) == parts(np.array(places)[:, None])


def test_the_whole_of_it_says_what_the_tree_says_and_one_leaf_the_mean(costs: Costs) -> None:
    model = plain(costs, 30)
    ask = shortened(model, costs.problems)
    rows_of_all = [model.arrays["next"][walk(model, features(problem))] for problem in costs.problems]
    for name, values in (("log_slowdown", ask(30).log_slowdown), ("support", ask(30).support)):
        assert np.array_equal(values, model.ranked(name, rows_of_all))
    rows = kinds_of(costs.problems)[KIND]
    (found,) = np.unique(ask(1).log_slowdown[rows], axis=0)
    own = np.unique(np.array(rows_of_all)[rows])
    assert found == pytest.approx(model.ranked("log_slowdown", own).mean(axis=0), abs=1e-3)


def test_more_leaves_choose_better_where_they_have_seen_the_layers(
    costs: Costs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.shortened.LEAVES", (1, 30))
    few, many = (line.split(" | ") for line in report_sizes(plain(costs, 30), costs).splitlines()[2:])
    assert [row[0] for row in (few, many)] == ["| 1", "| 30"]
    assert float(few[2].split("·")[0]) > float(many[2].split("·")[0]) >= 1


def test_a_choice_costs_what_was_measured_of_it(costs: Costs) -> None:
    part = costs.take(kinds_of(costs.problems)[KIND])
    lesson = lesson_of(part, np.zeros(len(part.problems)))
    assert learners.score(part, lesson) == (1.0, 1.0, 1.0, 0.0)
    worst = replace(lesson, cost=1 - lesson.cost, log_slowdown=-lesson.log_slowdown)
    mean, p95, most, share_over = learners.score(part, worst)
    assert 1 < mean < p95 <= most
    assert share_over > 0.5
    assert len(orders_of(lesson, part.variants)) == len(part.problems)


def test_every_recipe_is_judged_on_layers_that_it_has_not_seen(costs: Costs, monkeypatch: pytest.MonkeyPatch) -> None:
    never = {ConvProblem.parse(layer).layer for layer in synthetic.LAYERS["odd"]}
    for module in (learners, train):
        monkeypatch.setattr(module, "held_out_layers", lambda: frozenset(never))
    monkeypatch.setattr(learners, "LEAVES", (2, 6))
    ground = Ground(costs, synthetic.DEVICE, KIND)
    networks, other = ({problem.layer for problem in part.problems} for part in ground.judges)
    known = {problem.layer for problem in ground.known.problems}
    assert networks == never
    assert other
    assert not known & (networks | other)
    recipes = [
        Recipe("asked", sees="asked"),
        Recipe("time", target="time"),
        Recipe("taught", n_made_up=40, is_boosted=True),
        Recipe("plans", sees="plans", n_made_up=40, teacher_sees="features"),
    ]
    rows = [line.split(" | ") for line in report([ground], recipes, QUICK).splitlines()[2:]]
    assert [row[0].strip("| ") for row in rows] == [
        *(f"(no tree: {recipe.name})" for recipe in learners.TEACHERS),
        *(recipe.name for recipe in recipes for _ in range(2)),
    ]
    scores = [[float(cell.split(" · ")[0]) for cell in row[3:5]] for row in rows]
    assert all(1 <= mean < 5 for row in scores for mean in row)
