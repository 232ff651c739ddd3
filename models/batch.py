"""Predictions for many problems at once: features, walk and roofline on arrays, the rest as `Advisor.predict` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from data.problem import ConvProblem, Layout
from models.advisor import Advisor, Prediction
from models.features import DTYPES, FEATURES, MOST_ALIGNED
from models.tree_file import TreeModel

_CODES: Final = {dtype: code for code, dtype in enumerate(DTYPES)}


def predict_many(
    advisor: Advisor,
    problems: Sequence[ConvProblem],
    sizes: np.ndarray,
    *,
    max_workspace_bytes: int,
    is_deterministic: bool,
) -> list[Prediction | None]:
    """What `Advisor.predict` gives for each problem.

    Parameters
    ----------
    advisor : Advisor
    problems : sequence of ConvProblem
    sizes : int64 array of shape (N, 14)
        Of the same problems, as in `data.table`.
    max_workspace_bytes : int
    is_deterministic : bool
    """
    model = advisor.model
    if model is None or not len(problems):
        return [None] * len(problems)
    quantities = _Quantities(problems, sizes)
    places = walk_many(model, quantities.features())
    roofline_ms = _roofline_ms(model, places, quantities)
    limits = max_workspace_bytes, is_deterministic
    return [
        advisor.first(problem, place, least_ms, n_bytes, *limits)
        for problem, place, least_ms, n_bytes in zip(
            problems, places.tolist(), roofline_ms.tolist(), quantities.bytes.tolist(), strict=True
        )
    ]


def features_of(problems: Sequence[ConvProblem], sizes: np.ndarray) -> np.ndarray:
    """`models.features.features` of many problems, on arrays.

    Returns
    -------
    float32 array of shape (N, n_features)
    """
    return _Quantities(problems, sizes).features()


def walk_many(model: TreeModel, values: np.ndarray) -> np.ndarray:
    """`models.tree_file.walk` for every row of values, int64 array of shape (N,)."""
    feature, threshold, left, right, place = (
        model.arrays[name] for name in ("feature", "threshold", "left", "right", "place")
    )
    exact = values.astype(np.float64)
    nodes = np.zeros(len(values), np.int64)
    rows = np.flatnonzero(feature[nodes] >= 0)
    while len(rows):
        at = nodes[rows]
        is_below = exact[rows, feature[at]] <= threshold[at]
        nodes[rows] = at = np.where(is_below, left[at], right[at])
        rows = rows[feature[at] >= 0]
    return place[nodes].astype(np.int64)


def _roofline_ms(model: TreeModel, places: np.ndarray, of: _Quantities) -> np.ndarray:
    """`models.costs.roofline_ms` of every problem, by its leaf."""
    flops_per_ms, bytes_per_ms, least_ms = model.arrays["roofline"][places].astype(np.float64).T
    found: np.ndarray = np.maximum(np.maximum(of.flops / flops_per_ms, of.bytes / bytes_per_ms), least_ms)
    return found


class _Quantities:
    """What features are made of; float64 arrays, since products of sizes overflow integers.

    A product is exact below 2**53, and above it rounded as Python rounds where it divides integers or takes logarithms.
    """

    def __init__(self, problems: Sequence[ConvProblem], sizes: np.ndarray) -> None:
        self.dtype = np.array([_CODES[problem.dtype] for problem in problems])
        self.is_nhwc = np.array([problem.layout is Layout.NHWC for problem in problems])
        self.columns = sizes.T
        n, c, h, w, k, r, s, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups = sizes.T
        self.p = (h + 2 * pad_h - dilation_h * (r - 1) - 1) // stride_h + 1
        self.q = (w + 2 * pad_w - dilation_w * (s - 1) - 1) // stride_w + 1
        self.gemm_m, self.gemm_n, self.gemm_k = n * self.p * self.q, k // groups, c // groups * r * s
        itemsize = np.array([dtype.itemsize_bytes for dtype in DTYPES])[self.dtype]
        self.x_bytes, self.weight_bytes = n * c * h * w * itemsize, k * self.gemm_k * itemsize
        self.y_bytes = self.gemm_m * k * itemsize
        self.bytes = self.x_bytes + self.weight_bytes + self.y_bytes
        self.flops = 2.0 * self.gemm_m * k * self.gemm_k

    def features(self) -> np.ndarray:
        """The values of `FEATURES`, in their order."""
        n, c, h, w, k, r, s, stride_h, stride_w, _, _, dilation_h, dilation_w, groups = self.columns
        p, q, gemm_m, gemm_n, gemm_k = self.p, self.q, self.gemm_m, self.gemm_n, self.gemm_k
        log_flops, log_bytes = np.log2(self.flops), np.log2(self.bytes)
        tiles_64, tiles_128 = (_tiles(gemm_m, tile) * _tiles(gemm_n, tile) * 1.0 * groups for tile in (64, 128))
        values = np.empty((len(FEATURES), len(n)), np.float64)
        values[0], values[1] = self.dtype, self.is_nhwc
        values[2:10] = np.log2(np.stack((n, c, h, w, k, r, s, groups)))
        values[10], values[11] = np.maximum(stride_h, stride_w), np.maximum(dilation_h, dilation_w)
        values[12:16] = np.log2(np.stack((p * q, gemm_m, gemm_n, gemm_k)))
        values[16], values[17] = log_flops, log_bytes
        values[18:21] = np.log2(np.stack((self.x_bytes, self.weight_bytes, self.y_bytes)))
        values[21] = log_flops - log_bytes
        values[22:27] = np.log2(
            np.stack((k / c, self.x_bytes / self.weight_bytes, tiles_64, tiles_128, _tiles(gemm_k, 32) / tiles_64))
        )
        values[27], values[28], values[29] = _fill(gemm_m, 128), _fill(gemm_n, 64), _fill(gemm_n, 128)
        values[30] = _fill(p, 2) * _fill(q, 2)
        values[31] = _fill(p, np.maximum(33 - r, 1)) * _fill(q, np.maximum(33 - s, 1))
        values[32], values[33], values[34] = _alignment(c), _alignment(k), _alignment(h * w)
        return values.T.astype(np.float32)


def _tiles(size: np.ndarray, tile: int) -> np.ndarray:
    return -(-size // tile)


def _fill(size: np.ndarray, tile: int | np.ndarray) -> np.ndarray:
    filled: np.ndarray = size / (-(-size // tile) * tile)
    return filled


def _alignment(size: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.log2(np.minimum(size & -size, MOST_ALIGNED))
    return found
