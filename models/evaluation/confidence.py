"""Calibration of confidence: whether it comes true on held-out layers, and its correction."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from conv_advisor.data.errors import NoAdvice
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import Costs
from conv_advisor.models.ranking.trust import WITHIN, chance_of_best

_BINS: Final = 10
_LEAST_RESULTS: Final = 200
"""Fewer held-out problems calibrate nothing."""
_LEAST_IN_HALF: Final = 60
"""The same for one half of the layers, by which the other is judged: halves of layers are no halves of problems."""


@dataclass(frozen=True)
class Outcomes:
    """How sure advice was, and whether it was right, on P problems that its model was not trained on.

    Parameters
    ----------
    chances : float64 array of shape (P,)
        As `models.ranking.trust.chance_of_best` gives them.
    is_right : bool array of shape (P,)
        Whether the first variant that ran took at most `WITHIN` longer than the fastest.
    half : int64 array of shape (P,)
        0 or 1, the same for all problems of a layer.
    """

    chances: np.ndarray
    is_right: np.ndarray
    half: np.ndarray

    def take(self, is_taken: np.ndarray) -> Outcomes:
        """Only the problems where the mask holds."""
        return Outcomes(self.chances[is_taken], self.is_right[is_taken], self.half[is_taken])


def outcomes(advisor: Advisor, unseen: Costs) -> Outcomes:
    """Ask for advice on problems that its model was not trained on, and compare; those outside its domain are left out.

    Parameters
    ----------
    advisor : Advisor
    unseen : Costs
    """
    column = {name: place for place, name in enumerate(unseen.variants)}
    best_ms = unseen.best_ms
    rows = []
    for row, problem in enumerate(unseen.problems):
        try:
            advice = advisor.advise(problem)
        except NoAdvice:
            continue
        times = [unseen.time_ms[row, column[choice.variant]] for choice in advice.ranking if choice.variant in column]
        ran = [time for time in times if np.isfinite(time)]
        if ran and not advice.trust.abstains:
            is_right = ran[0] <= (1 + WITHIN) * best_ms[row]
            rows.append((chance_of_best(advice.ranking), is_right, half_of(problem)))
    chances, right, halves = zip(*rows, strict=True) if rows else ((), (), ())
    return Outcomes(np.array(chances, float), np.array(right, bool), np.array(halves, int))


def half_of(problem: ConvProblem) -> int:
    """The half of all layers, 0 or 1, that a problem is in: with it all batches, dtypes and layouts of its layer."""
    return hashlib.sha256(problem.layer.key.encode()).digest()[-1] % 2


def calibrate(advisor: Advisor, unseen: Costs) -> dict[str, Any] | None:
    """What turns a model's chances into confidences that come true.

    Parameters
    ----------
    advisor : Advisor
        The advisor of a model trained without these problems.
    unseen : Costs

    Returns
    -------
    dict or None
        What `calibration` gives; beside it ``error``, the calibration error of confidences where one half of the layers
        calibrates the other, None where one has too few problems; and ``error_uncalibrated``. None where there are too
        few problems.
    """
    results = outcomes(advisor, unseen)
    table = calibration(results)
    if table is None:
        return None
    halves = [results.take(results.half == half) for half in (0, 1)]
    tables = [calibration(half, _LEAST_IN_HALF) for half in halves]
    errors = [calibration_error(half, other) for half, other in zip(halves, tables[::-1], strict=True) if other]
    return table | {
        "error": round(float(np.mean(errors)), 4) if len(errors) == 2 else None,
        "error_uncalibrated": round(calibration_error(results, None), 4),
    }


def calibration(results: Outcomes, least: int = _LEAST_RESULTS) -> dict[str, Any] | None:
    """What share of advice came true, by the chance that it was given.

    Parameters
    ----------
    results : Outcomes
    least : int
        Fewer results calibrate nothing.

    Returns
    -------
    dict or None
        ``raw``, rising: mean chances of bins of equally many problems; ``observed``, never falling: the share that came
        true; ``n_results``. None where there are too few.

    Notes
    -----
    Neighbouring bins that fall are pooled (isotonic regression); in between, lines.
    """
    if len(results.chances) < least:
        return None
    order = np.argsort(results.chances, kind="stable")
    pooled: list[tuple[float, float, int]] = []
    for part in np.array_split(order, _BINS):
        pooled.append((float(results.chances[part].mean()), float(results.is_right[part].mean()), len(part)))
        while len(pooled) > 1 and pooled[-2][1] >= pooled[-1][1]:
            pooled[-2:] = [_pool(*pooled[-2:])]
    return {
        "raw": [round(raw, 4) for raw, _, _ in pooled],
        "observed": [round(observed, 4) for _, observed, _ in pooled],
        "n_results": len(results.chances),
    }


def calibration_error(results: Outcomes, table: Mapping[str, Any] | None) -> float:
    """Mean distance between the confidence that is given and the share that comes true, over bins of equal size.

    Parameters
    ----------
    results : Outcomes
    table : dict or None
        As `calibration` makes it; without it the chances count as they are.
    """
    confidences = np.interp(results.chances, table["raw"], table["observed"]) if table else results.chances
    parts = [part for part in np.array_split(np.argsort(confidences, kind="stable"), _BINS) if len(part)]
    off = [len(part) * abs(confidences[part].mean() - results.is_right[part].mean()) for part in parts]
    return float(sum(off) / len(confidences))


def _pool(one: tuple[float, float, int], other: tuple[float, float, int]) -> tuple[float, float, int]:
    count = one[2] + other[2]
    raw, observed = ((one[place] * one[2] + other[place] * other[2]) / count for place in (0, 1))
    return raw, observed, count
