"""What advice says of itself in words: one text for the page, the command line and the library."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import TYPE_CHECKING, Final

from conv_advisor.data.counting import counted

if TYPE_CHECKING:
    from conv_advisor.data.epilogue import Epilogue
    from conv_advisor.models.ranking.candidates import Choice
    from conv_advisor.models.ranking.trust import Trust

_ROUNDING: Final = 1e-9
"""A hundred times 0.29 is a little less than 29."""

_LEAST_DIGITS: Final = 3
_MOST_DIGITS: Final = 18
"""Any two floats differ in 17."""


def chance(probability: float) -> str:
    """A probability in whole percent, rounded down, so that it claims no more than is known and never certainty."""
    percent = floor(100 * probability + _ROUNDING)
    if percent < 1:
        return "under 1 %"
    return f"{percent} %" if percent < 99 else "at least 99 %"


def above(value: float, limit: float) -> tuple[str, str]:
    """A value and the limit that it is above, in as many digits as tell them apart."""
    for digits in range(_LEAST_DIGITS, _MOST_DIGITS):
        shown, allowed = f"{value:.{digits}g}", f"{limit:.{digits}g}"
        if float(shown) > float(allowed):
            break
    return shown, allowed


def not_counted(epilogue: Epilogue) -> str:
    """What a person must know of times that are those of the convolution alone."""
    return f"The epilogue, {epilogue}, is not counted: every time is that of the convolution alone."


def trusted(trust: Trust, ranking: Sequence[Choice]) -> str:
    """How far a ranking can be trusted, in one or two sentences that name the variant it puts first.

    Parameters
    ----------
    trust : Trust
        Of this ranking.
    ranking : sequence of Choice
        Best first; at least one.
    """
    if trust.abstains:
        return f"The model abstains, and the ranking is a guess: {trust.reason}. Measure the layer to know."
    best = ranking[0].variant
    if trust.borrowed_from and ranking[0].source == "predicted":
        return f"The confidence in {best} is unknown: {trust.reason}. Measure the layer to know."
    if trust.confidence is None:
        guesses = sum(choice.source == "predicted" for choice in ranking[1:])
        others = counted(guesses, "other time is a guess", "other times are guesses")
        return f"{best} was measured, but {others}: {trust.reason}. Measure the layer to know."
    fastest = "the fastest that is known" if trust.n_unknown else "the fastest"
    sentence = f"{best} is {chance(trust.confidence)} likely to be within {chance(trust.within)} of {fastest}"
    if not trust.is_calibrated:
        sentence += ", judging by the spread of predicted times"
    return f"{sentence}.{_unknown(trust.n_unknown)}"


def _unknown(count: int) -> str:
    if not count:
        return ""
    others = "another variant that may run" if count == 1 else f"{count} more variants that may run"
    return f" Nothing is known about {others}: measure the layer to know."
