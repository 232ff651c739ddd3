"""The first decisions of a tree, as a person reads them: what is asked, and which variant wins on either side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from conv_advisor.data.problem import DType, Layout
from conv_advisor.data.table import SIZES
from conv_advisor.models.tree.arrays import domain_sizes
from conv_advisor.models.tree.domain import COLUMNS, GROUPS
from conv_advisor.models.tree.explain import LEAST_SUPPORT, QUANTITIES, limit_of
from conv_advisor.models.tree.features import FEATURES, Quantities, code_of
from conv_advisor.models.tree.file import TreeModel

DEPTH: Final = 3
"""Decisions from the first that differs among the layers of a kind."""
_WINNERS: Final = 2
"""Number of variants that are named for a side."""


@dataclass(frozen=True)
class Side:
    """What lies on one side of a decision, or at the head of them all.

    Parameters
    ----------
    said : str
        The condition on a layer to be on this side; empty at the head.
    share : float
        Share of the layers of the kind.
    winners : sequence of (str, float)
        The variants advised most often on these layers, and the share of the layers that each is advised on.
    below : sequence of Side
        The two sides of the next decision, where it is shown.
    """

    said: str
    share: float
    winners: Sequence[tuple[str, float]]
    below: Sequence[Side] = ()


@dataclass(frozen=True)
class Kind:
    """The first decisions on the layers of one precision and layout.

    Parameters
    ----------
    dtype : DType
    layout : Layout
    n_layers : int
        Number of layers trained on, each batch counting as one.
    head : Side
    """

    dtype: DType
    layout: Layout
    n_layers: int
    head: Side


@lru_cache(maxsize=8)
def first_levels(model: TreeModel) -> tuple[Kind, ...]:
    """The first `DEPTH` decisions by which a tree tells apart the layers that it was trained on.

    Parameters
    ----------
    model : TreeModel

    Returns
    -------
    tuple of Kind
        One per precision and layout; none where the tree does not keep its layers. Padding is not kept: layers count as
        padded so that stride 1 leaves the plane as large.
    """
    kept = domain_sizes(model.arrays)
    if kept is None:
        return ()
    winner, kinds, layers = _winner(model), [], kept.astype(np.int64)
    for (dtype, layout), bit in GROUPS.items():
        sizes = _sizes(layers[(layers[:, -1] & bit) > 0, :-1])
        if len(sizes):
            x = Quantities(sizes, *code_of(dtype, layout)).features()
            wins = winner[_leaves(model, x)]
            kinds.append(Kind(dtype, layout, len(x), _Reader(model, x, wins).side("", np.arange(len(x)), 0, DEPTH)))
    return tuple(kinds)


@dataclass(frozen=True)
class _Reader:
    """The layers of a kind, and the variant that each is advised."""

    model: TreeModel
    x: np.ndarray
    wins: np.ndarray

    def side(self, condition: str, rows: np.ndarray, node: int, depth: int) -> Side:
        """What lies below a node that these layers pass."""
        feature, threshold, left = self.model.nodes
        while (tested := feature[node]) >= 0:  # a test that all layers answer alike is not worth a line
            is_below = self.x[rows, tested] <= threshold[node]
            if is_below.any() and not is_below.all():
                break
            node = left[node] + (not is_below[0])
        counts = np.bincount(self.wins[rows], minlength=len(self.model.variants) + 1)[:-1]
        best = [place for place in np.argsort(-counts, kind="stable")[:_WINNERS].tolist() if counts[place]]
        winners = [(self.model.variants[place], float(counts[place] / len(rows))) for place in best]
        below: list[Side] = []
        if tested >= 0 and depth:
            words = _words(FEATURES[tested], threshold[node])
            for text, on_side, child in zip(words, (is_below, ~is_below), (left[node], left[node] + 1), strict=True):
                below.append(self.side(text, rows[on_side], child, depth - 1))
        return Side(condition, len(rows) / len(self.x), winners, below)


def _words(feature: str, threshold: float) -> tuple[str, str]:
    """Words for both sides of a decision."""
    quantity, limit = QUANTITIES[feature], limit_of(feature, threshold)
    if isinstance(limit, str):  # a precision or a layout, in a tree that looks at all of them together
        return limit, str(limit_of(feature, threshold, is_below=False))
    if quantity.is_whole and feature in ("stride", "dilation", "log2_groups") and limit == 1:
        return f"{quantity.label} 1", f"{quantity.label} above 1"
    shown = f"{limit:,.0f}" if quantity.is_whole or limit >= 100 else f"{limit:.2g}"
    unit = f" {quantity.unit}" if quantity.unit == "flop" else ""
    return f"{quantity.label} at most {shown}{unit}", f"{quantity.label} above {shown}{unit}"


def _sizes(layers: np.ndarray) -> np.ndarray:
    """The sizes of layers as `data.table` has them, each padded so that stride 1 leaves its plane as large."""
    sizes = np.zeros((len(layers), len(SIZES)), np.int64)
    sizes[:, [SIZES.index(name) for name in COLUMNS]] = layers
    for filter_size, dilation, pad in (("r", "dilation_h", "pad_h"), ("s", "dilation_w", "pad_w")):
        around = (sizes[:, SIZES.index(filter_size)] - 1) * sizes[:, SIZES.index(dilation)]
        sizes[:, SIZES.index(pad)] = around // 2
        sizes[:, SIZES.index(f"{pad}_end")] = around // 2
    return sizes


def _leaves(model: TreeModel, x: np.ndarray) -> np.ndarray:
    """The leaf of each row of features, int array of shape (n,)."""
    feature, threshold, following = (model.arrays[name] for name in ("feature", "value", "next"))
    node, rows = np.zeros(len(x), np.int64), np.arange(len(x))
    while len(rows):
        rows = rows[feature[node[rows]] >= 0]
        at = node[rows]
        node[rows] = following[at] + (x[rows, feature[at]] > threshold[at])
    return node


def _winner(model: TreeModel) -> np.ndarray:
    """The variant that each leaf predicts as the fastest, by node; the number of variants where none is to run."""
    slowdown = np.where(model.ranked("support") >= LEAST_SUPPORT, model.ranked("log_slowdown"), np.inf)
    fastest = np.where(np.isfinite(slowdown).any(axis=1), slowdown.argmin(axis=1), len(model.variants))
    is_leaf = model.arrays["feature"] < 0
    winners: np.ndarray = fastest[np.where(is_leaf, model.arrays["next"], 0)]
    return winners
