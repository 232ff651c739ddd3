"""Which outputs of a result are compared with the reference, and how far they are from it."""

from __future__ import annotations

from math import sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.reference import Array, Float64s, nchw, pads

SAMPLES: Final = 1024
"""Outputs compared when the operands are random, since such outputs are all alike."""
GIVEN_SAMPLES: Final = 2048
"""Outputs compared when the operands are a caller's and comparing all would cost more than the convolution."""
_MOST_OUTPUTS: Final = 2**22
_MOST_PRODUCTS: Final = 2**31
"""Up to this many outputs and products, all outputs are compared: 0.1 s of BLAS on one core, less than timing takes."""


def n_compared(problem: ConvProblem, *, is_given: bool) -> int:
    """How many outputs a result is compared at.

    Parameters
    ----------
    problem : ConvProblem
    is_given : bool
        Whether a caller gave the operands. All outputs are then compared, where the products in float64 are few enough
        to cost no more than verifying and timing the convolution does; else `GIVEN_SAMPLES`, half of them chosen by
        cancellation. With random operands, `SAMPLES`.
    """
    total = problem.n * problem.k * problem.p * problem.q
    if is_given and total <= _MOST_OUTPUTS and total * problem.gemm_k <= _MOST_PRODUCTS:
        return total
    return min(total, GIVEN_SAMPLES if is_given else SAMPLES)


def given_outputs(problem: ConvProblem, x: Array, weight: Array) -> npt.NDArray[np.int64]:
    """Outputs to compare when a caller gave the operands, int64 array of shape (`n_compared`, 4).

    Where not all are compared: first those that may cancel most, of the largest windows of x and the largest filters,
    whose products are the largest whatever their sum is; then those of `sample_outputs`.
    """
    count = n_compared(problem, is_given=True)
    sampled = sample_outputs(problem, count)
    if count == problem.n * problem.k * problem.p * problem.q:
        return sampled
    shape = (problem.n, problem.k, problem.p, problem.q)
    chosen = np.concatenate([_largest_products(problem, x, weight, count // 2), sampled])
    flat = np.ravel_multi_index(tuple(chosen.T), shape)
    _, first_seen = np.unique(flat, return_index=True)
    distinct = flat[np.sort(first_seen)[:count]]
    return np.stack(np.unravel_index(distinct, shape), axis=1).astype(np.int64)


def _largest_products(problem: ConvProblem, x: Array, weight: Array, count: int) -> npt.NDArray[np.int64]:
    """Outputs of the largest windows of x and the largest filters of their group, by their norms."""
    n, groups, p, q = problem.n, problem.groups, problem.p, problem.q
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.square(nchw(problem, x), dtype=np.float32)
        energy = squares.reshape(n, groups, problem.c // groups, problem.h, problem.w).sum(axis=2)
        taps = np.square(nchw(problem, weight), dtype=np.float32).sum(axis=(1, 2, 3))
    padded = np.pad(energy, pads(problem))
    windows = np.zeros((n, groups, p, q), np.float32)
    for row in range(problem.r):
        for column in range(problem.s):
            top, left = row * problem.dilation_h, column * problem.dilation_w
            windows += padded[:, :, top :: problem.stride_h, left :: problem.stride_w][:, :, :p, :q]
    side = max(1, int(sqrt(count)))
    places = _largest(windows.ravel(), count // side)
    filters = [_largest(part, side) for part in taps.reshape(groups, -1)]
    image, group, row_of, column_of = np.unravel_index(places, windows.shape)
    per_group = problem.k // groups
    outputs = [
        (image_index, group_index * per_group + k, row_index, column_index)
        for image_index, group_index, row_index, column_index in zip(
            image.tolist(), group.tolist(), row_of.tolist(), column_of.tolist(), strict=True
        )
        for k in filters[group_index].tolist()
    ]
    return np.array(outputs, np.int64)


def _largest(values: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.int64]:
    """Indices of the ``count`` largest values, or of all where there are fewer; NaN counts as the largest."""
    count = min(count, len(values))
    ranked = np.where(np.isnan(values), np.inf, values)
    return np.argpartition(ranked, len(ranked) - count)[len(ranked) - count :]


def sample_outputs(problem: ConvProblem, count: int = SAMPLES, seed: int = 0) -> npt.NDArray[np.int64]:
    """Choose outputs to compare where comparing all of them would take too long.

    Parameters
    ----------
    problem : ConvProblem
    count : int
    seed : int

    Returns
    -------
    outputs : int64 array of shape (count, 4)
        Distinct (n, k, p, q): the corners of y, then outputs of the border rows and columns, which read padding, then
        random ones; all of y where it has no more than count.
    """
    shape = (problem.n, problem.k, problem.p, problem.q)
    total = problem.n * problem.k * problem.p * problem.q
    if total <= count:
        return np.stack(np.unravel_index(np.arange(total), shape), axis=1).astype(np.int64)
    random = np.random.default_rng(seed)
    corners = np.array(np.meshgrid(*([0, size - 1] for size in shape))).reshape(4, -1)
    edges = [random.integers(0, size, (4, count // 8)) for size in shape]
    edges[2][0], edges[2][1], edges[3][2], edges[3][3] = 0, problem.p - 1, 0, problem.q - 1
    flat = np.concatenate(
        [
            np.ravel_multi_index(tuple(corners), shape),
            np.ravel_multi_index(tuple(edge.ravel() for edge in edges), shape),
            random.choice(total, count, replace=False),
        ]
    )
    _, first_seen = np.unique(flat, return_index=True)
    chosen = flat[np.sort(first_seen)[:count]]
    return np.stack(np.unravel_index(chosen, shape), axis=1).astype(np.int64)


def not_finite(problem: ConvProblem, y: Array) -> npt.NDArray[np.int64]:
    """The first outputs of y that are not finite, at most `SAMPLES`, as int64 array of shape (count, 4)."""
    flat = np.flatnonzero(~np.isfinite(y).ravel())[:SAMPLES]
    index = np.stack(np.unravel_index(flat, y.shape), axis=1).astype(np.int64)
    return index if problem.layout is Layout.NCHW else index[:, [0, 3, 1, 2]]


def max_error(y: Array, reference: Float64s, scale: float = 0.0) -> float:
    """How far a result is from the reference: max |y − reference| / max |reference|.

    Parameters
    ----------
    y : array
        The result to judge, of any floating dtype.
    reference : float64 array of the same shape
    scale : float
        The largest sum before the activation. Errors are relative to it where it is larger than the reference, since an
        activation that shrinks the sums leaves some of their errors as they were.

    Returns
    -------
    error : float
        Absolute where the reference is zero everywhere. Infinite where only one of y and the reference, rounded to the
        dtype of y, is NaN or infinite: NaN matches only NaN, and an infinity only one of its sign.
    """
    with np.errstate(over="ignore"):
        rounded = reference.astype(y.dtype)
    is_finite = np.isfinite(rounded)
    special, finite = y[~is_finite].astype(np.float64), y[is_finite].astype(np.float64)
    if not np.array_equal(special, rounded[~is_finite].astype(np.float64), equal_nan=True):
        return float("inf")
    if not np.isfinite(finite).all():
        return float("inf")
    expected = reference[is_finite]
    largest = max(scale, float(np.abs(expected).max(initial=0.0))) or 1.0
    return float(np.abs(finite - expected).max(initial=0.0) / largest)
