"""How cuConv cuts a problem: filters of a thread, and the planes between its stages."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.parts.arithmetic import filters_per_thread
from conv_advisor.kernels.cuda.parts.source import Source

FILTERS: Final = (16, 4, 1)
"""Filters that a thread of the first stage may compute."""
LEAST_THREADS: Final = 256
"""Threads that keep a multiprocessor busy, each with many loads in flight. Chosen on the seven layers of the paper's
tables 3 to 5, where it gives the fastest of the three choices of `FILTERS` (docs/kernels.md)."""
DEFINES: Final = tuple({"FILTERS": filters} for filters in FILTERS)
"""The definitions that cuconv.cu is compiled with."""
SOURCE: Final = Source("cuconv", lambda _dtype: DEFINES)


def filters_per_block(problem: ConvProblem, processors: int) -> int:
    """Filters whose rows a block holds; more than one is the work fusion that the paper leaves to future work."""
    threads = problem.gemm_m * problem.r * problem.s
    return filters_per_thread(FILTERS, problem.k, threads, processors, LEAST_THREADS)


def planes_bytes(problem: ConvProblem) -> int:
    """Temporary planes of cuConv's first stage; none for 1×1."""
    taps = problem.r * problem.s
    return 0 if taps == 1 else 4 * taps * problem.n * problem.k * problem.p * problem.q
