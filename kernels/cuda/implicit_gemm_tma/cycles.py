"""Cycles of what every kind of tile of the implicit GEMM fed by the tensor memory accelerator has to do."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from conv_advisor.kernels.cuda.implicit_gemm_tma import menu
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import ROW_BYTES, row_bytes_of, stages_of
from conv_advisor.kernels.cuda.parts.shapes import Problems, is_dense

_CACHED_BYTES: Final = 36e6
"""How much of x, weight and y the H200's L2 cache holds."""
_DISPLACED: Final = 2.0
"""Bytes that it does not find for each beyond those: what comes in turn after turn displaces what comes next."""
_SHARPNESS: Final = 4
"""The power in the sum of what passes side by side: the larger, the more is it the longest alone."""


def side_by_side(*cycles: Any) -> Any:
    """What passes at a time: the longest, and more where others are about as long."""
    return sum(each**_SHARPNESS for each in cycles) ** (1 / _SHARPNESS)


def memory_cycles(problems: Problems, processors: int) -> Any:
    """What moving x, weight and y takes, each once."""
    costs, item = menu.SMALL_COSTS, problems.dtype.itemsize_bytes
    weight = problems.k * problems.c * problems.r * problems.s
    read = (problems.n * problems.h * problems.w * problems.c + weight) * item
    written = problems.n * problems.p * problems.q * problems.k * item
    moved = read + written
    uncached = np.minimum(moved, np.maximum(0, (moved - _CACHED_BYTES) * _DISPLACED))
    return (read / costs.read_bytes + written / costs.written_bytes + uncached / costs.memory_bytes) / processors


def row_cycles(problems: Problems, pixel: float) -> tuple[Any, Any]:
    """Cycles of a multiprocessor for a pixel, `pixel` in im2col mode, and for a filter: in the mean of all stages.

    In im2col mode half a row takes about as long as a whole one.
    """
    row_bytes, dense, costs = row_bytes_of(problems), is_dense(problems), menu.SMALL_COSTS
    is_ragged = problems.c * problems.dtype.itemsize_bytes % row_bytes > 0
    ragged = is_ragged * problems.r * problems.s / stages_of(problems)
    whole = np.where(dense, row_bytes, ROW_BYTES[1]) / costs.loaded_bytes
    of_pixel = np.where(dense, whole, np.where(row_bytes == ROW_BYTES[1], pixel, costs.pixel))
    return of_pixel + ragged * (costs.ragged - of_pixel), whole + ragged * (costs.ragged - whole)
