"""An upgrade report on two small data sets, worked by hand."""

from __future__ import annotations

import json
import math

import pytest

from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.costs import Costs, from_table
from conv_advisor.models.upgrades.compare import BEST, Shift, compare
from tests.data.arrow import measurements_to_table
from tests.models import synthetic

KEYS = ["7-1-1-8-8", "7-1-1-8-9", "7-1-1-9-9"]
Times = dict[str, dict[str, float | None]]
BEFORE: Times = {KEYS[0]: {"a": 1.0, "b": 2.0}, KEYS[1]: {"a": 3.0, "b": 1.0}, KEYS[2]: {"a": 1.0, "b": None}}
AFTER: Times = {KEYS[0]: {"a": 1.5, "b": 1.2}, KEYS[1]: {"a": 2.9, "b": 1.0}, KEYS[2]: {"a": None, "b": 4.0}}


def measured(times: Times, spread: float = 0.001) -> list[Measurement]:
    """A sweep: None is refused."""
    return [
        Measurement(
            ConvProblem.parse(layer),
            variant,
            synthetic.DEVICE,
            Outcome.MEASURED if time_ms else Outcome.NOT_SUPPORTED,
            samples_ms=(time_ms * (1 - spread), time_ms, time_ms * (1 + spread)) if time_ms else (),
        )
        for layer, of in times.items()
        for variant, time_ms in of.items()
    ]


def costs(times: Times, spread: float = 0.001) -> Costs:
    """What a sweep would know."""
    return from_table(measurements_to_table(measured(times, spread)), synthetic.DEVICE.id)


def test_regressions_and_gains_by_variant_and_of_the_best() -> None:
    found = compare(costs(BEFORE), costs(AFTER))
    assert (found.n_problems, found.n_only_before, found.n_only_after) == (3, 0, 0)
    best = found.best
    assert best.name == BEST
    assert (best.n_problems, best.n_regressed, best.n_improved) == (3, 2, 0)
    key = ConvProblem.parse(KEYS[2]).key
    assert best.regressed[0] == Shift(key, "a", "b", pytest.approx(1.0), pytest.approx(4.0))
    assert best.regressed[1].ratio == pytest.approx(1.2)
    assert best.geometric_mean == pytest.approx((1.2 * 1.0 * 4.0) ** (1 / 3))
    a, b = found.variants
    assert (a.name, a.n_problems, a.n_regressed, a.n_improved, a.n_lost, a.n_gained) == ("a", 2, 1, 1, 1, 0)
    assert (b.name, b.n_problems, b.n_regressed, b.n_improved, b.n_lost, b.n_gained) == ("b", 2, 0, 1, 0, 1)
    assert a.improved[0].ratio == pytest.approx(2.9 / 3)


def test_a_change_within_the_noise_is_none() -> None:
    rows = costs(BEFORE, spread=0.018), costs(AFTER, spread=0.018)
    assert [line.n_improved for line in compare(*rows).variants] == [0, 1]  # 3.3 % is noise here, 40 % is not


def test_the_same_data_twice_show_nothing() -> None:
    found = compare(costs(BEFORE), costs(BEFORE))
    assert (found.best.geometric_mean, found.best.regressed, found.best.improved) == (1, (), ())
    assert all(line.n_regressed == line.n_improved == line.n_lost == line.n_gained == 0 for line in found.variants)


def test_what_only_one_of_them_has_is_counted_and_left_out() -> None:
    found = compare(costs(BEFORE), costs({KEYS[0]: {"a": 1.0, "b": 2.0, "c": 0.5}, "9-1-1-8-8": {"a": 1.0, "b": 1.0}}))
    assert (found.n_problems, found.n_only_before, found.n_only_after) == (1, 2, 1)
    assert [line.name for line in found.variants] == ["a", "b"]
    assert found.best.improved[0].after == "c"


def test_nothing_in_common_is_an_empty_report_that_is_json() -> None:
    found = compare(costs({KEYS[0]: {"a": 1.0, "b": 2.0}}), costs({KEYS[1]: {"a": 1.0, "b": 1.0}}))
    assert (found.n_problems, found.variants) == (0, ())
    assert math.isnan(found.best.geometric_mean)
    assert json.loads(json.dumps(found.to_dict()))["best"]["geometric_mean"] is None


def test_a_line_holds_at_most_so_many() -> None:
    found = compare(costs(BEFORE), costs(AFTER), most=1)
    assert (found.best.n_regressed, len(found.best.regressed)) == (2, 1)
