"""The Pareto front by hand, its filters, and what the other layout would give."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from conv_advisor.data.errors import NoAdvice
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.data.summary import Summary
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.models.advice.advice import Exclusion
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.advice.pareto import (
    SAME_ERROR,
    Bounds,
    Point,
    counted_ms,
    dominates,
    in_other_layout,
    other_layout,
    weigh,
)
from conv_advisor.models.ranking.accuracy import ErrorSource
from conv_advisor.models.ranking.candidates import Source
from conv_advisor.models.tree.features import FEATURES
from conv_advisor.models.tree.file import with_card
from tests.models import hand_made
from tests.models.hand_made import CATALOGUE, LEAST_MS, MIDDLE, POINTWISE, SMALL
from tests.models.test_advisor import measured, summary


def beats(one: Point, other: Point, *more: Point) -> bool:
    """Whether one dominates another, where these are all that there is."""
    named = [replace(each, variant=str(place)) for place, each in enumerate((one, other, *more))]
    return dominates(named[0], named[1], counted_ms(named))


POINT = Point("one", 1.0, Source.MEASURED, 1.0, 0.001, 1000, 1e-6, ErrorSource.MEASURED, True)


@pytest.fixture
def advisor() -> Advisor:
    return Advisor(hand_made.model(), variants=CATALOGUE)


@pytest.mark.parametrize(
    "better",
    [{"time_ms": 0.9}, {"workspace_bytes": 999}, {"max_error": 0.49e-6}],
    ids=["faster", "smaller", "more accurate"],
)
def test_one_that_is_better_in_one_thing_and_as_good_in_the_others_beats(better: dict) -> None:
    assert beats(replace(POINT, **better), POINT)
    assert not beats(POINT, replace(POINT, **better))
    for cost in ({"time_ms": 1.2}, {"workspace_bytes": 2000}, {"max_error": 3e-6}, {"is_deterministic": False}):
        if cost.keys() != better.keys():
            assert not beats(replace(POINT, **better, **cost), POINT)


def test_determinism_counts_as_one_thing() -> None:
    assert beats(POINT, replace(POINT, is_deterministic=False))
    assert not beats(replace(POINT, is_deterministic=False), POINT)


def test_what_cannot_be_told_apart_is_no_advantage() -> None:
    tied = replace(POINT, time_ms=1.002, max_error=SAME_ERROR * 0.99e-6)
    assert not beats(POINT, tied)
    assert not beats(tied, POINT)
    assert beats(replace(tied, workspace_bytes=0), POINT), "level in time and error, and smaller"
    assert beats(POINT, replace(POINT, time_ms=1.003)), "beyond two standard errors of the difference"
    guess = replace(POINT, source=Source.PREDICTED, uncertainty=0.1)
    assert not beats(guess, replace(guess, time_ms=1.1))
    assert beats(guess, replace(guess, time_ms=1.11))
    assert not beats(POINT, replace(guess, time_ms=1.1))


def test_a_single_launch_far_behind_is_behind() -> None:
    assert beats(POINT, replace(POINT, time_ms=5.0, uncertainty=1.0))


def test_an_unknown_workspace_is_no_small_one() -> None:
    unknown = replace(POINT, workspace_bytes=None)
    assert beats(POINT, unknown)
    assert not beats(unknown, POINT)


points = st.builds(
    Point,
    variant=st.just("any"),
    time_ms=st.floats(0.1, 10),
    source=st.sampled_from(Source),
    slowdown=st.just(1.0),
    uncertainty=st.floats(0, 0.3),
    workspace_bytes=st.none() | st.integers(0, 4),
    max_error=st.floats(1e-7, 1e-5),
    error_source=st.just(ErrorSource.MEASURED),
    is_deterministic=st.booleans(),
)


@given(st.lists(points, min_size=1, max_size=8))
def test_there_is_a_front_whatever_the_points(some: list[Point]) -> None:
    named = [replace(each, variant=str(place)) for place, each in enumerate(some)]
    time_ms = counted_ms(named)
    assert not any(dominates(one, one, time_ms) for one in named)
    assert not any(
        dominates(one, other, time_ms) and dominates(other, one, time_ms) for one in named for other in named
    )
    assert any(not any(dominates(other, one, time_ms) for other in named) for one in named)


summaries = st.builds(
    summary,
    variant=st.just(""),
    time_ms=st.none() | st.sampled_from([0.5, 0.999, 1.0, 1.001, 1.002, 1.01, 2.0]),
    noise=st.sampled_from([0.0, 0.0005, 0.001, 0.02, 1.0]),
    workspace_bytes=st.none() | st.integers(0, 3),
    max_error=st.none() | st.sampled_from([1e-7, 1.5e-7, 4e-7]),
    outcome=st.sampled_from([Outcome.MEASURED, Outcome.PRUNED, Outcome.UNSTEADY, Outcome.NOT_SUPPORTED]),
)
slowdowns = st.sampled_from([1.0, 1.002, 1.004, 1.05, 1.2, 2.0])


@given(
    known=st.dictionaries(st.sampled_from(hand_made.VARIANTS), summaries),
    logs=st.lists(slowdowns.map(math.log), min_size=5, max_size=5),
    errors=st.lists(st.sampled_from([1e-7, 1.5e-7, 4e-7]), min_size=5, max_size=5),
    problem=st.sampled_from([SMALL, MIDDLE, POINTWISE]),
    limit=st.sampled_from([0, 2, 2**20, 2**30]),
    is_deterministic=st.booleans(),
    bounds=st.builds(Bounds, st.none() | st.just(2e-7), st.none() | st.sampled_from([1.0, 1.1, 3.0])),
)
def test_the_advised_variant_is_on_its_own_front_and_has_the_least_workspace_of_those_tied_with_it(
    known: dict[str, Summary],
    logs: list[float],
    errors: list[float],
    problem: ConvProblem,
    limit: int,
    is_deterministic: bool,
    bounds: Bounds,
) -> None:
    arrays = {"log_slowdown": np.tile(np.array(logs, np.float32), (3, 1))}
    laws = {name: {"float32": [math.log2(error), 0.0]} for name, error in zip(hand_made.VARIANTS, errors, strict=True)}
    advisor = Advisor(with_card(hand_made.model(**arrays), errors=laws), variants=CATALOGUE)
    limits: dict[str, Any] = {"max_workspace_bytes": limit, "is_deterministic": is_deterministic}
    with suppress(NoAdvice):
        advice = advisor.advise(problem, measured=known, **limits)
        tied = [choice for choice in advice.ranking if choice.is_tied and choice.source is advice.best.source]
        workspaces = [math.inf if each.workspace_bytes is None else each.workspace_bytes for each in tied]
        assert workspaces[0] == min(workspaces)
        assert advice.variant in [point.variant for point in weigh(advisor, advice, measured=known).front]
        points = {point.variant: point for point in weigh(advisor, advice, measured=known, bounds=bounds).points}
        assert advice.variant not in points or points[advice.variant].is_on_front


def test_every_variant_of_the_ranking_is_weighed_and_the_front_is_that_by_hand(advisor: Advisor) -> None:
    # big: 1 ms, 1 MiB; only_3x3: 1.5 ms, twice the problem; plain: 2 ms, none; loose: not deterministic; shy: 8 ms
    weighed = weigh(advisor, advisor.advise(SMALL))
    assert [point.variant for point in weighed.points] == [choice.variant for choice in weighed.advice.ranking]
    assert 2 * SMALL.bytes < 2**20
    assert [point.variant for point in weighed.front] == ["cuda.big", "cuda.only_3x3", "cuda.plain"]
    assert {point.max_error for point in weighed.points} == {tolerance(SMALL)}
    assert {point.error_source for point in weighed.points} == {ErrorSource.ALLOWED}


def test_a_measured_error_counts_before_a_law_and_a_law_before_what_is_allowed() -> None:
    laws = {name: {"float32": [math.log2(1e-8), 0.5]} for name in ("cuda.plain", "cuda.loose")}
    advisor = Advisor(with_card(hand_made.model(), errors=laws), variants=CATALOGUE)
    known = {"cuda.plain": summary("cuda.plain", 1.0, max_error=3e-7)}
    weighed = weigh(advisor, advisor.advise(SMALL, measured=known), measured=known)
    errors = {point.variant: (point.max_error, point.error_source) for point in weighed.points}
    assert errors["cuda.plain"] == (3e-7, ErrorSource.MEASURED)
    assert errors["cuda.loose"] == (pytest.approx(1e-8 * SMALL.gemm_k**0.5), ErrorSource.PREDICTED)
    assert errors["cuda.shy"] == (tolerance(SMALL), ErrorSource.ALLOWED)


def test_what_may_err_more_than_the_limit_is_out_and_says_so(advisor: Advisor) -> None:
    known = measured(plain=1.0, big=2.0) | {"cuda.big": summary("cuda.big", 2.0, max_error=5e-6)}
    advice = advisor.advise(SMALL, measured=known)
    weighed = weigh(advisor, advice, measured=known, bounds=Bounds(max_error=2e-6))
    assert [point.variant for point in weighed.points] == ["cuda.plain"]
    reasons = {exclusion.variant: exclusion.reason for exclusion in weighed.excluded}
    assert reasons["cuda.big"] == "error is up to 5e-06 (measured), above the limit of 2e-06"
    assert "(allowed)" in reasons["cuda.loose"]
    with pytest.raises(NoAdvice, match="error of at most 1e-07"):
        weigh(advisor, advice, measured=known, bounds=Bounds(max_error=1e-7))


def test_what_is_slower_than_the_limit_is_out_and_says_so(advisor: Advisor) -> None:
    advice = advisor.advise(SMALL)
    weighed = weigh(advisor, advice, bounds=Bounds(max_slowdown=2.5))
    assert [point.variant for point in weighed.points] == ["cuda.big", "cuda.only_3x3", "cuda.plain"]
    assert weighed.excluded[-1] == Exclusion("cuda.shy", "takes 8 times the fastest's time, above the limit of 2.5")
    assert [point.variant for point in weigh(advisor, advice, bounds=Bounds(max_slowdown=1.0)).points] == ["cuda.big"]


def test_slowdown_is_limited_against_the_fastest_that_is_accurate_enough(advisor: Advisor) -> None:
    known = measured(plain=1.0, big=2.0, shy=5.0) | {"cuda.plain": summary("cuda.plain", 1.0, max_error=5e-6)}
    weighed = weigh(advisor, advisor.advise(SMALL, measured=known), measured=known, bounds=Bounds(2e-6, 2.0))
    assert [point.variant for point in weighed.points] == ["cuda.big"]
    assert weighed.points[0].slowdown == 1.0


def test_limits_of_the_advice_hold_for_the_front(advisor: Advisor) -> None:
    weighed = weigh(advisor, advisor.advise(SMALL, max_workspace_bytes=0, is_deterministic=True))
    assert [point.variant for point in weighed.points] == ["cuda.plain", "cuda.shy"]
    assert [point.variant for point in weighed.front] == ["cuda.plain"]
    assert weighed.points[1].slowdown == pytest.approx(4.0)


def layouts(nhwc_best: float) -> Advisor:
    """The hand-made tree, split by layout: NHWC takes this share of the time of NCHW."""
    arrays = hand_made.arrays()
    split = {
        "feature": np.array([FEATURES.index("is_nhwc"), -1, -1], np.int32),
        "threshold": np.array([0.5, 0, 0]),
        "left": np.array([1, -1, -1], np.int32),
        "right": np.array([2, -1, -1], np.int32),
        "place": np.array([-1, 0, 1], np.int32),
    }
    leaves = {name: values[[0, 0]] for name, values in arrays.items() if name not in split}
    leaves["log_best"] = leaves["log_best"] + np.log([1, nhwc_best]).astype(np.float32)
    # a roofline of 1e15 flops and 1e5 bytes a ms
    leaves["roofline"] = np.tile(np.array([1e15, 1e5, LEAST_MS], np.float32), (2, 1))
    return Advisor(hand_made.model(**split, **leaves), variants=CATALOGUE)


LIMITS = {"max_workspace_bytes": 2**30, "is_deterministic": False}


def test_the_other_layout_is_compared_with_and_without_converting() -> None:
    advisor = layouts(0.5)
    advice = advisor.advise(SMALL)
    other = other_layout(advisor, advice, **LIMITS)
    assert (other.layout, other.variant, other.source) == (Layout.NHWC, "cuda.big", Source.PREDICTED)
    assert other.speedup == pytest.approx(2.0)
    expected = sum(max(2 * moved / 1e5, LEAST_MS) for moved in (SMALL.x_bytes, SMALL.y_bytes))
    assert other.least_conversion_ms == pytest.approx(expected)
    assert other.speedup_converted == pytest.approx(advice.best.time_ms / (other.time_ms + expected))
    assert in_other_layout(in_other_layout(SMALL)) == SMALL
    back = other_layout(advisor, advisor.advise(in_other_layout(SMALL)), **LIMITS)
    assert (back.layout, back.speedup) == (Layout.NCHW, pytest.approx(0.5))


def test_the_other_layout_answers_from_what_was_measured_there(advisor: Advisor) -> None:
    known = measured(plain=0.1, big=0.2, only_3x3=0.2, loose=0.2, shy=0.2)
    other = other_layout(advisor, advisor.advise(SMALL), measured=known, **LIMITS)
    assert (other.variant, other.time_ms, other.source) == ("cuda.plain", 0.1, Source.MEASURED)


def test_nothing_is_said_of_a_layout_of_which_nothing_is_known() -> None:
    advisor = Advisor(None, hand_made.DEVICE, variants=CATALOGUE)
    advice = advisor.advise(SMALL, measured=measured(plain=1.0))
    assert other_layout(advisor, advice, **LIMITS) is None
    there = other_layout(advisor, advice, measured=measured(plain=0.5), **LIMITS)
    assert (there.speedup, there.least_conversion_ms, there.speedup_converted) == (2.0, None, None)


def test_an_advice_with_other_limits_is_another_question(advisor: Advisor) -> None:
    advice = advisor.advise(SMALL)
    assert other_layout(advisor, advice, max_workspace_bytes=0, is_deterministic=True).variant == "cuda.plain"
