"""Trees as arrays of nodes, and how several become one."""

from __future__ import annotations

from typing import Any

import numpy as np

from conv_advisor.data.errors import NotEnoughData
from conv_advisor.data.problem import DType, Layout
from conv_advisor.models.tree.arrays import LEAF, RANKING, Arrays
from conv_advisor.models.tree.features import DTYPES, FEATURES

Group = tuple[DType, Layout, bool]
"""Dtype, layout, and whether the layers are grouped."""


def nodes_of(tree: Any, n_leaves: int | None = None) -> Arrays:
    """The node arrays of a fitted scikit-learn tree, its leaves numbered in order.

    A tree that was grown best first can be cut to its first `n_leaves` leaves: its first splits are its first nodes.
    """
    inner = tree.tree_
    n_nodes = 2 * n_leaves - 1 if n_leaves else inner.node_count
    left, right = inner.children_left[:n_nodes], inner.children_right[:n_nodes]
    is_leaf = (left == LEAF) | (left >= n_nodes)
    return {
        "feature": np.where(is_leaf, LEAF, inner.feature[:n_nodes]).astype(np.int32),
        "threshold": np.where(is_leaf, 0.0, inner.threshold[:n_nodes]),
        "left": np.where(is_leaf, LEAF, left).astype(np.int32),
        "right": np.where(is_leaf, LEAF, right).astype(np.int32),
        "place": np.where(is_leaf, np.cumsum(is_leaf) - 1, LEAF).astype(np.int32),
    }


def mean_by(leaf: np.ndarray, values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Weighted mean of the rows of each leaf."""
    order = np.argsort(leaf, kind="stable")
    starts = np.unique(leaf[order], return_index=True)[1]
    total = np.add.reduceat((values * weight[:, None])[order], starts, axis=0)
    mean: np.ndarray = total / np.add.reduceat(weight[order], starts)[:, None]
    return mean


def hang(parts: list[Arrays], node: int, below: Arrays, n_nodes: int, n_leaves: int) -> None:
    """Put the root of a tree in place of a leaf, and its other nodes behind all existing ones."""
    offset = n_nodes - 1
    placed = {
        "feature": below["feature"],
        "threshold": below["threshold"],
        "left": np.where(below["left"] == LEAF, LEAF, below["left"] + offset).astype(np.int32),
        "right": np.where(below["right"] == LEAF, LEAF, below["right"] + offset).astype(np.int32),
        "place": np.where(below["place"] == LEAF, LEAF, below["place"] + n_leaves).astype(np.int32),
    }
    for name, values in placed.items():
        parts[0][name][node] = values[0]
    parts.append({name: values[1:] for name, values in placed.items()})


def graft(trees: dict[Group, Arrays]) -> Arrays:
    """Join the trees under nodes that compare whether there are groups, then dtype, then layout.

    A dtype without a tree is answered by that of the nearest one: bfloat16, without groups, by that of float16.
    """
    whole = _join_any("log2_groups", _of_all_dtypes(trees, False), _of_all_dtypes(trees, True))
    if whole is None:
        raise NotEnoughData("no dtype and layout was measured")
    return whole


def _of_all_dtypes(trees: dict[Group, Arrays], has_groups: bool) -> Arrays | None:
    """The trees of layers with groups, or of those without, joined; None where there are none."""
    whole: Arrays | None = None
    above: float | None = None
    for code, dtype in reversed(list(enumerate(DTYPES))):
        nchw, nhwc = (trees.get((dtype, layout, has_groups)) for layout in (Layout.NCHW, Layout.NHWC))
        both = _join_any("is_nhwc", nchw, nhwc)
        if both:
            whole = _join("dtype", (code + above) / 2, both, whole) if whole and above is not None else both
            above = code
    return whole


def _join_any(feature: str, below: Arrays | None, above: Arrays | None) -> Arrays | None:
    """Both trees joined at a threshold of a half, or the one that there is."""
    return _join(feature, 0.5, below, above) if below and above else below or above


def _join(feature: str, threshold: float, below: Arrays, above: Arrays) -> Arrays:
    """One tree whose root sends values up to the threshold to the tree `below`."""
    n_below, n_leaves = len(below["feature"]), len(below["log_best"])
    joined = {name: np.concatenate([below[name], above[name]]) for name in below}
    joined[RANKING] = np.concatenate([below[RANKING], above[RANKING] + len(below["log_slowdown"])]).astype(np.int32)
    for name in ("left", "right"):
        children = [
            np.where(tree[name] == LEAF, LEAF, tree[name] + offset)
            for tree, offset in ((below, 1), (above, 1 + n_below))
        ]
        joined[name] = np.concatenate([[1 if name == "left" else 1 + n_below], *children]).astype(np.int32)
    places = np.where(above["place"] == LEAF, LEAF, above["place"] + n_leaves)
    joined["place"] = np.concatenate([[LEAF], below["place"], places]).astype(np.int32)
    joined["feature"] = np.concatenate([[FEATURES.index(feature)], joined["feature"]]).astype(np.int32)
    joined["threshold"] = np.concatenate([[threshold], joined["threshold"]])
    return joined
