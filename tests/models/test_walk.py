"""Trees as the GPU walks them: the same places and the same values as scikit-learn's."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.tree import ExtraTreeRegressor

from conv_advisor.data.errors import InvalidInput
from conv_advisor.models import walk_gpu
from conv_advisor.models.tree_arrays import LEAF
from conv_advisor.models.walk import NODE, ON_CORES, Tree, boosted_nodes_of, nodes_of
from conv_advisor.models.walk_gpu import OnGpu

N_FEATURES = 5


def rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((count, N_FEATURES)).astype(np.float32)


def forest(x: np.ndarray) -> tuple[list[Tree], np.ndarray]:
    """Trees whose leaves have values of three targets, and those values."""
    y = np.random.default_rng(3).random((len(x), 3))
    trees, values, begin = [], [], 0
    for seed in range(7):
        tree = ExtraTreeRegressor(random_state=seed, min_samples_leaf=2).fit(x, y).tree_
        trees.append((tree, np.arange(begin, begin + tree.node_count)))
        values.append(tree.value[:, :, 0].astype(np.float32))
        begin += tree.node_count
    return trees, np.concatenate(values)


def boosted(x: np.ndarray) -> Any:
    y = np.sin(9 * x[:, 0]) + x[:, 1] * x[:, 2]
    return HistGradientBoostingRegressor(max_iter=40, max_leaf_nodes=15, random_state=0).fit(x, y)


def places(nodes: np.ndarray, root: int, x: np.ndarray) -> np.ndarray:
    """Where rows end: what ``walk.cu`` does, in NumPy."""
    at = np.full(len(x), root)
    while (nodes["feature"][at] != LEAF).any():
        node = nodes[at]
        is_left = x[np.arange(len(x)), node["feature"]] <= node["threshold"]
        at = np.where(node["feature"] == LEAF, at, np.where(is_left, node["left"], node["right"]))
    found: np.ndarray = nodes["left"][at]
    return found


def test_packed_trees_part_rows_as_they_are_even_at_their_thresholds() -> None:
    x = rows(500, 0)
    trees, values = forest(x)
    nodes, roots = nodes_of(trees)
    assert nodes.dtype == NODE
    assert len(roots) == len(trees)
    for (tree, source), root in zip(trees, roots, strict=True):
        probes = np.repeat(rows(1, 1), 3 * tree.node_count, axis=0)
        for place, (feature, threshold) in enumerate(zip(tree.feature, tree.threshold, strict=True)):
            nearest = np.float32(threshold)
            near = [np.nextafter(nearest, np.float32(-9)), nearest, np.nextafter(nearest, np.float32(9))]
            probes[3 * place : 3 * place + 3, max(feature, 0)] = near
        assert np.array_equal(places(nodes, root, probes), source[tree.apply(probes)])
    asked = rows(99, 2)
    mean = np.zeros((len(asked), values.shape[1]), np.float32)
    for root in roots:
        mean += values[places(nodes, root, asked)]
    assert np.array_equal(mean / np.float32(len(roots)), ON_CORES.mean(trees, values)(asked))


def test_packed_boosted_trees_add_up_to_what_is_predicted() -> None:
    x = rows(500, 0)
    fitted = boosted(x)
    nodes, roots, values = boosted_nodes_of(fitted)
    asked, chosen = rows(300, 1), np.arange(0, 300, 7)
    total = np.full(len(chosen), fitted._baseline_prediction.item())
    for root in roots:
        total += values[places(nodes, root, asked[chosen])]
    found = ON_CORES.boosted(fitted)(ON_CORES.hold(asked), chosen)
    assert np.array_equal(found, fitted.predict(asked[chosen]))
    assert np.array_equal(total, found)
    assert np.ptp(found) > 0.5
    assert not len(ON_CORES.boosted(fitted)(asked, chosen[:0]))


@pytest.mark.parametrize("place", [-1, 2])
def test_a_gpu_that_is_not_there_is_named(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_gpu, "n_gpus", lambda: 2)
    with pytest.raises(InvalidInput, match=rf"gpu is {place}; allowed: .* 2 here"):
        OnGpu(place)
    assert pickle.loads(pickle.dumps(OnGpu(1))).place == 1  # noqa: S301 - made here


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_what_walks_on_a_gpu_compiles(arch: str) -> None:
    core = pytest.importorskip("cuda.core", reason="compiling without a GPU needs cuda-core")
    source = walk_gpu.SOURCE.read_text(encoding="utf-8")
    assert core.Program(source, "c++", core.ProgramOptions(arch=arch)).compile("cubin").code
