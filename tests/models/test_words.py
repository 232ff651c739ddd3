"""What advice says of itself claims no more than is known, and two numbers that differ never read the same."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.advice.pareto import Bounds, weigh
from conv_advisor.models.ranking.candidates import Choice, Source
from conv_advisor.models.ranking.leaf import too_seldom
from conv_advisor.models.ranking.trust import Trust
from conv_advisor.models.ranking.words import above, chance, trusted
from tests.models import hand_made
from tests.models.hand_made import CATALOGUE, SMALL
from tests.models.test_advisor import measured

BEST = Choice("cuda.plain", 1.0, Source.PREDICTED, 1.0, 0.1, True, 0, True)
SURE = Trust(0.935, 0.05, True, False)


@pytest.mark.parametrize(
    ("probability", "said"),
    [
        *((0.0, "under 1 %"), (0.0099, "under 1 %"), (0.29, "29 %"), (0.4999, "49 %"), (0.5, "50 %")),
        *((0.8999, "89 %"), (0.985, "98 %"), (0.9949, "at least 99 %"), (1.0, "at least 99 %")),
    ],
)
def test_a_chance_is_rounded_down_and_never_certain(probability: float, said: str) -> None:
    assert chance(probability) == said


def test_what_is_out_for_being_unlikely_is_never_said_to_be_as_likely_as_not() -> None:
    assert too_seldom(0.4999) == "predicted as not supported: it is 49 % likely to run"


@pytest.mark.parametrize(
    ("value", "limit", "said"),
    [(8.0, 2.5, ("8", "2.5")), (1.2004, 1.2, ("1.2004", "1.2")), (1.0000001e-6, 1e-6, ("1.0000001e-06", "1e-06"))],
)
def test_what_is_above_a_limit_reads_so(value: float, limit: float, said: tuple[str, str]) -> None:
    assert above(value, limit) == said


def test_any_two_floats_are_told_apart() -> None:
    limit = 0.1
    shown, allowed = above(0.1 + 2e-17, limit)
    assert float(shown) > float(allowed)


def test_a_limit_of_slowdown_and_what_is_above_it_differ() -> None:
    advisor = Advisor(hand_made.model(), variants=CATALOGUE)
    known = measured(plain=1.0, big=1.2004)
    advice = advisor.advise(SMALL, measured=known)
    found = weigh(advisor, advice, measured=known, bounds=Bounds(max_slowdown=1.2))
    reasons = {exclusion.variant: exclusion.reason for exclusion in found.excluded}
    assert reasons["cuda.big"] == "takes 1.2004 times the fastest's time, above the limit of 1.2"


def test_each_state_of_trust_has_its_sentence() -> None:
    ranking = (BEST, BEST)
    sure = "cuda.plain is 93 % likely to be within 5 % of the fastest"
    assert trusted(SURE, ranking) == f"{sure}."
    rough = replace(SURE, is_calibrated=False)
    assert trusted(rough, ranking) == f"{sure}, judging by the spread of predicted times."
    partial = replace(SURE, n_unknown=2)
    assert trusted(partial, ranking) == (
        f"{sure} that is known. Nothing is known about 2 more variants that may run: measure the layer to know."
    )
    mixed = Trust(None, 0.05, False, False, reason="batch is 9; trained on 1 alone")
    known = replace(BEST, source=Source.MEASURED)
    assert trusted(mixed, (known, known, BEST)) == (
        "cuda.plain was measured, but 1 other time is a guess: batch is 9; trained on 1 alone."
        " Measure the layer to know."
    )
    assert "but 2 other times are guesses:" in trusted(mixed, (known, BEST, known, BEST))
    guess = replace(mixed, abstains=True)
    assert trusted(guess, ranking).startswith("The model abstains, and the ranking is a guess: batch is 9;")


def test_without_a_model_what_was_not_measured_is_unknown_and_may_be_faster() -> None:
    advisor = Advisor(None, hand_made.DEVICE, variants=CATALOGUE)
    one = advisor.advise(SMALL, measured=measured(plain=1.0))
    assert one.trust.n_unknown == len(CATALOGUE) - 1 == len(one.excluded)
    assert "of the fastest that is known. Nothing is known about 4 more variants that may run" in one.trusted
    every = advisor.advise(SMALL, measured=measured(plain=1.0, big=2.0, only_3x3=2.0, loose=2.0, shy=None))
    assert every.trust.n_unknown == 0
    assert every.trusted == "cuda.plain is at least 99 % likely to be within 5 % of the fastest."
