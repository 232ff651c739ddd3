"""When measuring a layer pays: the first few of the ranking where the confidence is low."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from conv_advisor.models.advice.advice import Advice


Measure = Literal["if unsure"]
"""When the first of a ranking are measured."""

SURE_ENOUGH: Final = 0.9
"""Measuring below this confidence, with `FIRST` of the ranking, pays after the fewest calls, of those tried in
docs/advice.md, "Is measuring worth it" (`python -m benchmarks.sureness`)."""

FIRST: Final = 3


def how_many(advice: Advice, top: int | None, measure: Measure | None) -> int:
    """How many of the ranking's first variants to run, the fastest of which answers.

    Parameters
    ----------
    advice : Advice
    top : int or None
        A fixed number, whatever the advice says.
    measure : Measure or None
        Without a number, when more than one is run; None: only where the model abstains and the ranking is a guess.
    """
    if top is not None:
        return top
    return worth_measuring(advice) if measure or advice.trust.abstains else 1


def worth_measuring(advice: Advice) -> int:
    """How many of the ranking's first to measure: `FIRST` where the best is predicted and not surely the best, else 1.

    A best that was measured is kept, whatever is predicted for others: measuring them again would gain nothing.
    """
    is_sure = advice.trust.confidence is not None and advice.trust.confidence >= SURE_ENOUGH
    return 1 if is_sure or advice.best.source == "measured" else FIRST
