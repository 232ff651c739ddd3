"""How cuConv cuts a problem: filters of a thread, and the planes between its stages."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.parts.source import Source

FILTERS: Final = (16, 4, 1)
"""Filters a thread of the first stage may compute."""
DEFINES: Final = tuple({"FILTERS": filters} for filters in FILTERS)
"""What cuconv.cu is compiled with."""
SOURCE: Final = Source("cuconv", lambda _dtype: DEFINES)


def planes_bytes(problem: ConvProblem) -> int:
    """Temporary planes of cuConv's first stage; none for 1×1."""
    taps = problem.r * problem.s
    return 0 if taps == 1 else 4 * taps * problem.n * problem.k * problem.p * problem.q
