"""What a few new measurements say of all known times: which layers are slower now, and how likely that is.

Randomised trees predict the log of the time now over the time before, from the problem, the variant, and what bounded
it: bytes and arithmetic a second before. Measure next where the trees disagree: there nobody knows the time now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from conv_advisor.data.extras import require
from conv_advisor.models.adapting.correction import family_of
from conv_advisor.models.costs import Costs
from conv_advisor.models.tree.features import features

REGRESSED: Final = 0.05
"""A layer has regressed where its fastest variant is slower than before by more than this share."""

_N_TREES: Final = 200
_LONGEST_LOG: Final = 1.0
"""A log ratio beyond this counts as this much: one outlier may not decide for all problems like it."""
_CHUNK: Final = 16_384

Cells = tuple[np.ndarray, np.ndarray]
"""Rows and columns of `Costs`, int arrays of one length."""


@dataclass(frozen=True)
class Question:
    """Questions to the trees: n cells of P problems, and the cells that were measured again.

    Parameters
    ----------
    measured : float32 array of shape (m, F)
        What describes the cells that were measured again.
    logs : float64 array of shape (m,)
        Log of their time now over that before.
    wanted : float32 array of shape (n, F)
    rows : int array of shape (n,)
        The problem of each cell, rising.
    known : float64 array of shape (n,)
        Log of its time before over that of the fastest variant of its problem.
    exact : float64 array of shape (n,)
        Log of its time now over that before, where it was measured; infinite where it no longer runs; else NaN.
    """

    measured: np.ndarray
    logs: np.ndarray
    wanted: np.ndarray
    rows: np.ndarray
    known: np.ndarray
    exact: np.ndarray


@dataclass(frozen=True)
class Said:
    """The trees' answer.

    Parameters
    ----------
    mean : float64 array of shape (n,)
        Log of the time now over that before, of each cell; for a measured cell, as measured.
    chance : float64 array of shape (P,)
        Share of the trees by which a problem has regressed.
    best : float64 array of shape (P,)
        Log of the time of its fastest variant now over that before.
    """

    mean: np.ndarray
    chance: np.ndarray
    best: np.ndarray


def say(question: Question) -> Said:
    """Learn from what was measured, and predict the rest; needs scikit-learn.

    Raises
    ------
    NotInstalled
    """
    require("sklearn")
    from sklearn.ensemble import ExtraTreesRegressor

    if not len(question.logs):  # only variants that no longer run are known
        question = replace(question, measured=question.wanted[:1], logs=np.zeros(1))
    forest = ExtraTreesRegressor(_N_TREES, min_samples_leaf=2, max_features=0.5, random_state=0)
    forest.fit(question.measured, np.clip(question.logs, -_LONGEST_LOG, _LONGEST_LOG))
    starts = np.flatnonzero(np.r_[True, np.diff(question.rows) > 0])
    mean = np.empty(len(question.rows))
    chance, best = np.empty(len(starts)), np.empty(len(starts))
    for first in range(0, len(starts), _CHUNK):
        chunk = starts[first : first + _CHUNK]
        end = starts[first + _CHUNK] if first + _CHUNK < len(starts) else len(question.rows)
        cells = slice(chunk[0], end)
        logs = np.array([tree.predict(question.wanted[cells]) for tree in forest.estimators_])
        exact = question.exact[cells]
        logs = np.where(np.isnan(exact), logs, exact)
        now = np.minimum.reduceat(question.known[cells] + logs, chunk - chunk[0], axis=1)
        mean[cells] = logs.mean(axis=0)
        chance[first : first + _CHUNK] = (now > np.log1p(REGRESSED)).mean(axis=0)
        best[first : first + _CHUNK] = now.mean(axis=0)
    return Said(mean, chance, best)


class Known:
    """Times known from before, which new measurements are compared with.

    Parameters
    ----------
    costs : Costs

    Attributes
    ----------
    time_ms : float64 array of shape (P, V)
        NaN where a variant was not timed to the end.
    best_ms : float64 array of shape (P,)
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.time_ms = np.where(costs.is_pruned, np.nan, costs.time_ms)
        self.best_ms = np.nanmin(self.time_ms, axis=1)
        families = [family_of(name) for name in costs.variants]
        self._family = np.array([families.index(family) for family in families])

    @cached_property
    def _problems(self) -> np.ndarray:
        """The features of each problem and its log sizes, float64 array of shape (P, F)."""
        sizes = [(np.log2(problem.bytes), np.log2(problem.flops)) for problem in self.costs.problems]
        return np.hstack([[features(problem) for problem in self.costs.problems], sizes])

    def describe(self, cells: Cells) -> np.ndarray:
        """The inputs of the trees for cells, float32 array of shape (n, F)."""
        rows, columns = cells
        log_ms, problems = np.log2(self.time_ms[rows, columns]), self._problems[rows]
        log_bytes, log_flops = problems[:, -2:].T
        behind = log_ms - np.log2(self.best_ms[rows])
        variant = (columns, self._family[columns])
        matrix = np.column_stack([problems, log_ms, log_bytes - log_ms, log_flops - log_ms, behind, *variant])
        return matrix.astype(np.float32)
