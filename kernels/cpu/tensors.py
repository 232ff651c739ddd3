"""Moves between the caller's tensors and the scratch arrays: layout, precision, padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.cpu.plans import Plan
from conv_advisor.kernels.cpu.threads import Threads

Array = npt.NDArray[Any]
Run = Callable[[Array, Array, Array, Array | None, Array | None], None]
"""Computes y, the third argument, from x and weight, and from bias and residual where the epilogue adds them."""

_COPY_FLOPS = 10
"""Operations that take as long as copying and converting one element."""


def allocate(plan: Plan) -> dict[str, Array]:
    """The plan's scratch arrays, zeroed: elements that no run writes, such as padding, stay zero."""
    return {name: np.zeros(buffer.shape, buffer.dtype) for name, buffer in plan.buffers.items()}


def nchw(problem: ConvProblem, tensor: Array) -> Array:
    """The tensor seen in the order N, C, H, W, or the weight in K, C, R, S, whatever its memory order."""
    return tensor if problem.layout is Layout.NCHW else tensor.transpose(0, 3, 1, 2)


def flat(tensor: Array) -> tuple[Array, tuple[int, ...]]:
    """The memory of a contiguous tensor, viewed in NCHW order, as one vector, and the view's strides in elements."""
    memory = tensor if tensor.flags.c_contiguous else tensor.transpose(0, 2, 3, 1)
    return memory.reshape(-1), tuple(stride // tensor.itemsize for stride in tensor.strides)


def copy(source: Array, target: Array, threads: Threads) -> None:
    """Copy and convert between views of equal shape, in pieces along the longest axis but the last."""

    def copy_piece(piece: tuple[slice, ...]) -> None:
        np.copyto(target[piece], source[piece], casting="same_kind")

    over_pieces(source.shape, source.size, threads, copy_piece)


def over_pieces(shape: tuple[int, ...], size: int, threads: Threads, work: Callable[[tuple[slice, ...]], None]) -> None:
    """Call ``work`` on pieces of a tensor along its longest axis but the last; overflow gives infinity, no warning."""
    axis = int(np.argmax(shape[:-1]))

    def work_on(first: int, last: int) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            work((slice(None),) * axis + (slice(first, last),))

    threads.over(shape[axis], _COPY_FLOPS * size, work_on)


def split_phases(
    source: Array, planes: Array, pad: tuple[int, int], phases: tuple[list[int], list[int]], threads: Threads
) -> None:
    """Copy planes into their zero-padded phases: ``planes[n, c, a, b, i, j] = padded[n, c, i·A + a, j·B + b]``.

    Every A-th row and B-th column are then one phase, read without gaps.

    Parameters
    ----------
    source : array of shape (N, C, H, W)
    planes : float32 array of shape (N, C, A, B, rows, columns)
        Rows and columns beyond the padded source are left as they are.
    pad : (int, int)
        Zeros above and to the left of the source.
    phases : (list of int, list of int)
        The values of a and of b that are needed.
    threads : Threads
    """
    _, _, steps_h, steps_w, rows, columns = planes.shape
    for row_phase in phases[0]:
        top, first_row = _entry(pad[0], row_phase, steps_h)
        for column_phase in phases[1]:
            left, first_column = _entry(pad[1], column_phase, steps_w)
            samples = source[:, :, first_row::steps_h, first_column::steps_w][:, :, : rows - top, : columns - left]
            target = planes[:, :, row_phase, column_phase, top : top + samples.shape[2], left : left + samples.shape[3]]
            copy(samples, target[:, :, : samples.shape[2], : samples.shape[3]], threads)


def _entry(pad: int, phase: int, step: int) -> tuple[int, int]:
    """The first index of a phase that holds data, not padding, and the row (or column) of the source stored there."""
    place = max(0, -(-(pad - phase) // step))
    return place, place * step + phase - pad
