"""When measuring pays: of an advice that is not sure, but not of what was measured."""

from __future__ import annotations

from conv_advisor.data.gpus import gpus
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.advice.unsure import FIRST, SURE_ENOUGH, how_many, worth_measuring
from tests.models import hand_made
from tests.models.hand_made import CATALOGUE, LARGE, SMALL
from tests.models.test_advisor import measured


def test_only_what_is_not_surely_the_best_is_measured() -> None:
    advisor = Advisor(hand_made.model(), variants=CATALOGUE)
    sure, unsure = advisor.advise(SMALL), advisor.advise(LARGE)
    assert unsure.trust.confidence < SURE_ENOUGH < sure.trust.confidence
    assert (worth_measuring(sure), worth_measuring(unsure)) == (1, FIRST)


def test_what_was_measured_is_not_measured_again() -> None:
    advice = Advisor(hand_made.model(), variants=CATALOGUE).advise(LARGE, measured=measured(plain=1.0))
    assert advice.best.source == "measured"
    assert advice.trust.confidence < SURE_ENOUGH, "others may still be faster"
    assert worth_measuring(advice) == 1


def test_who_borrows_is_never_sure() -> None:
    h200, h100 = (gpus()[name].device for name in ("nvidia-h200", "nvidia-h100-80gb-hbm3"))
    assert worth_measuring(Advisor(hand_made.model(h200), h100, variants=CATALOGUE).advise(SMALL)) == FIRST


def test_a_guess_is_measured_unless_it_is_said_how_many() -> None:
    h200, h100, a100 = (
        gpus()[name].device for name in ("nvidia-h200", "nvidia-h100-80gb-hbm3", "nvidia-a100-sxm4-80gb")
    )
    guess, borrowed = (Advisor(hand_made.model(h200), gpu, variants=CATALOGUE).advise(SMALL) for gpu in (a100, h100))
    assert (guess.trust.abstains, borrowed.trust.abstains) == (True, False)
    assert [how_many(advice, None, None) for advice in (guess, borrowed)] == [FIRST, 1]
    assert [how_many(advice, 1, None) for advice in (guess, borrowed)] == [1, 1]
    assert how_many(borrowed, None, "if unsure") == FIRST
