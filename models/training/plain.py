"""The plain decision tree: scikit-learn on input size, batch, filter, filters, depth and precision only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from conv_advisor.data.errors import InvalidInput, NotEnoughData
from conv_advisor.data.extras import require
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.models.training.teacher import CAP, STEEPNESS
from conv_advisor.models.tree.features import DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conv_advisor.models.costs import Costs

ASKED: Final = ("input size", "batch", "filter", "filters", "depth", "precision")
"""What the tree sees; a precision is its place in `models.tree.features.DTYPES`."""


@dataclass(frozen=True)
class PlainTree:
    """A tree for the ungrouped layers of one layout.

    Parameters
    ----------
    layout : Layout
    variants : tuple of str
    tree : sklearn.tree.DecisionTreeRegressor
        Of what each variant costs.
    """

    layout: Layout
    variants: tuple[str, ...]
    tree: Any

    def order(self, problem: ConvProblem) -> list[str] | None:
        """The variants by what they are expected to cost, least first; None for a layer that it does not cover."""
        return self.orders([problem])[0] if covers(problem, self.layout) else None

    def orders(self, problems: Sequence[ConvProblem]) -> list[list[str]]:
        """The order of each of many problems that the tree covers."""
        costs = self.tree.predict(look(problems)).reshape(len(problems), -1)
        return [[self.variants[place] for place in row] for row in np.argsort(costs, axis=1, kind="stable")]

    def text(self, depth: int = 3) -> str:
        """Its first decisions, and at their ends the variant that costs least."""
        tree = self.tree.tree_
        lines: list[str] = []

        def tell(node: int, level: int, dtypes: tuple[str, ...]) -> None:
            if level == depth or tree.children_left[node] < 0:
                best = self.variants[int(tree.value[node].ravel().argmin())]
                lines.append(f"{'    ' * level}{best} ({tree.n_node_samples[node]:,} layers)")
                return
            is_precision = ASKED[tree.feature[node]] == "precision"
            sides = _precisions(tree, node, dtypes) if is_precision else (dtypes, dtypes)
            words = [" or ".join(side) for side in sides] if is_precision else _words(tree, node)
            children = tree.children_left[node], tree.children_right[node]
            for condition, child, side in zip(words, children, sides, strict=True):
                lines.append(f"{'    ' * level}{condition}:")
                tell(int(child), level + 1, side)

        tell(0, 0, tuple(map(str, DTYPES)))
        return "\n".join(lines)


def plain_tree(costs: Costs, layout: Layout, leaves: int) -> PlainTree:
    """Train the plain tree of a layout.

    Parameters
    ----------
    costs : Costs
    layout : Layout
        Whose ungrouped layers teach it.
    leaves : int
        At most so many leaves; at least 2.

    Raises
    ------
    InvalidInput, NotEnoughData, NotInstalled
    """
    if leaves < 2:
        raise InvalidInput("leaves", leaves, "at least 2")
    require("sklearn")
    from sklearn.tree import DecisionTreeRegressor

    covered = costs.where(lambda problem: covers(problem, layout))
    if not covered.problems:
        raise NotEnoughData(f"no ungrouped layer in {layout} was measured")
    logs = np.nan_to_num(covered.log_slowdown(CAP), nan=CAP)
    tree = DecisionTreeRegressor(max_leaf_nodes=leaves, min_samples_leaf=3, random_state=0)
    tree.fit(look(covered.problems), 1 - np.exp(-STEEPNESS * logs))
    return PlainTree(layout, covered.variants, tree)


def covers(problem: ConvProblem, layout: Layout) -> bool:
    """Whether a tree for this layout is for a problem."""
    return problem.layout is layout and problem.groups == 1


def look(problems: Sequence[ConvProblem]) -> np.ndarray:
    """What the tree sees of problems: `ASKED`, float32 array of shape (n, 6)."""
    return np.array(
        [(problem.h, problem.n, problem.r, problem.k, problem.c, DTYPES.index(problem.dtype)) for problem in problems],
        np.float32,
    )


def _words(tree: Any, node: int) -> tuple[str, str]:
    """Words for both sides of a decision."""
    name, limit = ASKED[tree.feature[node]], int(tree.threshold[node])
    return f"{name} at most {limit:,}", f"{name} above {limit:,}"


def _precisions(tree: Any, node: int, dtypes: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The precisions that reach a node, by the side that they go to."""
    below = {str(dtype) for dtype in DTYPES[: int(tree.threshold[node]) + 1]}
    return tuple(dtype for dtype in dtypes if dtype in below), tuple(dtype for dtype in dtypes if dtype not in below)
