"""Implicit GEMM in one launch, by FFMA or, where that is expected to be faster, the tensor-core kernel."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.family import Family, Kernel, Tuning, cuda_variant
from conv_advisor.kernels.cuda.parts.rules import NCHW
from conv_advisor.kernels.variant import Algorithm, all_of, groups_1, no_workspace

MOST_TAPS: Final = 1024
"""Taps of a filter; their table is in shared memory."""
MOST_GATHERED_TAPS: Final = 57
"""Taps where two-byte elements are gathered one by one: the guards of 8 rows of any phase are bits of a 64-bit word."""


def most_taps(problem: ConvProblem) -> int:
    """Taps that a filter may have."""
    return MOST_TAPS if problem.dtype.itemsize_bytes == 4 else MOST_GATHERED_TAPS


def _fits_table_of_taps(problem: ConvProblem, _device: Device) -> str | None:
    taps, most = problem.r * problem.s, most_taps(problem)
    return None if taps <= most else f"the filter has {taps} taps, above {most}"


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.implicit_gemm import launch, menu, plan

    return Kernel(
        sources=(plan.SOURCE,),
        prepare={"cuda.implicit_gemm": launch.prepare},
        tuning=Tuning(plan.expected, launch.launch, constants=menu),
    )


FAMILY: Final = Family(
    "implicit_gemm",
    kernel=_kernel,
    variants=(
        cuda_variant(
            "cuda.implicit_gemm",
            Algorithm.IMPLICIT_GEMM,
            why_not=all_of(NCHW, groups_1, _fits_table_of_taps),
            workspace_bytes=no_workspace,
            source="Chetlur et al.: cuDNN: Efficient Primitives for Deep Learning, arXiv:1410.0759",
            kernel=_kernel,
        ),
    ),
)
