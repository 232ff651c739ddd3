"""Predictions for many problems at once: features and walk on arrays, the rest as `Predictor.predict` does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.ranking.predictor import Prediction, Predictor
from conv_advisor.models.tree.arrays import NODE_ARRAYS
from conv_advisor.models.tree.features import Quantities, codes_of
from conv_advisor.models.tree.file import TreeModel


def predict_many(
    predictor: Predictor,
    problems: Sequence[ConvProblem],
    sizes: np.ndarray,
    *,
    max_workspace_bytes: int,
    is_deterministic: bool,
) -> list[Prediction | None]:
    """What `Predictor.predict` gives for each problem.

    Parameters
    ----------
    predictor : Predictor
    problems : sequence of ConvProblem
    sizes : int64 array of shape (N, 16)
        The same problems, as in `data.table`.
    max_workspace_bytes : int
    is_deterministic : bool
    """
    model = predictor.model
    if model is None or not len(problems):
        return [None] * len(problems)
    quantities = Quantities(sizes, *codes_of(problems))
    leaves = walk_many(model, quantities.features())
    limits = max_workspace_bytes, is_deterministic
    return [
        predictor.first(problem, leaf, flops, n_bytes, *limits)
        for problem, leaf, flops, n_bytes in zip(
            problems, leaves.tolist(), quantities.flops.tolist(), quantities.bytes.tolist(), strict=True
        )
    ]


def walk_many(model: TreeModel, values: np.ndarray) -> np.ndarray:
    """`models.tree.file.walk` for every row of values, int64 array of shape (N,)."""
    feature, value, following = (model.arrays[name] for name in NODE_ARRAYS)
    rounded = values.astype(np.float32, copy=False)
    nodes = np.zeros(len(values), np.int64)
    rows = np.flatnonzero(feature[nodes] >= 0)
    while len(rows):
        at = nodes[rows]
        nodes[rows] = at = following[at] + (rounded[rows, feature[at]] > value[at])
        rows = rows[feature[at] >= 0]
    return nodes
