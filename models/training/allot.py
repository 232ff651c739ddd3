"""How a budget of leaves is divided over several trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from conv_advisor.models.tree.arrays import LEAF


def allot(trees: Sequence[Any], n_leaves: int) -> list[int]:
    """Leaves of each tree, where the splits that gain most in any of them are kept.

    Parameters
    ----------
    trees : sequence of fitted scikit-learn trees
        Grown best first, on targets of the same scale.
    n_leaves : int
        In all.
    """
    # A split is made only after those before it, so it is worth no more than they are.
    gains = [np.minimum.accumulate(gains_of(tree)) for tree in trees]
    order = np.argsort(-np.concatenate(gains), kind="stable")[: max(0, n_leaves - len(trees))]
    owner = np.repeat(np.arange(len(trees)), [len(tree_gains) for tree_gains in gains])
    counts: list[int] = (1 + np.bincount(owner[order], minlength=len(trees))).tolist()
    return counts


def gains_of(tree: Any) -> np.ndarray:
    """What each split takes off the squared error of a row, over all targets, in the order of the splits."""
    inner = tree.tree_
    error = inner.weighted_n_node_samples * inner.impurity * inner.n_outputs / inner.weighted_n_node_samples[0]
    splits = _splits_of(inner)
    gains: np.ndarray = error[splits] - error[inner.children_left[splits]] - error[inner.children_right[splits]]
    return gains


def leaf_nodes(tree: Any, x: np.ndarray, n_leaves: int) -> np.ndarray:
    """The nodes in which rows end, where a tree that was grown best first keeps so many leaves."""
    inner = tree.tree_
    parent = np.zeros(inner.node_count, np.int64)
    splits = _splits_of(inner)
    parent[inner.children_left[splits]] = parent[inner.children_right[splits]] = splits
    # A split's children come right behind all nodes that there are: the first splits are the first nodes.
    ancestor = np.arange(inner.node_count)
    for node in range(2 * n_leaves - 1, inner.node_count):
        ancestor[node] = ancestor[parent[node]]
    nodes: np.ndarray = ancestor[inner.apply(x)]
    return nodes


def _splits_of(inner: Any) -> np.ndarray:
    splits = np.flatnonzero(inner.children_left != LEAF)
    ordered: np.ndarray = splits[np.argsort(inner.children_left[splits])]
    return ordered
