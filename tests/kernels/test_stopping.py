"""The stop rule, worked by hand."""

from __future__ import annotations

import pytest

from conv_advisor.data.measurement import L2State, relative_noise
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.rotation import MAX_SETS, operand_sets
from conv_advisor.kernels.stopping import StopRule, launches_per_region

RULE = StopRule(min_samples=3, max_samples=6, max_noise=0.01, budget_ms=100.0)


@pytest.mark.parametrize(
    ("samples_ms", "spent_ms", "is_done", "why"),
    [
        ([], 0.0, False, "no samples"),
        ([1.0], 500.0, False, "one sample says nothing of its noise, whatever was spent"),
        ([1.0, 1.0], 2.0, False, "below the least number"),
        ([1.0, 1.2], 100.0, True, "below the least number, but the budget is spent"),
        ([1.0, 1.0, 1.0], 3.0, True, "no noise"),
        ([1.0, 1.2, 0.8], 3.0, False, "noisy and cheap"),
        ([1.0, 1.2, 0.8], 100.0, True, "noisy, but the budget is spent"),
        ([1.0, 1.2, 0.8, 1.1, 0.9, 1.0], 6.0, True, "as many as allowed"),
    ],
)
def test_stops_when(samples_ms: list[float], spent_ms: float, is_done: bool, why: str) -> None:
    assert RULE.is_done(samples_ms, spent_ms) is is_done, why


@pytest.mark.parametrize(
    ("samples_ms", "region_ms", "count"),
    [([], 1.0, 3), ([], 40.0, 2), ([], 500.0, 1), ([1.0] * 5, 1.0, 1)],
)
def test_long_regions_are_queued_one_by_one(samples_ms: list[float], region_ms: float, count: int) -> None:
    assert RULE.next_samples(samples_ms, region_ms) == count


def test_noise_is_the_standard_error_of_the_median() -> None:
    # deviations from the median 10 are 1, 0, 1: their median is 1
    assert relative_noise([9.0, 10.0, 11.0]) == pytest.approx(1.2533 * 1.4826 / (10 * 3**0.5), rel=1e-4)


def test_one_sample_says_nothing_of_its_noise() -> None:
    assert relative_noise([3.0]) == 1.0


@pytest.mark.parametrize(
    ("launch_ms", "launches"), [(0.001, 200), (0.0013, 154), (0.2, 1), (5.0, 1), (0.0, 1024), (1e-9, 1024)]
)
def test_a_region_is_long_enough(launch_ms: float, launches: int) -> None:
    assert launches_per_region(launch_ms, 0.2, 1024) == launches


def test_a_warm_measurement_has_one_set_of_operands() -> None:
    assert operand_sets(ConvProblem.parse("14-1-3-256-128"), L2State.WARM, 60_000_000) == 1


def test_a_cold_measurement_exceeds_the_cache_twice() -> None:
    problem = ConvProblem.parse("14-1-3-256-128")
    assert operand_sets(problem, L2State.COLD, 60_000_000) * problem.bytes >= 120_000_000


@pytest.mark.parametrize(("layer", "sets"), [("1-1-1-1-1", MAX_SETS), ("224-256-3-64-64", 2)])
def test_a_cold_measurement_has_bounded_sets(layer: str, sets: int) -> None:
    assert operand_sets(ConvProblem.parse(layer), L2State.COLD, 60_000_000) == sets
