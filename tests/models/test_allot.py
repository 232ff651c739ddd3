"""Leaves are shared out among trees by what splits gain, and a tree of fewer leaves is the one that was grown so."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

from conv_advisor.models.training.allot import allot, gains_of, leaf_nodes
from conv_advisor.models.training.graft import nodes_of

RNG = np.random.default_rng(0)
X = RNG.random((400, 3)).astype(np.float32)
SIGNAL: np.ndarray = np.column_stack((np.sin(9 * X[:, 0]) + X[:, 1], X[:, 2] > 0.5))
Y = SIGNAL + 0.01 * RNG.random((400, 2))


def grown(n_leaves: int, scale: float = 1.0) -> DecisionTreeRegressor:
    return DecisionTreeRegressor(max_leaf_nodes=n_leaves, random_state=0).fit(X, scale * Y)


def test_gains_add_up_to_the_error_that_a_tree_takes_off() -> None:
    tree = grown(40)
    off = ((Y - Y.mean(axis=0)) ** 2).sum(axis=1).mean() - ((Y - tree.predict(X)) ** 2).sum(axis=1).mean()
    assert len(gains_of(tree)) == 39
    assert gains_of(tree).sum() == pytest.approx(off)


@pytest.mark.parametrize("n_leaves", [1, 2, 7, 40])
def test_the_first_splits_are_the_tree_of_as_many_leaves(n_leaves: int) -> None:
    whole, small = grown(40), grown(n_leaves) if n_leaves > 1 else None
    arrays, nodes = nodes_of(whole, n_leaves), leaf_nodes(whole, X, n_leaves)
    assert (arrays["feature"] < 0).sum() == n_leaves
    assert set(arrays["place"][nodes]) == set(range(n_leaves))
    if small is None:
        assert not nodes.any()
        return
    for name, values in nodes_of(small).items():
        assert np.array_equal(arrays[name], values), name
    assert np.array_equal(nodes, small.apply(X))


def test_trees_whose_splits_gain_more_keep_more_leaves() -> None:
    equal, loud = [grown(60), grown(60)], [grown(60), grown(60, scale=4.0)]
    assert allot(equal, 50) == [25, 25]
    few, many = allot(loud, 50)
    assert few + many == 50
    assert few < 15
    least_kept, most_left = gains_of(loud[0])[: few - 1].min(), gains_of(loud[1])[many - 1]
    assert least_kept >= most_left
    assert allot(loud, 1000) == [60, 60]
    assert allot(loud, 2) == [1, 1]
