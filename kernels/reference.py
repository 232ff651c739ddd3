"""The specification: convolution and its epilogue in float64 NumPy, and random operands to try them on."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, pi, sqrt
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from conv_advisor.data.epilogue import LEAKY_SLOPE, Activation, Epilogue
from conv_advisor.data.problem import ConvProblem, DType, Layout

Array = npt.NDArray[Any]
Float64s = npt.NDArray[np.float64]

HOST_DTYPE: Final[dict[DType, np.dtype[Any]]] = {
    DType.FLOAT32: np.dtype(np.float32),
    DType.TF32: np.dtype(np.float32),
    DType.FLOAT16: np.dtype(np.float16),
    DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
"""The element type of a host array of each precision."""

_GATHER_ELEMENTS: Final = 2**22
"""Elements that `convolve_at` gathers at a time: 32 MiB of float64."""


def convolve(
    problem: ConvProblem, x: Array, weight: Array, bias: Array | None = None, residual: Array | None = None
) -> Float64s:
    """Convolve in float64, one filter tap at a time, and apply the problem's epilogue.

    Parameters
    ----------
    problem : ConvProblem
    x, weight : array of x_shape and of weight_shape
        Any floating dtype; their values are taken as exact.
    bias, residual : array of shape (k,) and of y_shape
        Where the epilogue adds them.

    Returns
    -------
    y : float64 array of y_shape

    Notes
    -----
    Padding zeros are multiplied like any other input, so an infinite weight over padding gives NaN.
    """
    sums = _sums(problem, x, weight)
    residual_nchw = None if residual is None else nchw(problem, residual)
    y, _ = ended(problem.epilogue, sums, None if bias is None else bias[:, None, None], residual_nchw)
    return np.ascontiguousarray(_ordered(problem, y))


def _sums(problem: ConvProblem, x: Array, weight: Array) -> Float64s:
    """The convolution alone, in the order N, K, P, Q."""
    n, c, k, p, q, groups = problem.n, problem.c, problem.k, problem.p, problem.q, problem.groups
    padded = np.pad(nchw(problem, x), pads(problem)).astype(np.float64)
    taps = nchw(problem, weight).astype(np.float64).reshape(groups, k // groups, c // groups, problem.r, problem.s)
    y = np.zeros((n, groups, k // groups, p * q))
    with np.errstate(invalid="ignore"):
        for row in range(problem.r):
            for column in range(problem.s):
                top, left = row * problem.dilation_h, column * problem.dilation_w
                window = padded[:, :, top :: problem.stride_h, left :: problem.stride_w][:, :, :p, :q]
                y += taps[..., row, column] @ window.reshape(n, groups, c // groups, p * q)
    return y.reshape(n, k, p, q)


def ended(
    epilogue: Epilogue, sums: Float64s, bias: Array | None = None, residual: Array | None = None
) -> tuple[Float64s, float]:
    """Apply an epilogue to sums of products, in float64.

    Parameters
    ----------
    epilogue : Epilogue
    sums : float64 array
    bias, residual : array, optional
        Of any floating dtype, broadcast against the sums; given where the epilogue adds them.

    Returns
    -------
    y : float64 array of the shape of sums
    scale : float
        The largest magnitude of a finite sum before the activation.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        for is_added, added in ((epilogue.bias, bias), (epilogue.residual, residual)):
            if is_added and added is not None:
                sums = sums + added.astype(np.float64)
        scale = float(np.abs(sums, where=np.isfinite(sums), out=np.zeros_like(sums)).max(initial=0.0))
        return activate(epilogue.activation, sums), scale


def activate(activation: Activation, v: Float64s) -> Float64s:
    """Apply an activation to every value; NaN stays NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        y: Float64s = _FUNCTIONS[activation](v)
        return y


def _erf(v: Float64s) -> Float64s:
    return np.array([erf(value) for value in v.ravel().tolist()]).reshape(v.shape)


_FUNCTIONS: Final[dict[Activation, Callable[[Float64s], Float64s]]] = {
    Activation.NONE: lambda v: v,
    Activation.RELU: lambda v: np.maximum(v, 0),
    Activation.RELU6: lambda v: np.clip(v, 0, 6),
    Activation.LEAKY_RELU: lambda v: np.where(v < 0, LEAKY_SLOPE * v, v),
    Activation.SILU: lambda v: v / (1 + np.exp(-v)),
    Activation.GELU: lambda v: 0.5 * v * (1 + _erf(v / sqrt(2))),
    Activation.GELU_TANH: lambda v: 0.5 * v * (1 + np.tanh(sqrt(2 / pi) * (v + 0.044715 * v**3))),
    Activation.HARDSWISH: lambda v: v * np.clip(v + 3, 0, 6) / 6,
    Activation.SIGMOID: lambda v: 1 / (1 + np.exp(-v)),
}


def convolve_at(problem: ConvProblem, x: Array, weight: Array, outputs: npt.NDArray[np.int64]) -> Float64s:
    """The convolution without its epilogue, in float64, at chosen outputs only and in bounded memory.

    Parameters
    ----------
    problem : ConvProblem
    x, weight : array of x_shape and of weight_shape
    outputs : int64 array of shape (count, 4)
        (n, k, p, q) of each output.

    Returns
    -------
    sums : float64 array of shape (count,)
    """
    step = max(1, _GATHER_ELEMENTS // problem.gemm_k)
    x, weight = nchw(problem, x), nchw(problem, weight)
    with np.errstate(invalid="ignore"):
        parts = [
            _dot_products(problem, x, weight, outputs[first : first + step]) for first in range(0, len(outputs), step)
        ]
    return np.concatenate(parts)


def expected_at(
    problem: ConvProblem,
    x: Array,
    weight: Array,
    outputs: npt.NDArray[np.int64],
    bias: Array | None = None,
    residual: Array | None = None,
) -> tuple[Float64s, float]:
    """`convolve` at chosen outputs, by matrix products where that is all of y; and the scale that `ended` gives."""
    if len(outputs) < problem.n * problem.k * problem.p * problem.q:
        sums = convolve_at(problem, x, weight, outputs)
    else:
        sums = _sums(problem, x, weight)[tuple(outputs.T)]
    added = None if residual is None else take(problem, residual, outputs)
    return ended(problem.epilogue, sums, None if bias is None else bias[outputs[:, 1]], added)


def take(problem: ConvProblem, y: Array, outputs: npt.NDArray[np.int64]) -> Array:
    """The elements of y, an array of y_shape, at the outputs (n, k, p, q)."""
    picked: Array = nchw(problem, y)[tuple(outputs.T)]
    return picked


def random_operands(problem: ConvProblem, seed: int) -> tuple[Array, Array]:
    """Make an input and a weight, uniform in (−1, 1), rounded to the problem's dtype.

    Parameters
    ----------
    problem : ConvProblem
    seed : int

    Returns
    -------
    x, weight : array of x_shape and of weight_shape
    """
    random = np.random.default_rng(seed)
    dtype = HOST_DTYPE[problem.dtype]
    x, weight = (
        (random.random(shape, dtype=np.float32) * 2 - 1).astype(dtype, copy=False)
        for shape in (problem.x_shape, problem.weight_shape)
    )
    return x, weight


def random_ends(problem: ConvProblem, seed: int) -> tuple[Array | None, Array | None]:
    """Make the bias and the residual that the epilogue adds, as `random_operands` makes x and weight.

    Returns
    -------
    bias, residual : array of shape (k,) and of y_shape, or None
    """
    random = np.random.default_rng((seed, 1))
    dtype = HOST_DTYPE[problem.dtype]
    ends = {
        name: (random.random(shape, dtype=np.float32) * 2 - 1).astype(dtype, copy=False)
        for name, shape in problem.shapes.items()
        if name in ("bias", "residual")
    }
    return ends.get("bias"), ends.get("residual")


def _dot_products(problem: ConvProblem, x: Array, weight: Array, outputs: npt.NDArray[np.int64]) -> Float64s:
    n, k, p, q = (index[:, None, None, None] for index in outputs.T)
    depth = problem.c // problem.groups
    channel = k // problem.gemm_n * depth + np.arange(depth)[:, None, None]
    row = p * problem.stride_h - problem.pad_h + np.arange(problem.r)[:, None] * problem.dilation_h
    column = q * problem.stride_w - problem.pad_w + np.arange(problem.s) * problem.dilation_w
    is_inside = (row >= 0) & (row < problem.h) & (column >= 0) & (column < problem.w)
    inputs = x[n, channel, np.clip(row, 0, problem.h - 1), np.clip(column, 0, problem.w - 1)].astype(np.float64)
    taps = weight[k[:, 0, 0, 0]].astype(np.float64)
    products: Float64s = np.where(is_inside, inputs, 0.0) * taps
    sums: Float64s = products.sum(axis=(1, 2, 3))
    return sums


def pads(problem: ConvProblem) -> tuple[tuple[int, int], ...]:
    """Zeros added before and after each axis of x, in the order N, C, H, W, as `numpy.pad` takes them."""
    return (0, 0), (0, 0), (problem.pad_h, problem.pad_h_end), (problem.pad_w, problem.pad_w_end)


def nchw(problem: ConvProblem, tensor: Array) -> Array:
    """A tensor seen in the order N, C, H, W, or the weight in K, C, R, S, whatever its memory order."""
    return tensor if problem.layout is Layout.NCHW else tensor.transpose(0, 3, 1, 2)


def _ordered(problem: ConvProblem, tensor: Float64s) -> Float64s:
    return tensor if problem.layout is Layout.NCHW else tensor.transpose(0, 2, 3, 1)
