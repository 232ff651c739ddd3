"""Growing: splits, what leaves keep, and what a teacher and its trees look at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conv_advisor.data.problem import DType, Layout
from conv_advisor.models.costs import Costs, from_table
from conv_advisor.models.training import grow
from conv_advisor.models.training.hints import HINTS
from conv_advisor.models.training.options import Options
from conv_advisor.models.training.teacher import Lesson, Teacher
from conv_advisor.models.training.train import fit_beside
from conv_advisor.models.tree.features import FEATURES, features
from conv_advisor.models.tree.file import TreeModel, walk
from tests.models import hand_made, synthetic


def test_leaves_are_split_further_for_the_time_alone() -> None:
    x = np.linspace(0, 1, 400, dtype=np.float32)[:, None]
    leaf = (x[:, 0] > 0.5).astype(int)
    nodes = {
        "feature": np.array([0, -1, -1], np.int32),
        "threshold": np.array([0.5, 0.0, 0.0]),
        "left": np.array([1, -1, -1], np.int32),
        "right": np.array([2, -1, -1], np.int32),
        "place": np.array([-1, 0, 1], np.int32),
    }
    log_best = np.where(x[:, 0] < 0.25, 1.0, 2.0)  # one step, in the first leaf
    grown, origin, moved = grow._split_for_time(nodes, leaf, x, log_best, np.ones(len(x)), 0, Options())
    assert origin.tolist() == [0, 0, 1]
    model = hand_made.walkable(grown)
    assert [model.arrays["next"][walk(model, row)] for row in x.tolist()] == moved.tolist()
    assert np.array_equal(origin[moved], leaf)
    assert {place: set(log_best[moved == place]) for place in range(3)} == {0: {1.0}, 1: {2.0}, 2: {2.0}}


def test_dtype_and_layout_are_told_apart_first(trained: TreeModel) -> None:
    feature = trained.arrays["feature"]
    assert FEATURES[feature[0]] == "dtype"
    assert [FEATURES[feature[child]] for child in (1, 2)] == ["is_nhwc", "is_nhwc"]
    base = synthetic.all_problems()[0]
    leaves = {
        walk(trained, features(replace(base, dtype=dtype, layout=layout)))
        for dtype in (DType.FLOAT32, DType.FLOAT16)
        for layout in Layout
    }
    assert len(leaves) == 4


def test_the_teacher_sees_hints_and_the_tree_features_alone(
    table: pa.Table, quick: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []

    class Watched(Teacher):
        def __init__(self, costs: Costs, x: np.ndarray, *rest: Any) -> None:
            seen.append(x.shape[1:])
            super().__init__(costs, x, *rest)

        def label(self, x: np.ndarray) -> Lesson:
            seen.append(x.shape[1:])
            return super().label(x)

    monkeypatch.setattr(grow, "Teacher", Watched)
    costs = from_table(table, synthetic.DEVICE.id)
    model, _ = fit_beside(costs, synthetic.DEVICE, costs.problems[:3], options=quick)
    assert len(seen) > 2
    assert set(seen) == {(len(FEATURES) + len(HINTS),)}
    assert model.arrays["feature"].max() < len(FEATURES)
