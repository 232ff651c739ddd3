"""Walking the teacher's trees with many rows: by scikit-learn on the processor's cores, or on a GPU.

A teacher labels millions of made-up layers, each by thousands of trees: on one core half an hour, on a GPU seconds.
Both add the same numbers in the same order, so that the same labels come out to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import numpy as np

from conv_advisor.models.tree_arrays import LEAF

Tree = tuple[Any, np.ndarray]
"""scikit-learn's inner tree, and for each of its nodes the row of a table of values."""

Mean = Callable[[Any], np.ndarray]
"""The mean of the leaves of rows as `Walk.hold` keeps them, float32 array of shape (n, n_targets)."""

Boosted = Callable[[Any, np.ndarray], np.ndarray]
"""What is predicted of rows as `Walk.hold` keeps them, by the places of those asked about, float64 array."""

NODE: Final = np.dtype([("threshold", "f4"), ("feature", "i4"), ("left", "i4"), ("right", "i4")])
"""A node as the GPU walks it; of a leaf, whose feature is `LEAF`, ``left`` is the place of its value."""

_BLOCK: Final = 2**14
"""Rows walked at a time, down one tree after the other."""


class Walk(Protocol):
    """A way to walk trees; what comes out does not depend on it."""

    def hold(self, x: np.ndarray) -> Any:
        """Keep rows, float32 array of shape (n, n_features), where they will be walked."""

    def mean(self, trees: Sequence[Tree], values: np.ndarray) -> Mean:
        """The mean over trees of the values, float32 array of shape (n_values, n_targets), in their leaves."""

    def boosted(self, fitted: Any) -> Boosted:
        """What scikit-learn's ``HistGradientBoostingRegressor`` predicts."""


class OnCores:
    """By scikit-learn itself."""

    def hold(self, x: np.ndarray) -> np.ndarray:
        """The rows themselves."""
        return x

    def mean(self, trees: Sequence[Tree], values: np.ndarray) -> Mean:
        """As `Walk.mean`."""
        return partial(_mean, trees, values)

    def boosted(self, fitted: Any) -> Boosted:
        """As `Walk.boosted`."""
        return lambda x, rows: fitted.predict(x[rows]) if len(rows) else np.empty(0)


ON_CORES: Final = OnCores()


def _mean(trees: Sequence[Tree], values: np.ndarray, x: np.ndarray) -> np.ndarray:
    mean = np.zeros((len(x), values.shape[1]), np.float32)
    for first in range(0, len(x), _BLOCK):
        some, total = x[first : first + _BLOCK], mean[first : first + _BLOCK]
        for tree, source in trees:
            total += values[source[tree.apply(some)]]
    mean /= np.float32(len(trees))
    return mean


def nodes_of(trees: Sequence[Tree]) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of all trees as `NODE`, one tree behind the other, and where each begins.

    Returns
    -------
    nodes : NODE array
    roots : int32 array of shape (n_trees,)
    """
    packed = []
    for tree, source in trees:
        is_leaf = tree.children_left == LEAF
        packed.append(_packed(is_leaf, tree.threshold, tree.feature, tree.children_left, tree.children_right, source))
    return _joined(packed)


def boosted_nodes_of(fitted: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `nodes_of`, of scikit-learn's ``HistGradientBoostingRegressor``, and the value of each node.

    Returns
    -------
    nodes : NODE array
    roots : int32 array of shape (n_trees,)
    values : float64 array
    """
    inner = [predictor.nodes for (predictor,) in fitted._predictors]
    ends = np.cumsum([len(each) for each in inner])
    packed = [
        _packed(
            each["is_leaf"].astype(bool),
            each["num_threshold"],
            each["feature_idx"],
            each["left"],
            each["right"],
            np.arange(end - len(each), end),
        )
        for each, end in zip(inner, ends, strict=True)
    ]
    return *_joined(packed), np.concatenate([each["value"] for each in inner])


def _packed(
    is_leaf: np.ndarray,
    threshold: np.ndarray,
    feature: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    place: np.ndarray,
) -> np.ndarray:
    """One tree. Features are float32: none is between a threshold and the float32 just below it."""
    nodes = np.empty(len(is_leaf), NODE)
    nearest = threshold.astype(np.float32)
    nodes["threshold"] = np.where(nearest > threshold, np.nextafter(nearest, np.float32(-np.inf)), nearest)
    nodes["feature"] = np.where(is_leaf, LEAF, feature)
    nodes["left"], nodes["right"] = np.where(is_leaf, place, left), right
    return nodes


def _joined(trees: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    roots = np.cumsum([0, *(len(nodes) for nodes in trees)])[:-1]
    joined = []
    for nodes, root in zip(trees, roots.tolist(), strict=True):
        moved = nodes.copy()
        is_inner = nodes["feature"] != LEAF
        moved["left"][is_inner] += root
        moved["right"][is_inner] += root
        joined.append(moved)
    return np.concatenate(joined), roots.astype(np.int32)
