"""The benchmark of predictions: what it asks, and that it says whether what is wanted is reached."""

from __future__ import annotations

import pytest

from benchmarks import prediction
from conv_advisor.data.networks import held_out_layers
from conv_advisor.data.problem import DType, Layout
from conv_advisor.data.table import is_sound, table
from conv_advisor.models.advice.advisor import Advisor
from tests.models import hand_made


def test_layers_are_those_that_teach_no_tree_and_none_comes_twice() -> None:
    layers = held_out_layers()
    rows = prediction._never_trained(2 * len(layers) + 1)
    assert len(set(rows)) == len(rows) == 2 * len(layers) + 1
    assert [row[0] for row in (rows[0], rows[len(layers)], rows[-1])] == [1, 2, 3]
    assert is_sound(table(prediction._never_trained(prediction.LAYERS))).all()


@pytest.mark.parametrize(("most", "verdict"), [(1e6, "reached"), (1e-6, "missed")])
def test_every_dtype_and_layout_has_its_verdicts(monkeypatch: pytest.MonkeyPatch, most: float, verdict: str) -> None:
    monkeypatch.setattr(prediction, "MOST_US", most)
    monkeypatch.setattr(prediction, "MOST_S", most)
    found = prediction.verdict_table(Advisor(hand_made.model()), 50)
    pairs, *_, last = ([*column.cells] for column in found.columns)
    assert pairs == [f"{dtype} {layout}" for dtype in DType for layout in Layout]
    assert [*found.columns[2].cells] == last == [verdict] * 8
