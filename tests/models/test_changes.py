"""What a retrained tree does otherwise: by hand."""

from __future__ import annotations

import json

import msgspec
import pytest

from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.evaluation.judging import Result
from conv_advisor.models.retraining.changes import MOST_SHOWN, Changes, changes_between


def result(size: int, variant: str, slowdown: float) -> Result:
    """A choice on a layer of this size."""
    return Result(ConvProblem.parse(f"{size}-1-1-8-8"), slowdown, False, False, False, variant)


def test_layers_that_got_better_and_worse_with_both_variants() -> None:
    before = [result(5, "a", 1.0), result(6, "a", 1.5), result(7, "a", 1.2), result(8, "a", 1.1), result(9, "a", 2.0)]
    after = [result(9, "b", 1.0), result(8, "b", 1.105), result(7, "b", 1.5), result(6, "b", 1.2), result(5, "a", 1.3)]
    found = changes_between(before, [*after, result(10, "c", 1.0)])
    assert (found.n_problems, found.n_other, found.n_better, found.n_worse) == (5, 4, 2, 1)
    assert [(each.problem.split("-")[0], each.ratio) for each in found.better] == [
        ("9", 0.5),
        ("6", pytest.approx(0.8)),
    ]
    assert [(each.before, each.after, each.slowdown_after) for each in found.worse] == [("a", "b", 1.5)]


def test_at_most_so_many_are_kept_and_all_are_counted() -> None:
    before = [result(size, "a", 2.0) for size in range(5, 35)]
    after = [result(size, "b", 1 + size / 100) for size in range(5, 35)]
    found = changes_between(before, after)
    assert (found.n_better, len(found.better), found.worse) == (30, MOST_SHOWN, ())
    assert found.better[0].problem.startswith("5-")


def test_they_survive_json() -> None:
    found = changes_between([result(5, "a", 1.0)], [result(5, "b", 1.5)])
    assert msgspec.convert(json.loads(json.dumps(found.to_dict())), Changes) == found
