"""What the size of a trained tree buys: its first splits alone, judged on networks that it was never trained on.

Below the nodes that tell dtypes, layouts and groups apart a tree is grown best split first, so its first splits are the
tree that a smaller `max_leaves` would have grown. A node that becomes a leaf ranks by the mean of the rankings below.
Trees of grouped layers have half as many leaves. Needs no GPU; a minute and a half.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.learners import ALL_TREES, ranking_bytes, score, told
from benchmarks.measured import attempts_of
from benchmarks.plots.pages import number, table
from conv_advisor.data.networks import held_out_layers
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.shipped import TIMINGS
from conv_advisor.models.costs import Costs, from_table
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.training.grow import GROUPED_SHARE
from conv_advisor.models.training.teacher import Lesson
from conv_advisor.models.tree.arrays import LEAF
from conv_advisor.models.tree.features import FEATURES, features
from conv_advisor.models.tree.file import TreeModel, path_nodes, read

LEAVES: Final = (30, 100, 300, 600, 1000)
"""Leaves that rank, of one dtype and layout."""

TOLD_APART: Final = ("dtype", "is_nhwc", "log2_groups")
"""What the nodes above the trees compare."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge and print; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shortened", description=__doc__)
    parser.add_argument("--device", default="nvidia-h200")
    parser.add_argument("--trained", type=Path, default=SHIPPED, help="holds <device>/card.json")
    chosen = parser.parse_args(arguments)
    never = held_out_layers()
    costs = from_table(attempts_of(TIMINGS / chosen.device), chosen.device)
    print(report(read(chosen.trained / chosen.device), costs.where(lambda problem: problem.layer in never)))
    return 0


def report(model: TreeModel, judges: Costs) -> str:
    """A row a size."""
    ask = shortened(model, judges.problems)
    n_bytes = ALL_TREES * ranking_bytes(len(model.variants))
    rows = [(f"{count:,}", number(count * n_bytes / 1e6, 1), told(score(judges, ask(count)))) for count in LEAVES]
    return table(("leaves of each", "MB of all", "networks"), rows)


def shortened(model: TreeModel, problems: Sequence[ConvProblem]) -> Callable[[int], Lesson]:
    """What a tree says of problems with no more than so many leaves for each dtype and layout.

    Returns
    -------
    callable (n_leaves) -> Lesson
        Without contenders, workspaces and times.
    """
    parent = _parents(model)
    splits_rankings = _splits_rankings(model, parent)
    order = _order(model, parent, splits_rankings)
    means = _means(model, parent, order)
    paths = [[node for node in path_nodes(model, features(problem)) if order[node] >= 0] for problem in problems]
    share = [GROUPED_SHARE if problem.groups > 1 else 1.0 for problem in problems]

    def ask(n_leaves: int) -> Lesson:
        most = [2 * round(n_leaves * part) - 1 for part in share]
        ends = [[node for node in path if order[node] < n][-1] for path, n in zip(paths, most, strict=True)]
        none = np.empty((len(ends), 0), np.float32)
        slowdown, support = np.split(means[ends], 2, axis=1)
        return Lesson([], none, slowdown, support, none, np.empty(0))

    return ask


def _parents(model: TreeModel) -> np.ndarray:
    """The parent of each node; -1 of the root."""
    parent = np.full(len(model.arrays["feature"]), -1)
    inner = np.flatnonzero(model.arrays["feature"] != LEAF)
    for side in (0, 1):
        parent[model.arrays["next"][inner] + side] = inner
    return parent


def _splits_rankings(model: TreeModel, parent: np.ndarray) -> np.ndarray:
    """Whether the leaves below a node have several rankings, bool array: other nodes tell times apart, or nothing."""
    is_leaf, ranking = model.arrays["feature"] == LEAF, model.arrays["next"].astype(np.int64)
    least, most = np.where(is_leaf, ranking, np.iinfo(np.int64).max), np.where(is_leaf, ranking, -1)
    for node in range(len(parent) - 1, 0, -1):
        above = parent[node]
        least[above], most[above] = min(least[above], least[node]), max(most[above], most[node])
    splits: np.ndarray = least < most
    return splits


def _order(model: TreeModel, parent: np.ndarray, splits_rankings: np.ndarray) -> np.ndarray:
    """Each node's place in the order its tree grew in; -1 above the trees, and where only times are told apart."""
    feature, order = model.arrays["feature"], np.full(len(parent), -1)
    above, n_nodes = {-1}, dict[int, int]()
    tree = np.arange(len(parent))
    for node in range(len(parent)):
        if parent[node] in above and feature[node] != LEAF and FEATURES[feature[node]] in TOLD_APART:
            above.add(node)
            continue
        if parent[node] not in above:
            tree[node] = tree[parent[node]]
        if parent[node] in above or splits_rankings[parent[node]]:
            order[node] = n_nodes.setdefault(int(tree[node]), 0)
            n_nodes[int(tree[node])] += 1
    return order


def _means(model: TreeModel, parent: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The mean log slowdowns and supports of the rankings below each node of a tree, side by side."""
    tables = np.concatenate([model.ranked(name) for name in ("log_slowdown", "support")], axis=1)
    total, count = np.zeros((len(parent), tables.shape[1]), np.float32), np.zeros(len(parent))
    for leaf in np.flatnonzero(model.arrays["feature"] == LEAF):
        node = leaf
        while order[node] < 0:
            node = parent[node]
        total[node], count[node] = tables[model.arrays["next"][leaf]], 1
    for node in np.flatnonzero(order > 0)[::-1]:
        total[parent[node]] += total[node]
        count[parent[node]] += count[node]
    return total / np.maximum(count, 1)[:, None]


if __name__ == "__main__":
    sys.exit(main())
