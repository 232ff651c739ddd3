"""Why a tree predicts what it predicts: each decision in words, and what lies beyond it on either side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import floor, log2
from typing import Final

import numpy as np

from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.models.tree.features import DTYPES, FEATURES, MOST_ALIGNED, features
from conv_advisor.models.tree.file import TreeModel, path_nodes

LEAST_SUPPORT: Final = 0.5
"""A variant less likely to run than this is no leaf's favourite."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a feature means to people.

    Parameters
    ----------
    label : str
    unit : str
        ``bytes``, ``flop`` or empty.
    is_log2 : bool
        Whether the feature is the logarithm of the quantity.
    is_whole : bool
        Whether the quantity is always an integer.
    """

    label: str
    unit: str = ""
    is_log2: bool = True
    is_whole: bool = True


QUANTITIES: Final[dict[str, Quantity]] = {
    "dtype": Quantity("precision", is_log2=False),
    "is_nhwc": Quantity("layout", is_log2=False),
    "log2_n": Quantity("batch"),
    "log2_c": Quantity("depth"),
    "log2_h": Quantity("input height"),
    "log2_w": Quantity("input width"),
    "log2_k": Quantity("filters"),
    "log2_r": Quantity("filter height"),
    "log2_s": Quantity("filter width"),
    "log2_groups": Quantity("groups"),
    "stride": Quantity("stride", is_log2=False),
    "dilation": Quantity("dilation", is_log2=False),
    "log2_pixels": Quantity("output pixels of one image"),
    "log2_gemm_m": Quantity("output pixels of the batch"),
    "log2_gemm_n": Quantity("filters of one group"),
    "log2_gemm_k": Quantity("length of a dot product"),
    "log2_flops": Quantity("operations", "flop"),
    "log2_bytes": Quantity("bytes of x, weight and y", "bytes"),
    "log2_x_bytes": Quantity("bytes of x", "bytes"),
    "log2_weight_bytes": Quantity("bytes of the weight", "bytes"),
    "log2_y_bytes": Quantity("bytes of y", "bytes"),
    "log2_intensity": Quantity("operations per byte", is_whole=False),
    "log2_filters_per_depth": Quantity("filters over depth", is_whole=False),
    "log2_x_per_weight": Quantity("bytes of x per byte of the weight", is_whole=False),
    "log2_tiles_64": Quantity("output tiles of 64 × 64"),
    "log2_tiles_128": Quantity("output tiles of 128 × 128"),
    "log2_steps": Quantity("steps of 32 along the dot product, per tile", is_whole=False),
    "fill_m": Quantity("useful share of 128-row tiles", is_log2=False, is_whole=False),
    "fill_n_64": Quantity("useful share of 64-column tiles", is_log2=False, is_whole=False),
    "fill_n_128": Quantity("useful share of 128-column tiles", is_log2=False, is_whole=False),
    "fill_winograd": Quantity("useful share of 2 × 2 Winograd tiles", is_log2=False, is_whole=False),
    "fill_fft": Quantity("useful share of 32 × 32 FFT tiles", is_log2=False, is_whole=False),
    "aligned_c": Quantity(f"largest power of two (up to {MOST_ALIGNED}) that divides the depth"),
    "aligned_k": Quantity(f"largest power of two (up to {MOST_ALIGNED}) that divides the filters"),
    "aligned_pixels": Quantity(f"largest power of two (up to {MOST_ALIGNED}) that divides the input's pixels"),
}
"""By feature."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One side of a decision.

    Parameters
    ----------
    n_leaves : int
        Leaves below it.
    favourite : str or None
        The variant that most of them predict as the fastest; None where none of them predicts any to run.
    share : float
        Share of the leaves whose favourite it is.
    """

    n_leaves: int
    favourite: str | None
    share: float


@dataclass(frozen=True, slots=True)
class Decision:
    """One comparison on the way to a leaf, in words.

    Parameters
    ----------
    feature : str
    value, threshold : float
        As the tree compares them: it goes below where the value is at most the threshold.
    is_below : bool
    label, unit : str
        What the feature means: see `Quantity`.
    actual, limit : str or float
        Value and threshold as people read them: a number in that unit, or the names of precisions or layouts.
    taken, other : Branch
        What lies below the side that is taken, and below the other.
    leaf : str or None
        The variant that the leaf predicts as the fastest, at the end of all decisions.
    share_before, share_after : float
        Share of the leaves that predict that variant, below the decision and on the side taken.
    """

    feature: str
    value: float
    threshold: float
    is_below: bool
    label: str
    unit: str
    actual: str | float
    limit: str | float
    taken: Branch
    other: Branch
    leaf: str | None
    share_before: float
    share_after: float

    @property
    def weight_bits(self) -> float:
        """Bits by which the decision made the leaf's variant the one to expect; those of a path add up to the whole."""
        return log2(self.share_after / self.share_before)


def decisive(decisions: Sequence[Decision], count: int) -> list[Decision]:
    """The decisions that did most to single out the leaf's variant, in the order of the path.

    Parameters
    ----------
    decisions : sequence of Decision
        A whole path.
    count : int
        At most so many; decisions that singled out nothing are left out, unless there is nothing else.
    """
    heaviest = sorted(decisions, key=lambda decision: -decision.weight_bits)[:count]
    telling = [decision for decision in heaviest if decision.weight_bits > 0] or heaviest
    return [decision for decision in decisions if decision in telling]


def explain(model: TreeModel, problem: ConvProblem) -> list[Decision]:
    """The decisions that lead to a problem's leaf, first to last.

    Parameters
    ----------
    model : TreeModel
    problem : ConvProblem
    """
    values = features(problem)
    tested, thresholds, left = model.nodes
    winners = _winners(model)
    *path, end = path_nodes(model, values)
    winner = int(winners.below(end).argmax())
    decisions = []
    for node, following in zip(path, [*path[1:], end], strict=True):
        name, value, threshold = FEATURES[tested[node]], values[tested[node]], thresholds[node]
        is_below = value <= threshold
        low, high = (_branch(winners.below(child), model.variants) for child in (left[node], left[node] + 1))
        quantity = QUANTITIES[name]
        decisions.append(
            Decision(
                name,
                value,
                threshold,
                is_below,
                quantity.label,
                quantity.unit,
                _said(name, value),
                limit_of(name, threshold, is_below),
                *((low, high) if is_below else (high, low)),
                model.variants[winner] if winner < len(model.variants) else None,
                *(_share(winners.below(passed), winner) for passed in (node, following)),
            )
        )
    return decisions


def favourites(model: TreeModel, dtype: DType, layout: Layout) -> list[str]:
    """The variants that some leaf for this precision and layout predicts as the fastest, those of most leaves first.

    Parameters
    ----------
    model : TreeModel
    dtype : DType
    layout : Layout
    """
    fixed = {FEATURES.index("dtype"): DTYPES.index(dtype), FEATURES.index("is_nhwc"): layout is Layout.NHWC}
    tested, thresholds, left = model.nodes
    winners = _winners(model)
    total = np.zeros(len(model.variants) + 1, np.int64)
    nodes = [0]
    while nodes:
        node = nodes.pop()
        feature = tested[node]
        if feature < 0:
            total += winners.below(node)
        elif feature in fixed:
            nodes.append(left[node] + (fixed[feature] > thresholds[node]))
        else:
            nodes += (left[node], left[node] + 1)
    ranked = np.argsort(-total[:-1], kind="stable")
    return [model.variants[column] for column in ranked.tolist() if total[column]]


def _share(counts: np.ndarray, column: int) -> float:
    return float(counts[column] / counts.sum())


def _branch(counts: np.ndarray, variants: tuple[str, ...]) -> Branch:
    n_leaves, best = int(counts.sum()), int(counts[:-1].argmax())
    favourite = variants[best] if counts[best] else None
    return Branch(n_leaves, favourite, float(counts[best] / n_leaves))


@dataclass(frozen=True, slots=True, eq=False)
class _Winners:
    """The variant that each of the L leaves of a tree of N nodes predicts as the fastest; leaves below a node adjoin.

    Parameters
    ----------
    winner : int array of shape (L,)
        A variant's column; the number of variants where none is predicted to run.
    first, n_leaves : list of N int
        The place of a node's first leaf, and how many it has.
    n_variants : int
    """

    winner: np.ndarray
    first: list[int]
    n_leaves: list[int]
    n_variants: int

    def below(self, node: int) -> np.ndarray:
        """How many leaves below a node predict each variant, or none (the last), int64 array of shape (V + 1,)."""
        start = self.first[node]
        return np.bincount(self.winner[start : start + self.n_leaves[node]], minlength=self.n_variants + 1)


@lru_cache(maxsize=8)
def _winners(model: TreeModel) -> _Winners:
    n_variants = len(model.variants)
    feature, _, left = model.nodes
    n_leaves, first = [1] * len(feature), [0] * len(feature)
    inner = [node for node, tested in enumerate(feature) if tested >= 0]
    for node in reversed(inner):  # children come after their parents
        n_leaves[node] = n_leaves[left[node]] + n_leaves[left[node] + 1]
    for node in inner:
        first[left[node]] = first[node]
        first[left[node] + 1] = first[node] + n_leaves[left[node]]
    slowdown = np.where(model.ranked("support") >= LEAST_SUPPORT, model.ranked("log_slowdown"), np.inf)
    fastest = np.where(np.isfinite(slowdown).any(axis=1), slowdown.argmin(axis=1), n_variants)
    leaves = np.flatnonzero(model.arrays["feature"] < 0)
    winner = np.empty(len(leaves), np.int64)
    winner[np.array(first)[leaves]] = fastest[model.arrays["next"][leaves]]
    return _Winners(winner, first, n_leaves, n_variants)


def _said(name: str, value: float) -> str | float:
    if name in _NAMES:
        return _NAMES[name](lambda code: code == value)
    quantity = QUANTITIES[name]
    shown = 2.0**value if quantity.is_log2 else value
    return float(round(shown)) if quantity.is_whole else shown


def limit_of(name: str, threshold: float, is_below: bool = True) -> str | float:
    """The threshold as people read it; for precisions and layouts, the names on the side that is taken."""
    if name in _NAMES:
        return _NAMES[name](lambda code: (code <= threshold) == is_below)
    quantity = QUANTITIES[name]
    if name.startswith("aligned_"):
        return 2.0 ** floor(threshold)
    shown = 2.0**threshold if quantity.is_log2 else threshold
    return float(floor(shown)) if quantity.is_whole else shown


def _named(names: tuple[str, ...]) -> Callable[[Callable[[int], bool]], str]:
    return lambda is_meant: " or ".join(name for code, name in enumerate(names) if is_meant(code))


_NAMES: Final = {"dtype": _named(DTYPES), "is_nhwc": _named((Layout.NCHW, Layout.NHWC))}
"""Features that are codes: the names of the codes for which a predicate holds."""
