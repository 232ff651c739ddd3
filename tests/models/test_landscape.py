"""Landscapes: cell by cell what the advisor would choose."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.advice.landscape import Axis, survey
from conv_advisor.models.registry.on_disk import Registry
from tests.models import hand_made

LAYER = ConvProblem.parse("14-1-3-256-128")


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Advisor:
    return Advisor(Registry(Path(tmp_path_factory.mktemp("home"))).active("nvidia-h200"))


def test_a_small_tree_divides_the_plane_where_its_thresholds_are() -> None:
    advisor = Advisor(hand_made.model(), variants=hand_made.CATALOGUE)
    landscape = survey(advisor, hand_made.SMALL, Axis.SIZE, Axis.FILTERS)
    for row in landscape.winners:
        for size, winner in zip(landscape.x_values, row, strict=True):
            assert winner is not None
            assert (landscape.variants[winner] == "cuda.big") == (size <= 16)
    assert {"cuda.big", "cuda.plain"} <= set(landscape.variants)


@pytest.mark.parametrize(("x", "y"), list(permutations(Axis, 2)))
def test_every_cell_is_what_the_advisor_chooses(shipped: Advisor, x: Axis, y: Axis) -> None:
    landscape = survey(shipped, LAYER, x, y)
    assert len(landscape.winners) == len(landscape.y_values)
    assert {len(row) for row in landscape.winners} == {len(landscape.x_values)}
    for down in range(0, len(landscape.y_values), 7):
        for across in range(0, len(landscape.x_values), 7):
            problem = y.put(x.put(LAYER, landscape.x_values[across]), landscape.y_values[down])
            winner = landscape.winners[down][across]
            assert winner is not None
            assert landscape.variants[winner] == shipped.choose(problem)


def test_the_layer_itself_is_on_the_grid(shipped: Advisor) -> None:
    odd = ConvProblem.parse("13-37-3-1000-3")
    landscape = survey(shipped, odd, Axis.FILTERS, Axis.BATCH)
    assert 1000 in landscape.x_values
    assert 37 in landscape.y_values
    assert list(landscape.x_values) == sorted(set(landscape.x_values))
    assert list(landscape.y_values) == sorted(set(landscape.y_values))


def test_winners_come_by_how_much_they_win(shipped: Advisor) -> None:
    landscape = survey(shipped, LAYER, Axis.SIZE, Axis.BATCH)
    flat = [winner for row in landscape.winners for winner in row if winner is not None]
    counts = [flat.count(place) for place in range(len(landscape.variants))]
    assert counts == sorted(counts, reverse=True)
    assert min(counts) > 0


def test_where_there_is_no_layer_or_nothing_runs_nobody_wins(shipped: Advisor) -> None:
    grouped = ConvProblem(n=1, c=96, h=14, w=14, k=96, r=3, s=3, pad_h=1, pad_w=1, groups=3)
    landscape = survey(shipped, grouped, Axis.FILTERS, Axis.DEPTH)
    for row in landscape.winners:
        for filters, winner in zip(landscape.x_values, row, strict=True):
            assert winner is None or filters % 3 == 0
    assert survey(shipped, LAYER, Axis.SIZE, Axis.BATCH, max_workspace_bytes=0).variants != ()
    huge = survey(shipped, ConvProblem.parse("224-1-3-2048-2048"), Axis.SIZE, Axis.BATCH)
    assert huge.winners[-1][-1] is None, "x would have more elements than can be indexed"


def test_limits_hold_in_every_cell(shipped: Advisor) -> None:
    free = survey(shipped, LAYER, Axis.SIZE, Axis.BATCH)
    tight = survey(shipped, LAYER, Axis.SIZE, Axis.BATCH, max_workspace_bytes=0)
    assert "cuda.winograd_nonfused_4x4_3x3" in free.variants
    assert "cuda.winograd_nonfused_4x4_3x3" not in tight.variants


def test_one_axis_alone_is_refused(shipped: Advisor) -> None:
    with pytest.raises(InvalidInput, match="another axis"):
        survey(shipped, LAYER, Axis.SIZE, Axis.SIZE)
