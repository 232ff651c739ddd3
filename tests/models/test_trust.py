"""Confidence: what it is by hand, that it comes true, and that there is none outside the domain."""

from __future__ import annotations

from dataclasses import replace as changed
from math import log

import numpy as np
import pytest
from msgspec.structs import replace

from conv_advisor.data.measurement import Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import from_table
from conv_advisor.models.evaluation import confidence
from conv_advisor.models.evaluation.confidence import Outcomes, calibrate, calibration, calibration_error, outcomes
from conv_advisor.models.ranking.candidates import Choice, Source
from conv_advisor.models.ranking.trust import WITHIN, chance_of_best, trust_in
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.retraining.challenge import hold_out
from conv_advisor.models.training.train import fit
from conv_advisor.models.tree.arrays import DOMAIN
from conv_advisor.models.tree.domain import learn_domain
from conv_advisor.models.tree.file import read, with_card
from tests.models import hand_made, synthetic
from tests.models.hand_made import CATALOGUE, LARGE, SMALL
from tests.models.test_advisor import measured, summary

BEST = Choice("one", 1.0, Source.PREDICTED, 1.0, 0.1, True, 0, True)


def ranking(*slowdowns: float, uncertainty: float = 0.1) -> list[Choice]:
    return [replace(BEST, time_ms=each, slowdown=each, uncertainty=uncertainty) for each in slowdowns]


def test_one_variant_alone_is_the_best_for_certain() -> None:
    assert chance_of_best(ranking(1.0)) == 1.0
    assert chance_of_best(ranking(1.0, 9.0, 20.0)) == 1.0


def test_the_chance_is_that_of_normal_errors() -> None:
    rng = np.random.default_rng(0)
    logs = log(1.1) + rng.normal(0, 0.1, (200_000, 1)) - rng.normal(0, 0.1, (200_000, 1))
    assert chance_of_best(ranking(1.0, 1.1)) == pytest.approx((logs > -log(1 + WITHIN)).mean(), abs=0.005)
    assert chance_of_best(ranking(1.0, 1.0 / (1 + WITHIN))) == pytest.approx(0.5)
    assert chance_of_best(ranking(1.0, 1.1, 1.1)) == pytest.approx(chance_of_best(ranking(1.0, 1.1)) ** 2)


def test_more_rivals_and_more_uncertainty_leave_less_of_it() -> None:
    chances = [chance_of_best(ranking(1.0, *[1.05] * count)) for count in range(4)]
    assert chances == sorted(chances, reverse=True)
    assert chance_of_best(ranking(1.0, 1.2, uncertainty=0.3)) < chance_of_best(ranking(1.0, 1.2, uncertainty=0.1))


def test_a_single_launch_far_behind_is_no_rival() -> None:
    assert chance_of_best([BEST, replace(BEST, time_ms=5.0, uncertainty=1.0)]) == 1.0


def test_every_advice_has_a_confidence() -> None:
    trust = Advisor(hand_made.model(), variants=CATALOGUE).advise(SMALL).trust
    assert 0 < trust.confidence <= 1
    assert not trust.is_calibrated
    assert (trust.abstains, trust.reason, trust.distance, trust.limit) == (False, None, None, None)
    level = Advisor(hand_made.model(), variants=CATALOGUE).advise(LARGE).trust
    assert level.confidence < trust.confidence, "there all are predicted level"


def test_what_is_measured_is_known_and_needs_no_calibration() -> None:
    advisor = Advisor(hand_made.model(), variants=CATALOGUE)
    known = measured(plain=1.0, big=2.0, only_3x3=2.0, loose=2.0, shy=2.0)
    trust = advisor.advise(SMALL, measured=known).trust
    assert (trust.confidence, trust.is_calibrated) == (1.0, True)
    pruned = known | {"cuda.big": summary("cuda.big", 9.0, outcome=Outcome.PRUNED, noise=1.0)}
    assert advisor.advise(SMALL, measured=pruned).trust.confidence == 1.0


def test_a_calibrated_card_says_what_came_true() -> None:
    table = {"raw": [0.2, 0.8], "observed": [0.6, 0.9]}
    model = with_card(hand_made.model(), confidence=table)
    problem = SMALL
    assert trust_in(model, problem, ranking(1.0, 1.0 / (1 + WITHIN))).confidence == pytest.approx(0.75)
    assert trust_in(model, problem, ranking(1.0)).confidence == pytest.approx(0.9)
    assert trust_in(model, problem, ranking(1.0)).is_calibrated


def test_a_measured_best_among_predicted_rivals_is_not_calibrated() -> None:
    model = with_card(hand_made.model(), confidence={"raw": [0.2, 0.8], "observed": [0.6, 0.9]})
    mixed = [replace(BEST, source=Source.MEASURED), *ranking(1.2)]
    trust = trust_in(model, SMALL, mixed)
    assert (trust.confidence, trust.is_calibrated) == (chance_of_best(mixed), False), (
        "no held-out layer told this apart"
    )
    assert trust_in(model, SMALL, mixed[::-1]).is_calibrated, "the best is predicted, and the table was used"
    assert trust_in(None, SMALL, mixed[:1]).is_calibrated


def in_domain_of(*layers: str) -> Advisor:
    sizes, card = learn_domain([ConvProblem.parse(layer) for layer in layers])
    return Advisor(with_card(hand_made.model(**{DOMAIN: sizes}), domain=card), variants=CATALOGUE)


def test_outside_its_domain_the_model_abstains_and_says_why() -> None:
    advisor = in_domain_of("7-1-3-64-32", "14-1-3-64-32")
    inside = advisor.advise(SMALL).trust
    assert (inside.abstains, inside.reason, inside.distance) == (False, None, 0.0)
    assert inside.confidence is not None
    advice = advisor.advise(LARGE)
    assert advice.trust.abstains
    assert advice.trust.confidence is None
    assert advice.trust.reason == "filters is 512; trained on 64 alone"
    assert advice.trust.distance > advice.trust.limit
    without = Advisor(hand_made.model(), variants=CATALOGUE).advise(LARGE)
    assert advice.ranking == without.ranking, "docs/decisions/0015"


def test_what_was_measured_outside_the_domain_is_known_all_the_same() -> None:
    advisor = in_domain_of("7-1-3-64-32")
    known = measured(plain=1.0, big=2.0, only_3x3=2.0, loose=2.0, shy=2.0)
    trust = advisor.advise(LARGE, measured=known).trust
    assert (trust.abstains, trust.confidence) == (False, 1.0)
    assert "filters is 512" in trust.reason
    part = advisor.advise(LARGE, measured=measured(plain=0.0001)).trust
    assert (part.abstains, part.confidence) == (False, None), "others may be faster, and nobody knows"
    assert not part.is_calibrated


def made_up(count: int, seed: int = 0) -> Outcomes:
    """Chances that come true as their square root."""
    rng = np.random.default_rng(seed)
    chances = rng.uniform(0, 1, count)
    return Outcomes(chances, rng.uniform(0, 1, count) < np.sqrt(chances), rng.integers(0, 2, count))


def test_calibration_finds_what_comes_true() -> None:
    table = calibration(made_up(20_000))
    assert np.interp([0.25, 0.5, 0.81], table["raw"], table["observed"]) == pytest.approx([0.5, 0.707, 0.9], abs=0.03)
    assert (np.diff(table["raw"]) > 0).all()
    assert (np.diff(table["observed"]) > 0).all()
    assert table["n_results"] == 20_000
    fresh = made_up(5_000, seed=1)
    assert calibration_error(fresh, table) < 0.03
    assert calibration_error(fresh, None) > 0.15


def test_bins_that_fall_are_pooled() -> None:
    found = made_up(1000)
    table = calibration(changed(found, is_right=found.chances < 0.5))
    assert table["observed"] == [pytest.approx(0.5, abs=0.03)], "all that falls is one pool"


def test_too_few_results_calibrate_nothing() -> None:
    assert calibration(made_up(150)) is None
    assert calibration_error(made_up(150), None) >= 0


@pytest.mark.parametrize("count", [220, 300, 2000])
def test_each_half_of_the_layers_is_judged_by_what_the_other_calibrates(monkeypatch, count) -> None:
    """Chances that come true twice as often as they say, of however few results a half may have."""
    results = made_up(count)
    biased = changed(results, chances=results.chances / 2, is_right=results.chances > 0.1)
    monkeypatch.setattr(confidence, "outcomes", lambda _advisor, _unseen: biased)
    table = calibrate(None, None)
    assert table["error"] < 0.4 * table["error_uncalibrated"]


def test_without_enough_of_one_half_no_error_is_said(monkeypatch) -> None:
    results = made_up(300)
    uneven = changed(results, half=(np.arange(300) < 20).astype(int))
    monkeypatch.setattr(confidence, "outcomes", lambda _advisor, _unseen: uneven)
    assert calibrate(None, None)["error"] is None


def test_confidences_of_a_trained_tree_come_true_on_layers_held_out(table, quick) -> None:
    known, unseen = hold_out(from_table(table, synthetic.DEVICE.id))
    model = fit(known, synthetic.DEVICE, options=quick)
    advisor = Advisor(model, variants=synthetic.CATALOGUE)
    found = outcomes(advisor, unseen)
    assert 0 < len(found.chances) <= len(unseen.problems)
    assert set(found.half.tolist()) <= {0, 1}
    sure, unsure = (found.is_right[mask].mean() for mask in (found.chances > 0.9, found.chances <= 0.9))
    assert sure > unsure, "advice that is sure is right more often"
    assert calibrate(advisor, unseen.take([0, 1])) is None


def test_the_shipped_tree_is_calibrated_on_held_out_layers() -> None:
    table = read(SHIPPED / "nvidia-h200").card["confidence"]
    assert table["error"] < 0.5 * table["error_uncalibrated"]
    assert table["n_results"] > 1000
    assert table["observed"][-1] > 0.94
    assert table["observed"][0] < 0.8
