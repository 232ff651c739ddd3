"""Predictions that cannot be told apart are level, and what they cost otherwise decides."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.ranking.ties import SHARE_OF_SPREAD, level, level_ms
from tests.models import hand_made
from tests.models.hand_made import CATALOGUE, SMALL

BAND = SHARE_OF_SPREAD * 0.1


def test_what_is_closer_than_the_band_is_put_level_with_the_fastest_of_its_group() -> None:
    assert level([0.0, 0.9 * BAND, 1.1 * BAND, 1.9 * BAND, 5.0], 0.1) == [0.0, 0.0, 1.1 * BAND, 1.1 * BAND, 5.0]
    lowest = 0.3 - 0.4 * BAND
    assert level([0.3, 0.3 + 0.5 * BAND, lowest], 0.1) == [lowest] * 3
    assert level([0.2, 0.1, 0.1000001], 0.0) == [0.2, 0.1, 0.1000001]


@given(st.lists(st.floats(0, 3), min_size=1, max_size=30), st.floats(0, 1, exclude_min=True))
def test_order_is_kept_and_nothing_moves_by_more_than_the_band(values: list[float], spread: float) -> None:
    levelled = level(values, spread)
    assert all(0 <= before - after <= SHARE_OF_SPREAD * spread for before, after in zip(values, levelled, strict=True))
    order = np.argsort(values, kind="stable")
    assert (np.diff(np.array(levelled)[order]) >= 0).all()
    assert level(levelled, spread) == levelled


def test_measured_times_closer_than_their_noise_count_as_the_fastest_of_them() -> None:
    times = [(1.002, 0.001), (1.0, 0.001), (1.004, 0.001), (0.9, None), (1.0, None)]
    assert level_ms(times) == [1.0, 1.0, 1.004, 0.9, 1.0]


def test_a_single_launch_is_level_with_nothing() -> None:
    assert level_ms([(1.0, 1.0), (1.1, 1.0), (1.2, 0.001), (1.2001, 0.001)]) == [1.0, 1.1, 1.2, 1.2]
    assert level_ms([(1.0, 0.001), (1.001, 1.0)]) == [1.0, 1.001]


@given(st.lists(st.tuples(st.floats(0.01, 10), st.none() | st.floats(0, 1)), min_size=1, max_size=20))
def test_counted_times_are_those_of_one_as_fast_and_keep_the_order(
    times: list[tuple[float, float | None]],
) -> None:
    counted_ms = level_ms(times)
    assert all(counted <= time_ms for counted, (time_ms, _) in zip(counted_ms, times, strict=True))
    assert set(counted_ms) <= {time_ms for time_ms, _ in times}
    assert min(counted_ms) == min(time_ms for time_ms, _ in times)
    for kind in (True, False):
        rows = sorted(
            (row, counted) for row, counted in zip(times, counted_ms, strict=True) if (row[1] is None) is kind
        )
        assert [counted for _, counted in rows] == sorted(counted for _, counted in rows)


def advisor(slowdowns: list[float]) -> Advisor:
    """The advisor of the hand-made tree, whose first leaf predicts these."""
    logs = hand_made.arrays()["log_slowdown"]
    logs[0] = np.log(slowdowns)
    return Advisor(hand_made.model(log_slowdown=logs), variants=CATALOGUE)


def test_of_near_ties_the_one_with_less_workspace_is_advised() -> None:
    # plain, big (1 MiB), only_3x3 (its workspace is predicted: twice the problem), loose (not deterministic), shy
    close = math.exp(0.8 * BAND)
    advice = advisor([close, 1.0, close, 4.0, 8.0]).advise(SMALL)
    assert [choice.variant for choice in advice.ranking[:3]] == ["cuda.plain", "cuda.only_3x3", "cuda.big"]
    assert advice.ranking[0].time_ms == advice.ranking[2].time_ms
    assert all(choice.is_tied for choice in advice.ranking[:3])


def test_what_is_told_apart_is_ranked_by_time() -> None:
    advice = advisor([math.exp(1.2 * BAND), 1.0, 4.0, 4.0, 8.0]).advise(SMALL)
    assert [choice.variant for choice in advice.ranking[:2]] == ["cuda.big", "cuda.plain"]
    assert not advice.ranking[1].is_tied, "though it is within the spread"


def test_of_near_ties_without_workspace_the_deterministic_one_is_advised() -> None:
    close = math.exp(0.8 * BAND)
    advice = advisor([close, 9.0, 9.0, 1.0, 8.0])
    assert [choice.variant for choice in advice.advise(SMALL).ranking[:2]] == ["cuda.plain", "cuda.loose"]
    assert advice.choose(SMALL) == "cuda.plain"
    assert next(advice.predict_order(SMALL)) == "cuda.plain"


@pytest.mark.parametrize("limit", [0, 2**20])
def test_what_is_masked_breaks_no_tie(limit: int) -> None:
    advice = advisor([math.exp(0.8 * BAND), 1.0, 9.0, 9.0, 9.0]).advise(SMALL, max_workspace_bytes=limit)
    assert advice.variant == "cuda.plain"
    assert ("cuda.big" in [choice.variant for choice in advice.ranking]) == (limit > 0)
