"""The ensemble that a tree learns from: smoother than one tree can be, and able to label layers never measured.

A single tree trained on the measured layers alone generalises worse than boosted trees do. So boosted trees are
trained first, and the tree is then trained on the measured problems together with many made-up ones, which the boosted
trees label (Breiman and Shang, Born Again Trees, 1996). Only the tree is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from data.errors import InvalidProblem
from data.problem import ConvProblem
from models.costs import Costs, layer_of
from models.graft import mean_by
from models.leaf import MIN_SUPPORT

CAP: Final = 3.0
"""Largest log slowdown told apart, about 20x; what refusals count as."""

STEEPNESS: Final = 3.0
"""How fast the cost saturates: between variants far behind the best nothing is to be learned."""

CONTENDER_LOG_SLOWDOWN: Final = 0.25
"""A variant within this of the best somewhere is worth learning precisely."""

_FOLDS: Final = 5
_TREES: Final = 120

_BOOSTING: Final[dict[str, Any]] = {
    "max_iter": 150,
    "learning_rate": 0.15,
    "max_bins": 255,
    "max_leaf_nodes": 63,
    "min_samples_leaf": 5,
    "l2_regularization": 1.0,
    "max_features": 0.5,
    "early_stopping": False,
}
_FOR_BEST: Final[Mapping[str, Any]] = MappingProxyType({"max_iter": 500, "learning_rate": 0.06, "max_leaf_nodes": 31})
"""The best time is predicted itself, not only compared with others: one target alone can bear finer steps."""

_RANDOMISED_SHARE: Final = 2 / 3
"""Of a cost, what randomised trees say, against what follows from boosted times."""

_TRIES: Final = 50
_JITTER_OCTAVES: Final = 0.6
_AS_MEASURED: Final = 0.8
"""Of the sizes of made-up problems, those that stay as they were measured."""

_BLOCK: Final = 2**15
"""Rows added at a time, which stay in the cache."""

_STEPS: Final = (8, 8, 8, 4, 2, 1)
"""What channels are multiples of, each as likely: for half of them eight, which decides what tensor cores can do."""


def saturate(log_slowdown: np.ndarray) -> np.ndarray:
    """Turn log slowdowns into costs from 0 to 1."""
    return 1 - np.exp(-STEEPNESS * log_slowdown)


@dataclass(frozen=True)
class Lesson:
    """What is believed of n problems, first the measured ones, then those made up.

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


def teach(costs: Costs, x: np.ndarray, log_roofline: np.ndarray, made_up: np.ndarray, seed: int) -> Lesson:
    """Train the ensemble on the measured problems; say what was measured of those, and what it predicts of the others.

    The cost of contenders and the best time are predicted by boosted and by randomised trees: where one is far off the
    other seldom is. Boosted trees learn the time of each contender, and its cost follows from those of all; randomised
    ones learn the cost itself, and all else is the mean of their leaves.

    Parameters
    ----------
    costs : Costs
    x : float32 array of shape (P, n_features)
    log_roofline : float64 array of shape (P,)
        log(ms) of the roofline, which times are learned against.
    made_up : float32 array of shape (n_made_up, n_features)
    seed : int
    """
    log_slowdown, runs = costs.log_slowdown(CAP), np.isfinite(costs.time_ms).astype(float)
    contenders = _contenders(log_slowdown)
    known = (
        saturate(log_slowdown[:, contenders]),
        _untried_as_usual(costs, log_slowdown),
        _untried_as_usual(costs, runs),
        _untried_as_usual(costs, _workspace(costs)),
    )
    cost, log_slowdown, runs, workspace = _randomised(x, known, np.concatenate([x, made_up]), seed)
    log_time = np.log(costs.time_ms[:, contenders]) - log_roofline[:, None]
    is_likely = runs[len(x) :, contenders] >= MIN_SUPPORT
    times = np.full(is_likely.shape, np.inf, np.float32)
    for place, rows in enumerate(is_likely.T):
        times[rows, place] = _boosted(x, log_time[:, place], made_up[rows], seed)
    cost[len(x) :] *= _RANDOMISED_SHARE
    cost[len(x) :] += (1 - _RANDOMISED_SHARE) * _cost_by_time(times)
    del times
    log_best = np.log(costs.best_ms) - log_roofline
    (best,) = _predict_randomised(x, [log_best[:, None]], made_up, seed, _TREES)
    best_times = (best[:, 0] + _boosted(x, log_best, made_up, seed, _FOR_BEST)) / 2
    return Lesson(contenders, cost, log_slowdown, runs, workspace, np.concatenate([log_best, best_times]))


def orders_of(lesson: Lesson, variants: Sequence[str], first: int) -> list[tuple[str, ...]]:
    """How a lesson ranks its problems from this row on: contenders by their cost, then the others by their slowdown.

    Without those that are unlikely to run.
    """
    rank = lesson.log_slowdown[first:] + 1.0  # a cost is at most 1
    rank[:, lesson.contenders] = lesson.cost[first:]
    runs = lesson.support[first:] >= MIN_SUPPORT
    return [
        tuple(variants[place] for place in np.argsort(row, kind="stable") if is_likely[place])
        for row, is_likely in zip(rank, runs, strict=True)
    ]


def unseen_error(costs: Costs, x: np.ndarray, seed: int) -> np.ndarray:
    """How far predictions are off on layers that were not trained on, by cross-validation over layers.

    Returns
    -------
    float64 array of shape (P,)
        Root mean square error of the log slowdown over the variants predicted near the best.
    """
    from sklearn.model_selection import GroupKFold

    truth = np.nan_to_num(costs.log_slowdown(CAP), nan=CAP)
    layers = [layer_of(problem).key for problem in costs.problems]
    off = np.zeros(len(truth))
    for known, unseen in GroupKFold(min(_FOLDS, len(set(layers)))).split(x, groups=layers):
        (guess,) = _predict_randomised(x[known], [truth[known]], x[unseen], seed, _TREES // _FOLDS)
        is_near = guess <= np.maximum(guess.min(axis=1, keepdims=True), CONTENDER_LOG_SLOWDOWN)
        squares = np.where(is_near, np.minimum(np.abs(guess - truth[unseen]), 1.0) ** 2, 0.0)
        off[unseen] = np.sqrt(squares.sum(axis=1) / is_near.sum(axis=1))
    return off


def sample_like(problems: Sequence[ConvProblem], count: int, rng: np.random.Generator) -> list[ConvProblem]:
    """Make up problems like these: their sizes recombined and jittered, no larger than the largest.

    Parameters
    ----------
    problems : sequence of ConvProblem
    count : int
        How many at most; fewer where too few recombinations are valid.
    rng : numpy.random.Generator
    """
    largest = {name: max(getattr(problem, name) for problem in problems) for name in ("flops", "bytes")}
    made: list[ConvProblem] = []
    for _ in range(_TRIES * count):
        if len(made) == count:
            break
        plane, channels, batch = (problems[place] for place in rng.integers(len(problems), size=3))
        problem = _recombined(plane, channels, batch, rng)
        if problem and all(getattr(problem, name) <= most for name, most in largest.items()):
            made.append(problem)
    return made


def _recombined(
    plane: ConvProblem, channels: ConvProblem, batch: ConvProblem, rng: np.random.Generator
) -> ConvProblem | None:
    """Plane and filter of one problem, channels of another or the same, batch of a third; None if that is no layer.

    Groups keep their size, and their number varies.
    """
    if rng.random() < 0.5:
        channels = plane
    scale = _jitter(rng)
    c, k, groups = (_channels(size * _jitter(rng), rng) for size in (channels.c, channels.k, channels.groups))
    if channels.groups == 1:
        groups = 1
    else:
        c, k = (groups * count // channels.groups for count in (channels.c, channels.k))
    try:
        return replace(
            plane,
            n=batch.n,
            h=max(1, round(plane.h * scale)),
            w=max(1, round(plane.w * scale)),
            c=c,
            k=k,
            groups=groups,
        )
    except InvalidProblem:
        return None


def _jitter(rng: np.random.Generator) -> float:
    """Mostly 1: what a tree tells apart it tells apart where it has many examples, and networks share their sizes."""
    return 1.0 if rng.random() < _AS_MEASURED else 2.0 ** rng.uniform(-_JITTER_OCTAVES, _JITTER_OCTAVES)


def _channels(count: float, rng: np.random.Generator) -> int:
    """A whole number, and above 24 a multiple of one of `_STEPS`, as the channels of networks are."""
    step = _STEPS[rng.integers(len(_STEPS))]
    return max(1, round(count)) if count < 24 else step * round(count / step)


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


def _randomised(x: np.ndarray, known: Sequence[np.ndarray], wanted: np.ndarray, seed: int) -> list[np.ndarray]:
    """What extremely randomised trees predict of the wanted rows; the first ones are x, where the known values stay.

    Unknown values count as the largest of their kind: what was never tried is not advised.
    """
    filled = [np.where(np.isfinite(values), values, np.nanmax(values, initial=0.0)) for values in known]
    predicted = _predict_randomised(x, filled, wanted, seed, _TREES)
    for values, guess in zip(known, predicted, strict=True):
        guess[: len(x)] = np.where(np.isfinite(values), values, guess[: len(x)])
    return predicted


def _predict_randomised(
    x: np.ndarray, targets: Sequence[np.ndarray], wanted: np.ndarray, seed: int, count: int
) -> list[np.ndarray]:
    """Extremely randomised trees, one in memory at a time; the first targets alone decide the splits.

    Where these are always the same, as with one variant that nobody comes near, all do. In float32: of
    tens of thousands of made-up problems in eight dtypes and layouts these are by far the largest arrays.
    """
    from sklearn.tree import ExtraTreeRegressor

    y = np.concatenate(targets, axis=1)
    deciding = targets[0] if np.ptp(targets[0], axis=0).any() else y
    mean = np.zeros((len(wanted), y.shape[1]), np.float32)
    for tree in range(count):
        fitted = ExtraTreeRegressor(random_state=seed + tree).fit(x, deciding)
        values = _means_of(fitted.apply(x), y)
        leaves = fitted.apply(wanted)
        for first in range(0, len(wanted), _BLOCK):
            mean[first : first + _BLOCK] += values[leaves[first : first + _BLOCK]]
    mean /= np.float32(count)
    return np.split(mean, np.cumsum([values.shape[1] for values in targets])[:-1], axis=1)


def _means_of(leaves: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The mean of the rows of y in each leaf, in the row of its number; other rows are zero."""
    means = np.zeros((leaves.max() + 1, y.shape[1]), np.float32)
    means[np.unique(leaves)] = mean_by(leaves, y, np.ones(len(y)))
    return means


def _boosted(
    x: np.ndarray, y: np.ndarray, wanted: np.ndarray, seed: int, options: Mapping[str, Any] = MappingProxyType({})
) -> np.ndarray:
    """What gradient-boosted trees predict, trained where y is known."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    if not len(wanted):
        return np.empty(0)
    known = np.isfinite(y)
    fitted = HistGradientBoostingRegressor(**{**_BOOSTING, **options}, random_state=seed).fit(x[known], y[known])
    predicted: np.ndarray = fitted.predict(wanted)
    return predicted


def _cost_by_time(log_times: np.ndarray) -> np.ndarray:
    """The saturated slowdown of each time against the least of its row; 1 of those without an end."""
    least = log_times.min(axis=1, keepdims=True)
    cost: np.ndarray = saturate(log_times - np.where(np.isfinite(least), least, 0.0))
    return cost
