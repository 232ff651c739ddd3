"""Cycles of the work common to all kinds of tiles of the implicit GEMM fed by the tensor memory accelerator."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from conv_advisor.kernels.cuda.implicit_gemm_tma import menu
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import ROW_BYTES, row_bytes_of, stages_of
from conv_advisor.kernels.cuda.parts.shapes import Problems, is_dense

_CACHED_BYTES: Final = 36e6
"""Bytes of x, weight and y that the H200's L2 cache holds."""
_DISPLACED: Final = 2.0
"""Cache misses, in bytes, per byte beyond those: in cyclic use, bytes just loaded displace those needed next."""


def side_by_side(*cycles: Any) -> Any:
    """Cycles of concurrent work: the longest part, and more where other parts are about as long.

    Their fourth powers add up: the larger the power, the more the longest part would decide alone.
    """
    squares = [part * part for part in cycles]
    return np.sqrt(np.sqrt(sum(square * square for square in squares)))


def memory_cycles(problems: Problems, processors: int) -> Any:
    """Cycles to move x, weight and y once each."""
    costs, itemsize = menu.SMALL_COSTS, problems.dtype.itemsize_bytes
    weight = problems.k * problems.c * problems.r * problems.s
    read = (problems.n * problems.h * problems.w * problems.c + weight) * itemsize
    written = problems.n * problems.p * problems.q * problems.k * itemsize
    moved = read + written
    uncached = np.minimum(moved, np.maximum(0, (moved - _CACHED_BYTES) * _DISPLACED))
    return (read / costs.read_bytes + written / costs.written_bytes + uncached / costs.memory_bytes) / processors


def row_cycles(problems: Problems, pixel: float) -> tuple[Any, Any]:
    """Cycles of a multiprocessor for a pixel, `pixel` in im2col mode, and for a filter, averaged over all stages.

    In im2col mode half a row takes about as long as a whole row.
    """
    row_bytes, dense, costs = row_bytes_of(problems), is_dense(problems), menu.SMALL_COSTS
    is_ragged = problems.c * problems.dtype.itemsize_bytes % row_bytes > 0
    ragged = is_ragged * problems.r * problems.s / stages_of(problems)
    whole_row = np.where(dense, row_bytes, ROW_BYTES[1]) / costs.loaded_bytes
    of_pixel = np.where(dense, whole_row, np.where(row_bytes == ROW_BYTES[1], pixel, costs.pixel))
    return of_pixel + ragged * (costs.ragged - of_pixel), whole_row + ragged * (costs.ragged - whole_row)
