"""Where a tree was trained, and how far from there a layer is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import dist, log2, sqrt
from typing import Any, Final

import numpy as np

from conv_advisor.data.errors import ModelRejected
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.table import SIZES, sizes_of
from conv_advisor.models.tree.arrays import domain_sizes
from conv_advisor.models.tree.file import TreeModel

COLUMNS: Final = ("n", "c", "h", "w", "k", "r", "s", "stride_h", "stride_w", "dilation_h", "dilation_w", "groups")
"""Columns of the layers that a tree keeps, before one with a bit for each dtype and layout that they taught it in."""

_PLACES: Final = [SIZES.index(name) for name in COLUMNS]

WEIGHTS: Final = (0.5, 1.0, sqrt(0.5), sqrt(0.5), 1.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0)
"""What a factor of two in each of `COLUMNS` counts in a distance.

Height and width together count as one size. Filter, stride, dilation and groups change which variants run at all and
what they do. Times are nearly proportional to the batch. Halving its weight and tripling those of filter to groups
told apart best, of those tried, where a tree that had not seen a kind of layer erred: see docs/decisions/0015.
"""

LEAST_LIMIT: Final = 1.5
"""Distance up to which a tree that had not seen one kind of layer was within 1.05 of the oracle in the geometric mean,
however dense the layers that it was trained on."""

_OWN_SHARE: Final = 0.95
"""Share of the trained layers that have another one within the limit."""

_NEAREST: Final = 64
"""Neighbours searched for one of another layer: more than a layer has batches."""

_LABELS: Final = {
    "n": "batch",
    "c": "depth",
    "h": "input height",
    "w": "input width",
    "k": "filters",
    "r": "filter height",
    "s": "filter width",
    "stride_h": "stride down",
    "stride_w": "stride across",
    "dilation_h": "dilation down",
    "dilation_w": "dilation across",
    "groups": "groups",
}

GROUPS: Final = {group: 1 << place for place, group in enumerate(product(DType, Layout))}
"""The bit of each dtype and layout; its place is part of the format."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a layer lies.

    Parameters
    ----------
    distance : float
        To the nearest layer trained on, in octaves: factors of two, weighted by `WEIGHTS`. Padding does not count.
    limit : float
        A layer further away is outside; so is one padded wider than its dilated filter less one.
    reason : str or None
        Why the layer is outside, naming the size, its value and what was trained on; None inside.
    """

    distance: float
    limit: float
    reason: str | None

    @property
    def is_inside(self) -> bool:
        """Whether the layer is where the tree was trained."""
        return self.reason is None


@dataclass(frozen=True, slots=True)
class _Known:
    """The layers of one dtype and layout."""

    sizes: np.ndarray
    points: np.ndarray
    squares: np.ndarray


class Domain:
    """The layers that a tree was trained on.

    Parameters
    ----------
    sizes : int32 array of shape (P, 13)
        The layers, in `COLUMNS`, and the bits of the dtypes and layouts that each was trained in.
    limits : mapping of ``dtype/layout`` to float
    weights : sequence of float
        What a factor of two in each of `COLUMNS` counts.
    """

    def __init__(self, sizes: np.ndarray, limits: Mapping[str, float], weights: Sequence[float] = WEIGHTS) -> None:
        self._sizes, self._weights, self._limits = sizes, np.array(weights), limits
        self._known: dict[tuple[DType, Layout], _Known | None] = {}

    def locate(self, problem: ConvProblem) -> Place:
        """How far a problem is from what was trained on in its dtype and layout."""
        group = (problem.dtype, problem.layout)
        if group not in self._known:  # groups that nobody asks about are not worked out
            self._known[group] = self._known_of(GROUPS[group])
        known = self._known[group]
        if known is None:
            trained = ", ".join(f"{dtype} {layout}" for (dtype, layout), bit in GROUPS.items() if self._has(bit))
            reason = f"precision and layout are {problem.dtype} {problem.layout}; trained on {trained}"
            return Place(float("inf"), 0.0, reason)
        own = np.array([log2(getattr(problem, name)) for name in COLUMNS]) * self._weights
        squares = known.squares - 2 * (known.points @ own)  # less own @ own, the same for all: one product is faster
        nearest = int(squares.argmin())
        distance, limit = dist(known.points[nearest], own), self._limits[f"{problem.dtype}/{problem.layout}"]
        if distance <= limit:
            return Place(distance, limit, _why_padded(problem))
        return Place(distance, limit, _reason(problem, known, nearest, own, (distance, limit)))

    def _has(self, bit: int) -> bool:
        return bool((self._sizes[:, -1] & bit).any())

    def _known_of(self, bit: int) -> _Known | None:
        sizes = self._sizes[(self._sizes[:, -1] & bit) > 0, :-1]
        points = np.log2(sizes.astype(np.float64)) * self._weights
        return _Known(sizes, points, (points**2).sum(axis=1)) if len(sizes) else None


def coordinates(sizes: np.ndarray) -> np.ndarray:
    """Where problems lie: log2 of their sizes, weighted.

    Parameters
    ----------
    sizes : int64 array of shape (P, 14)
        As `data.table.sizes_of` gives them.

    Returns
    -------
    float64 array of shape (P, 12)
    """
    points: np.ndarray = np.log2(sizes[:, _PLACES].astype(np.float64)) * WEIGHTS
    return points


def learn_domain(problems: Sequence[ConvProblem]) -> tuple[np.ndarray, dict[str, Any]]:
    """What a tree keeps of the layers that it is trained on.

    Parameters
    ----------
    problems : sequence of ConvProblem

    Returns
    -------
    sizes : int32 array of shape (P, 13)
        As `Domain` takes them, in rising order.
    card : dict
        The columns, their weights, and the limit of each dtype and layout: the distance within which `_OWN_SHARE` of
        its problems have one of another layer, but at least `LEAST_LIMIT`.
    """
    bits: dict[tuple[int, ...], int] = {}
    for problem in problems:
        row = tuple(getattr(problem, name) for name in COLUMNS)
        bits[row] = bits.get(row, 0) | GROUPS[problem.dtype, problem.layout]
    sizes = np.array([(*row, mask) for row, mask in sorted(bits.items())], np.int32)
    limits = {
        f"{dtype}/{layout}": round(max(LEAST_LIMIT, _own_distance(of_kind)), 3)
        for dtype, layout in GROUPS
        if (of_kind := [problem for problem in problems if (problem.dtype, problem.layout) == (dtype, layout)])
    }
    return sizes, {"columns": list(COLUMNS), "weights": [round(weight, 4) for weight in WEIGHTS], "limits": limits}


@lru_cache(maxsize=16)
def domain_of(model: TreeModel) -> Domain | None:
    """The domain of a tree; None where it was trained before trees kept one.

    Raises
    ------
    ModelRejected
        The domain on its card does not fit the array.
    """
    sizes = domain_sizes(model.arrays)
    if sizes is None:
        return None
    try:
        domain = model.card["domain"]
        limits = {str(name): float(limit) for name, limit in domain["limits"].items()}
        weights = [float(weight) for weight in domain["weights"]]
        named = tuple(domain["columns"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelRejected(f"domain: {error!r}") from None
    if named != COLUMNS or sizes.shape[1] != len(COLUMNS) + 1 or len(weights) != len(COLUMNS):
        raise ModelRejected(f"domain has columns {named}; allowed: {COLUMNS}")
    missing = [
        name
        for (dtype, layout), bit in GROUPS.items()
        if (sizes[:, -1] & bit).any() and (name := f"{dtype}/{layout}") not in limits
    ]
    if missing:
        raise ModelRejected(f"domain has no limit for {', '.join(missing)}")
    return Domain(sizes, limits, weights)


def _own_distance(problems: Sequence[ConvProblem]) -> float:
    """Distance within which most problems have one of another layer; 0 where there is only one layer."""
    from scipy.spatial import cKDTree

    points = coordinates(sizes_of(problems))
    layers = np.unique([problem.layer.key for problem in problems], return_inverse=True)[1]
    distances, others = cKDTree(points).query(points, k=min(_NEAREST, len(problems)))
    is_other = layers[others.reshape(len(points), -1)] != layers[:, None]
    nearest = np.where(is_other, distances.reshape(len(points), -1), np.inf).min(axis=1)
    nearest = nearest[np.isfinite(nearest)]
    return float(np.quantile(nearest, _OWN_SHARE)) if len(nearest) else 0.0


def _reason(
    problem: ConvProblem, known: _Known, nearest: int, own: np.ndarray, distance_and_limit: tuple[float, float]
) -> str:
    """The size that is furthest beyond all that was trained on; if none is, the one least like the nearest layer's."""
    beyond = np.maximum(own - known.points.max(axis=0), known.points.min(axis=0) - own)
    if beyond.max() > 0:
        place = int(beyond.argmax())
        low, high = int(known.sizes[:, place].min()), int(known.sizes[:, place].max())
        trained = f"{low} to {high}" if high > low else f"{low} alone"
        return f"{_said(problem, place)}; trained on {trained}"
    place = int(np.abs(known.points[nearest] - own).argmax())
    near = dict(zip(COLUMNS, known.sizes[nearest].tolist(), strict=True))
    layer = "{h}x{w}-{n}-{r}x{s}-{k}-{c}".format_map(near)
    distance, limit = distance_and_limit
    return (
        f"{_said(problem, place)}, and the nearest layer trained on, {layer}, has {near[COLUMNS[place]]}: "
        f"{distance:.1f} octaves away, the limit is {limit:.1f}"
    )


def _why_padded(problem: ConvProblem) -> str | None:
    """Why padding puts a layer outside, however near its sizes are; None where it does not.

    Trees are trained on padding that keeps the size, and do as well on layers without any. Beyond the dilated filter
    less one, outputs are computed of nothing but zeros: no network has that, and nothing measured says what it costs.
    """
    for label, pad, taps, dilation in (
        ("padding down", max(problem.pad_h, problem.pad_h_end), problem.r, problem.dilation_h),
        ("padding across", max(problem.pad_w, problem.pad_w_end), problem.s, problem.dilation_w),
    ):
        most = dilation * (taps - 1)
        if pad > most:
            return f"{label} is {pad}; allowed: at most {most}, the dilated filter less one; trained on half of that"
    return None


def _said(problem: ConvProblem, place: int) -> str:
    name = COLUMNS[place]
    return f"{_LABELS[name]} is {getattr(problem, name)}"
