"""The ensemble that a tree learns from: smoother than one tree can be, and able to label layers never measured.

A single tree trained on the measured layers alone generalises worse than an ensemble does. So an ensemble is trained
first, and the tree is then trained on the measured problems together with many made-up ones, which the ensemble labels
(Breiman and Shang, Born Again Trees, 1996), of one dtype and layout at a time. Only the tree is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from conv_advisor.models.costs import Costs
from conv_advisor.models.ranking.leaf import MIN_SUPPORT
from conv_advisor.models.training.graft import mean_by
from conv_advisor.models.training.options import Options
from conv_advisor.models.training.threads import Each

CAP: Final = 3.0
"""Largest log slowdown told apart, about 20x; what refusals count as."""

STEEPNESS: Final = 3.0
"""How fast the cost saturates: between variants far behind the best nothing is to be learned."""

CONTENDER_LOG_SLOWDOWN: Final = 0.25
"""A variant within this of the best somewhere is worth learning precisely."""

_FOLDS: Final = 5

_BOOSTING: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "learning_rate": 0.3,
        "max_bins": 32,
        "max_leaf_nodes": 63,
        "min_samples_leaf": 5,
        "l2_regularization": 1.0,
        "max_features": 0.5,
        "early_stopping": False,
    }
)

_LEARNED: Final = 4.5
"""A time more than this many times the best of its layer teaches boosted trees nothing: they are asked about variants
near the best alone."""

_RANDOMISED_SHARE: Final = 2 / 3
"""Weight of what randomised trees say of a cost, against what follows from boosted times."""

_LOOKED_AT: Final = 0.4
"""Share of the quantities that a split of a randomised tree looks at: half of the work, and trees that differ more."""

_BLOCK: Final = 2**13
"""Rows walked at a time, down one tree after the other: with their features they stay in a core's cache."""

_FAR_COST: Final = 0.7
"""Cost by randomised trees, that of 1.5 times the best, from which boosted ones are not asked. Boosted trees learn from
times alone, and a variant is not timed where it is far behind: there they rate it too well. On 7,500 problems held out
the teacher is at 1.019 so, and was at 1.020 when it asked boosted trees about all."""


def saturate(log_slowdown: np.ndarray) -> np.ndarray:
    """Turn log slowdowns into costs from 0 to 1."""
    return 1 - np.exp(-STEEPNESS * log_slowdown)


@dataclass(frozen=True)
class Lesson:
    """What is believed of n problems.

    Parameters
    ----------
    contenders : list of int
        Columns of the variants that are the best somewhere, or nearly.
    cost : float32 array of shape (n, n_contenders)
        Their saturated slowdown.
    log_slowdown : float32 array of shape (n, V)
    support : float32 array of shape (n, V)
        How likely the variant runs.
    workspace : float32 array of shape (n, V)
        log2(1 + scratch memory as a share of the problem's bytes).
    log_best : float64 array of shape (n,)
        log(time of the best / roofline).
    """

    contenders: list[int]
    cost: np.ndarray
    log_slowdown: np.ndarray
    support: np.ndarray
    workspace: np.ndarray
    log_best: np.ndarray

    def take(self, rows: np.ndarray) -> Lesson:
        """What is believed of some of the problems."""
        return Lesson(self.contenders, *(getattr(self, name)[rows] for name in _BELIEVED))

    def then(self, other: Lesson) -> Lesson:
        """The problems of this one, then those of another of the same teacher."""
        joined = (np.concatenate([getattr(self, name), getattr(other, name)]) for name in _BELIEVED)
        return Lesson(self.contenders, *joined)


_BELIEVED: Final = tuple(field.name for field in fields(Lesson) if field.name != "contenders")


def lesson_of(costs: Costs, log_roofline: np.ndarray) -> Lesson:
    """What was measured of some problems. A variant left out counts as usual, one that did not run as the slowest.

    Parameters
    ----------
    costs : Costs
    log_roofline : float64 array of shape (P,)
        log(ms) of the roofline.
    """
    log_slowdown, runs = costs.log_slowdown(CAP), np.isfinite(costs.time_ms).astype(float)
    contenders = _contenders(log_slowdown)
    known = [
        saturate(log_slowdown[:, contenders]),
        _untried_as_usual(costs, log_slowdown),
        _untried_as_usual(costs, runs),
        _untried_as_usual(costs, _workspace(costs)),
    ]
    filled = [np.where(np.isfinite(values), values, np.nanmax(values, initial=0.0)) for values in known]
    cost, slowdown, support, workspace = (values.astype(np.float32) for values in filled)
    return Lesson(contenders, cost, slowdown, support, workspace, np.log(costs.best_ms) - log_roofline)


class Teacher:
    """The ensemble, trained on the measured problems.

    The cost of contenders is predicted by boosted and by randomised trees: where one is far off the other seldom is.
    Boosted trees learn the time of each contender, and its cost follows from the times of all; randomised trees learn
    the cost itself, and all else is the mean of their leaves. A contender that these see far behind counts as that far
    behind. The best time is the mean of what randomised trees of its own say and of the least boosted time.

    Parameters
    ----------
    costs : Costs
    x : float32 array of shape (P, n_features)
    log_roofline : float64 array of shape (P,)
        log(ms) of the roofline; times are learned against it.
    seed : int
    options : Options
        How many trees, and how many rounds of boosting.
    thread_map, process_map : callable, optional
        As `map`, on several threads and in several processes: `models.training.threads`.

    Attributes
    ----------
    measured : Lesson
        `lesson_of` these problems.
    """

    def __init__(
        self,
        costs: Costs,
        x: np.ndarray,
        log_roofline: np.ndarray,
        seed: int,
        options: Options,
        thread_map: Each = map,
        process_map: Each = map,
    ) -> None:
        self.measured = lesson_of(costs, log_roofline)
        known = self.measured
        learned = [known.cost, known.log_slowdown, known.support, known.workspace]
        self._randomised = _Randomised(x, learned, seed, options.n_trees, thread_map)
        self._best = _Randomised(x, [known.log_best[:, None]], seed, options.n_trees, thread_map)
        is_near = costs.time_ms <= _LEARNED * costs.best_ms[:, None]
        log_time = np.log(np.where(is_near, costs.time_ms, np.inf)[:, known.contenders]) - log_roofline[:, None]
        times = log_time.T if options.n_rounds else ()
        self._boosted = list(process_map(_boosted, repeat(x), times, repeat(seed), repeat(options.n_rounds)))

    def label(self, x: np.ndarray) -> Lesson:
        """What it believes of problems with these features.

        Parameters
        ----------
        x : float32 array of shape (n, n_features)
        """
        cost, log_slowdown, support, workspace = self._randomised.predict(x)
        (log_best,) = self._best.predict(x)
        if self._boosted:
            is_likely = support[:, self.measured.contenders] >= MIN_SUPPORT
            is_near = _is_near(cost, is_likely)
            times = np.full(is_near.shape, np.inf, np.float32)
            for place, (boosted, near) in enumerate(zip(self._boosted, is_near.T, strict=True)):
                if near.any():
                    times[near, place] = np.concatenate([boosted.predict(block) for block in _blocks(x[near])])
            by_time = np.where(is_near | ~is_likely, _cost_by_time(times), cost)
            cost *= _RANDOMISED_SHARE
            cost += (1 - _RANDOMISED_SHARE) * by_time
            least = times.min(axis=1, keepdims=True)
            log_best = np.where(np.isfinite(least), (log_best + least) / 2, log_best)
        best = log_best[:, 0].astype(np.float64)
        return Lesson(self.measured.contenders, cost, log_slowdown, support, workspace, best)


def orders_of(lesson: Lesson, variants: Sequence[str]) -> list[tuple[str, ...]]:
    """How a lesson ranks the variants of its problems: contenders by their cost, then the others by their slowdown.

    Without those that are unlikely to run.
    """
    rank = lesson.log_slowdown + 1.0  # a cost is at most 1
    rank[:, lesson.contenders] = lesson.cost
    runs = lesson.support >= MIN_SUPPORT
    return [
        tuple(variants[place] for place in np.argsort(row, kind="stable") if is_likely[place])
        for row, is_likely in zip(rank, runs, strict=True)
    ]


def unseen_error(
    costs: Costs,
    x: np.ndarray,
    seed: int,
    options: Options,
    thread_map: Each = map,
) -> np.ndarray:
    """How far predictions are off on layers that were not trained on: one of `_FOLDS` parts of them.

    Returns
    -------
    float64 array of shape (P,)
        Root mean square error of the log slowdown over the variants predicted near the best; NaN of the other parts.
    """
    from sklearn.model_selection import GroupKFold

    truth = np.nan_to_num(costs.log_slowdown(CAP), nan=CAP)
    layers = [problem.layer.key for problem in costs.problems]
    known, unseen = next(GroupKFold(min(_FOLDS, len(set(layers)))).split(x, groups=layers))
    forest = _Randomised(x[known], [truth[known]], seed, max(1, options.n_trees // 2), thread_map)
    (guess,) = forest.predict(x[unseen])
    is_near = guess <= np.maximum(guess.min(axis=1, keepdims=True), CONTENDER_LOG_SLOWDOWN)
    squares = np.where(is_near, np.minimum(np.abs(guess - truth[unseen]), 1.0) ** 2, 0.0)
    off = np.full(len(truth), np.nan)
    off[unseen] = np.sqrt(squares.sum(axis=1) / is_near.sum(axis=1))
    return off


def _contenders(log_slowdown: np.ndarray) -> list[int]:
    near = np.nan_to_num(log_slowdown, nan=CAP) <= CONTENDER_LOG_SLOWDOWN
    return np.flatnonzero(near.sum(axis=0) >= max(1, len(near) // 500)).tolist()


def _workspace(costs: Costs) -> np.ndarray:
    n_bytes = np.array([[problem.bytes] for problem in costs.problems])
    share: np.ndarray = costs.workspace_bytes / n_bytes
    bits: np.ndarray = np.log2(1 + share)
    return bits


def _untried_as_usual(costs: Costs, values: np.ndarray) -> np.ndarray:
    """Where a variant was left out, its mean over the problems of the same dtype and layout where it was tried."""
    filled, is_tried = values.copy(), (np.isfinite(costs.time_ms) | costs.is_refused) & np.isfinite(values)
    kinds = np.array([f"{problem.dtype} {problem.layout}" for problem in costs.problems])
    for kind in np.unique(kinds):
        rows = np.flatnonzero(kinds == kind)
        tried = is_tried[rows]
        mean = np.where(tried, values[rows], 0.0).sum(axis=0) / np.maximum(tried.sum(axis=0), 1)
        filled[rows] = np.where(costs.is_known[rows] | ~tried.any(axis=0), values[rows], mean)
    return filled


class _Randomised:
    """Extremely randomised trees; the first targets alone decide the splits.

    Where these are constant, as with one variant that no other comes near, all targets do. A leaf is the mean of its
    rows, most often a single one, whose targets all trees share.
    """

    def __init__(
        self, x: np.ndarray, targets: Sequence[np.ndarray], seed: int, count: int, thread_map: Each = map
    ) -> None:
        from sklearn.tree import ExtraTreeRegressor

        y = np.concatenate(targets, axis=1)
        deciding = targets[0] if np.ptp(targets[0], axis=0).any() else y
        self._ends = np.cumsum([values.shape[1] for values in targets])[:-1]
        values, n_values = [y], len(y)
        self._trees: list[tuple[Any, np.ndarray]] = []  # nodes, and the row of the values for each of them

        def grow(place: int) -> tuple[Any, np.ndarray]:
            tree = ExtraTreeRegressor(max_features=_LOOKED_AT, random_state=seed + place).fit(x, deciding).tree_
            return tree, tree.apply(x)

        for tree, leaf_of in thread_map(grow, range(count)):
            leaves, rows, counts = np.unique(leaf_of, return_index=True, return_counts=True)
            source = np.zeros(tree.node_count, np.int32)
            source[leaves] = rows
            shared = leaves[counts > 1]
            if len(shared):
                sharing = np.flatnonzero(np.isin(leaf_of, shared))
                values.append(mean_by(leaf_of[sharing], y[sharing], np.ones(len(sharing))))
                source[shared] = n_values + np.arange(len(shared))
                n_values += len(shared)
            self._trees.append((tree, source))
        self._values = np.concatenate(values).astype(np.float32)

    def predict(self, x: np.ndarray) -> list[np.ndarray]:
        """Each target for these rows, float32 arrays with a row for each."""
        mean = np.zeros((len(x), self._values.shape[1]), np.float32)
        for block, total in zip(_blocks(x), _blocks(mean), strict=True):
            for tree, source in self._trees:
                np.add(total, self._values[source[tree.apply(block)]], out=total)
        mean /= np.float32(len(self._trees))
        return np.split(mean, self._ends, axis=1)


def _blocks(rows: np.ndarray) -> list[np.ndarray]:
    return [rows[first : first + _BLOCK] for first in range(0, len(rows), _BLOCK)]


def _boosted(x: np.ndarray, y: np.ndarray, seed: int, n_rounds: int) -> Any:
    """Gradient-boosted trees, trained where y is known."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    known = np.isfinite(y)
    return HistGradientBoostingRegressor(**_BOOSTING, max_iter=n_rounds, random_state=seed).fit(x[known], y[known])


def _is_near(cost: np.ndarray, is_likely: np.ndarray) -> np.ndarray:
    """Which contenders may be the best of their row, of those that are likely to run: one at least."""
    least = np.where(is_likely, cost, np.inf).min(axis=1, keepdims=True)
    near: np.ndarray = is_likely & (cost <= np.maximum(_FAR_COST, least))
    return near


def _cost_by_time(log_times: np.ndarray) -> np.ndarray:
    """The saturated slowdown of each time against the least of its row; 1 for infinite times."""
    least = log_times.min(axis=1, keepdims=True)
    cost: np.ndarray = saturate(log_times - np.where(np.isfinite(least), least, 0.0))
    return cost
