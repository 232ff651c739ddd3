"""How far advice can be trusted: the chance that it is right, and whether the model was trained for such a layer."""

from __future__ import annotations

from collections.abc import Sequence
from math import erf, hypot, isfinite, log, sqrt
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from conv_advisor.models.tree.domain import Place, domain_of

if TYPE_CHECKING:
    from conv_advisor.data.problem import ConvProblem
    from conv_advisor.models.ranking.candidates import Choice
    from conv_advisor.models.tree.file import TreeModel
    from conv_advisor.models.tree.loan import Loan

WITHIN: Final = 0.05
"""Advice is right where the time of the advised variant is at most this share above the best one's."""

_LOG_WITHIN: Final = log(1 + WITHIN)
_SURE: Final = 5.0
"""Standard deviations behind which a variant cannot be the best."""


class Trust(msgspec.Struct, frozen=True):
    """How far advice on one layer can be trusted.

    Parameters
    ----------
    confidence : float or None
        Probability that the advised variant takes at most `within` longer than the fastest of those in the ranking.
        None where the model abstains, or nothing says how sure it is, as of times that are borrowed.
    within : float
    is_calibrated : bool
        Whether the probability was turned into what came true on layers held out from training, or needs no such thing:
        everything in the ranking was measured. False where the best is measured and a rival only predicted, and where
        there is no probability.
    abstains : bool
        The best time is predicted, and the layer is outside the domain that the model was trained on, or the model is
        that of another architecture: the ranking is a guess. Measure it.
    reason : str or None
        Why it is outside, naming the size, its value and what was trained on; why times are borrowed.
    n_unknown : int
        Variants that may run and are not in the ranking, since nothing says how long they take: none was measured on
        this layer, and the model does not know them. They may be faster.
    distance, limit : float or None
        Distance to the nearest layer trained on, and up to which the model counts as trained, in octaves; None where
        the model was trained before it kept its domain.
    borrowed_from : str or None
        The device whose times stand for those that are predicted, since this one has no model of its own.
    """

    confidence: float | None
    within: float
    is_calibrated: bool
    abstains: bool
    n_unknown: int = 0
    reason: str | None = None
    distance: float | None = None
    limit: float | None = None
    borrowed_from: str | None = None


def trust_in(
    model: TreeModel | None,
    problem: ConvProblem,
    ranking: Sequence[Choice],
    n_unknown: int = 0,
    *,
    has_record: bool = True,
    loan: Loan | None = None,
) -> Trust:
    """How far a ranking can be trusted.

    Parameters
    ----------
    model : TreeModel or None
        What predicted those times that are predicted.
    problem : ConvProblem
    ranking : sequence of Choice
        Best first; at least one.
    n_unknown : int
        Variants that may run, whose times nobody knows.
    has_record : bool
        Whether it was counted how often such rankings came true: those of every variant that may run, on convolutions
        without an epilogue.
    loan : Loan, optional
        Where the model is another device's.

    Raises
    ------
    ModelRejected
        The domain on the model's card is malformed.
    """
    is_predicted = [choice.source == "predicted" for choice in ranking]
    domain = domain_of(model) if model else None
    place = domain.locate(problem) if domain else Place(0.0, 0.0, None)
    borrowed = loan if any(is_predicted) else None
    has_guess = bool(borrowed) or (any(is_predicted) and not place.is_inside)
    confidence = None if has_guess else chance_of_best(ranking)
    table = None
    if model and has_record and is_predicted[0] and confidence is not None and (table := model.card.get("confidence")):
        confidence = float(np.interp(confidence, table["raw"], table["observed"]))
    return Trust(
        confidence=confidence,
        within=WITHIN,
        is_calibrated=bool(table) or not any(is_predicted),
        abstains=is_predicted[0] and (not place.is_inside or bool(borrowed and borrowed.is_far)),
        n_unknown=n_unknown,
        reason="; ".join([*([borrowed.reason] if borrowed else []), *([place.reason] if place.reason else [])]) or None,
        distance=place.distance if domain and isfinite(place.distance) else None,
        limit=place.limit if domain else None,
        borrowed_from=borrowed.lender.id if borrowed else None,
    )


def chance_of_best(ranking: Sequence[Choice]) -> float:
    """Probability that no variant is faster than the first by more than `WITHIN`, taking their errors as independent.

    Parameters
    ----------
    ranking : sequence of Choice
        Their log times err normally, by their uncertainty. A single launch, whose noise is unknown, was not repeated
        because it was far behind.
    """
    best = ranking[0]
    chance = 1.0
    for other in ranking[1:]:
        gap = log(other.time_ms / best.time_ms) + _LOG_WITHIN
        spread = 0.0 if other.uncertainty >= 1 else hypot(best.uncertainty, other.uncertainty)
        if gap < _SURE * spread:
            chance *= 0.5 * (1 + erf(gap / (spread * sqrt(2))))
    return chance
