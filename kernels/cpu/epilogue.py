"""The last step on a CPU: bias, residual and activation on float32 sums, then the one rounding to y."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
from numba import vectorize

from conv_advisor.data.epilogue import LEAKY_SLOPE, Activation
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cpu.tensors import Array, copy, nchw, over_pieces
from conv_advisor.kernels.cpu.threads import Threads

_ZERO, _HALF, _ONE, _THREE, _SIX = (np.float32(value) for value in (0, 0.5, 1, 3, 6))
_SLOPE: Final = np.float32(LEAKY_SLOPE)
_SQRT_HALF: Final = np.float32(math.sqrt(0.5))
_SQRT_2_OVER_PI: Final = np.float32(math.sqrt(2 / math.pi))
_CUBE: Final = np.float32(0.044715)


def _relu(v: Any) -> Any:
    return _ZERO if v < _ZERO else v


def _relu6(v: Any) -> Any:
    return _ZERO if v < _ZERO else _SIX if v > _SIX else v


def _leaky_relu(v: Any) -> Any:
    return _SLOPE * v if v < _ZERO else v


def _silu(v: Any) -> Any:
    return v / (_ONE + math.exp(-v))


def _gelu(v: Any) -> Any:
    return _HALF * v * (_ONE + math.erf(_SQRT_HALF * v))


def _gelu_tanh(v: Any) -> Any:
    return _HALF * v * (_ONE + math.tanh(_SQRT_2_OVER_PI * (v + _CUBE * v * v * v)))


def _hardswish(v: Any) -> Any:
    gate = v + _THREE
    return v * (_ZERO if gate < _ZERO else _SIX if gate > _SIX else gate) / _SIX


def _sigmoid(v: Any) -> Any:
    return _ONE / (_ONE + math.exp(-v))


_FUNCTIONS: Final = {
    Activation.RELU: _relu,
    Activation.RELU6: _relu6,
    Activation.LEAKY_RELU: _leaky_relu,
    Activation.SILU: _silu,
    Activation.GELU: _gelu,
    Activation.GELU_TANH: _gelu_tanh,
    Activation.HARDSWISH: _hardswish,
    Activation.SIGMOID: _sigmoid,
}


@cache
def compiled_activation(activation: Activation) -> Any:
    """The activation as a NumPy function of float32 that passes NaN through, or None for none; cached as by `compiled`.

    Each is compiled on first use: compiling all would add half a second to every worker's start.
    """
    function = _FUNCTIONS.get(activation)
    if function is None:
        return None
    try:
        return vectorize(["float32(float32)"], nopython=True, cache=True)(function)
    except (RuntimeError, OSError):
        return vectorize(["float32(float32)"], nopython=True)(function)


@dataclass(frozen=True, slots=True)
class Output:
    """A part of y, and the same part of the bias and residual added to it.

    Parameters
    ----------
    y : array of shape (..., K, P, Q)
    bias : array of shape (K,), optional
    residual : array of y's shape, optional
    activation : callable (array, out), optional
    """

    y: Array
    bias: Array | None = None
    residual: Array | None = None
    activation: Any = None

    @classmethod
    def of(cls, problem: ConvProblem, y: Array, bias: Array | None, residual: Array | None) -> Output:
        """All of y, seen in the order N, C, H, W."""
        residual_nchw = None if residual is None else nchw(problem, residual)
        return cls(nchw(problem, y), bias, residual_nchw, compiled_activation(problem.epilogue.activation))

    def images(self, part: slice | int) -> Output:
        """The part for some images, or for one."""
        return replace(self, y=self.y[part], residual=None if self.residual is None else self.residual[part])

    def filters(self, part: slice) -> Output:
        """The part for some filters."""
        bias = None if self.bias is None else self.bias[part]
        return replace(self._planes(part, slice(None)), bias=bias)

    def rows(self, part: slice) -> Output:
        """The part for some output rows."""
        return self._planes(slice(None), part)

    def write(self, sums: Array, threads: Threads) -> None:
        """Apply the epilogue to float32 sums of y's shape, in place, and round them into y; sums may be y itself."""
        if self.bias is not None or self.residual is not None or self.activation is not None:
            over_pieces(sums.shape, sums.size, threads, lambda piece: self._end(sums, piece))
        if sums is not self.y:
            copy(sums, self.y, threads)

    def _planes(self, filters: slice, rows: slice) -> Output:
        piece = (..., filters, rows, slice(None))
        return replace(self, y=self.y[piece], residual=None if self.residual is None else self.residual[piece])

    def _end(self, sums: Array, piece: tuple[slice, ...]) -> None:
        part = sums[piece]
        if self.bias is not None:
            np.add(part, np.broadcast_to(self.bias[:, None, None], sums.shape)[piece], out=part)
        if self.residual is not None:
            np.add(part, self.residual[piece], out=part)
        if self.activation is not None:
            self.activation(part, out=part)
