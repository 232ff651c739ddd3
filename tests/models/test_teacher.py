"""What the ensemble says of layers never measured: costs from times, and who counts."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from threadpoolctl import threadpool_limits

from conv_advisor.models.costs import Costs, from_table
from conv_advisor.models.training import teacher
from conv_advisor.models.training.teacher import (
    CAP,
    Teacher,
    _cost_by_time,
    _is_near,
    _Randomised,
    _untried_as_usual,
    orders_of,
    saturate,
    unseen_error,
)
from conv_advisor.models.training.train import training_set
from conv_advisor.models.tree.features import feature_matrix
from tests.models import synthetic
from tests.models.conftest import QUICK


@pytest.fixture(scope="module")
def costs(table: pa.Table) -> Costs:
    return training_set(from_table(table, synthetic.DEVICE.id))


def test_costs_follow_from_times_of_what_is_likely_to_run() -> None:
    cost = _cost_by_time(np.array([[0.0, np.log(2.0), np.inf], [1.0, 1.0 - np.log(4.0), 1.0], [np.inf] * 3]))
    assert cost[0] == pytest.approx([0.0, saturate(np.log(2.0)), 1.0])
    assert cost[1] == pytest.approx([saturate(np.log(4.0)), 0.0, saturate(np.log(4.0))])
    assert cost[2] == pytest.approx([1.0, 1.0, 1.0])


def test_boosted_trees_are_asked_of_what_may_be_the_best_alone() -> None:
    cost = np.array([[0.1, 0.69, 0.71, 0.0], [0.9, 0.8, 0.2, 0.95], [0.0, 0.0, 0.0, 0.0]])
    is_likely = np.array([[True, True, True, False], [True, True, False, True], [False] * 4])
    near = _is_near(cost, is_likely)
    assert near.tolist() == [[True, True, False, False], [False, True, False, False], [False] * 4]


@pytest.mark.parametrize("randomised_share", [0.0, 1.0])
def test_what_was_measured_stays_and_either_half_ranks_unseen_layers_better_than_by_chance(
    randomised_share: float, costs: Costs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher, "_RANDOMISED_SHARE", randomised_share)
    rows = np.arange(len(costs.problems))
    known, unseen = costs.take(rows[rows % 3 > 0]), costs.take(rows[rows % 3 == 0])
    x, wanted = feature_matrix(known.problems), feature_matrix(unseen.problems)
    with threadpool_limits(1):
        taught = Teacher(known, x, np.log(known.best_ms), 0, QUICK)
        labelled = taught.label(wanted)
    lesson = taught.measured.then(labelled)
    measured = known.log_slowdown(CAP)[:, lesson.contenders]
    is_known = np.isfinite(measured)
    assert lesson.cost.shape == (len(costs.problems), len(lesson.contenders))
    assert lesson.cost[: len(known.problems)][is_known] == pytest.approx(saturate(measured[is_known]), abs=1e-6)
    assert lesson.log_best[: len(known.problems)] == pytest.approx(np.zeros(len(known.problems)))
    assert np.isfinite(lesson.cost).all()
    assert np.isfinite(lesson.log_slowdown).all()
    orders = orders_of(labelled, costs.variants)
    column = {name: place for place, name in enumerate(costs.variants)}
    slowdown = np.nan_to_num(unseen.log_slowdown(CAP), nan=CAP)
    chosen = np.array([slowdown[row, column[order[0]]] for row, order in enumerate(orders)])
    assert chosen.mean() < 0.5 * slowdown[:, lesson.contenders].mean()


def test_what_was_left_out_counts_as_usual_and_what_was_tried_as_it_was(costs: Costs) -> None:
    is_known, time_ms = costs.is_known.copy(), costs.time_ms.copy()
    kind = (costs.problems[0].dtype, costs.problems[0].layout)
    kinds = np.array([(problem.dtype, problem.layout) == kind for problem in costs.problems])
    column = int(np.isfinite(costs.time_ms[kinds]).sum(axis=0).argmax())
    row = int(np.flatnonzero(kinds & np.isfinite(costs.time_ms[:, column]))[0])
    is_known[row, column], time_ms[row, column] = False, np.nan
    left_out = replace(costs, is_known=is_known, time_ms=time_ms)
    values = left_out.log_slowdown(CAP)
    filled = _untried_as_usual(left_out, values)
    others = kinds & np.isfinite(values[:, column])
    assert others.any()
    assert filled[row, column] == pytest.approx(values[others, column].mean())
    assert np.array_equal(filled[is_known], values[is_known], equal_nan=True)


def test_without_anything_to_decide_on_the_rest_is_learned_all_the_same() -> None:
    x = np.arange(8, dtype=np.float32)[:, None]
    slowdown = np.where(x < 4, 1.0, 2.0)
    cost, learned = _Randomised(x, [np.zeros((8, 1)), slowdown], seed=0, count=3).predict(x)
    assert np.array_equal(cost, np.zeros((8, 1)))
    assert learned == pytest.approx(slowdown)


def test_only_the_first_targets_decide_where_the_rest_is_alike() -> None:
    rng = np.random.default_rng(0)
    x, wanted = rng.random((40, 3)).astype(np.float32), rng.random((9, 3)).astype(np.float32)
    cost, loud = (x[:, :1] > 0.5).astype(float), 1e3 * rng.random((40, 1))
    alone, beside = (_Randomised(x, targets, 0, 3).predict(wanted)[0] for targets in ([cost], [cost, loud]))
    assert np.array_equal(alone, beside)
    assert 0 < alone.mean() < 1


def test_a_variant_that_half_of_the_sweeps_left_out_is_believed_to_run(costs: Costs) -> None:
    runs = np.isfinite(costs.time_ms)
    column = int(runs.sum(axis=0).argmax())
    known = costs.take(np.flatnonzero(runs[:, column]))
    is_known, time_ms = known.is_known.copy(), known.time_ms.copy()
    is_left_out = np.random.default_rng(0).random(len(is_known)) < 0.5
    is_known[is_left_out, column], time_ms[is_left_out, column] = False, np.nan
    left_out = replace(known, is_known=is_known, time_ms=time_ms)
    x = feature_matrix(known.problems)
    usable = np.isfinite(np.where(left_out.is_pruned, np.nan, left_out.time_ms)).any(axis=1)
    assert usable.all()
    with threadpool_limits(1):
        taught = Teacher(left_out, x, np.zeros(len(x)), 0, QUICK)
        lesson = taught.measured.then(taught.label(x))
    assert lesson.support[:, column] == pytest.approx(np.ones(2 * len(x)))


def test_rows_that_nothing_tells_apart_share_a_leaf_and_its_mean() -> None:
    x = np.array([[0.0], [1.0], [1.0], [2.0]], np.float32)
    cost, beside = np.array([[0.0], [1.0], [1.0], [0.5]]), np.array([[3.0], [1.0], [4.0], [7.0]])
    assert _Randomised(x, [cost, beside], 0, 5).predict(x)[1].tolist() == [[3.0], [2.5], [2.5], [7.0]]


def test_problems_labelled_together_are_labelled_as_alone(costs: Costs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher, "_BLOCK", 7)
    x = feature_matrix(costs.problems)
    with threadpool_limits(1):
        taught = Teacher(costs, x, np.log(costs.best_ms), 0, QUICK)
        together, one, rest = (taught.label(rows) for rows in (x[:20], x[:3], x[3:20]))
    for field in dataclasses.fields(together):
        assert np.array_equal(getattr(together, field.name), getattr(one.then(rest), field.name)), field.name
    assert taught.label(x[:0]).cost.shape == (0, len(together.contenders))


def test_the_error_on_unseen_layers_is_that_of_one_part_of_them(costs: Costs) -> None:
    with threadpool_limits(1):
        off = unseen_error(costs, feature_matrix(costs.problems), 0, QUICK)
    judged = {problem.layer for problem, error in zip(costs.problems, off, strict=True) if np.isfinite(error)}
    others = {problem.layer for problem, error in zip(costs.problems, off, strict=True) if np.isnan(error)}
    assert judged
    assert not judged & others
    assert np.isfinite(off).mean() == pytest.approx(0.2, abs=0.05)
    assert 0.0 < np.nanmax(off) <= 1.0
