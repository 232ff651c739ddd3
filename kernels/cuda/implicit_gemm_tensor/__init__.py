"""Implicit GEMM for small batches on tensor cores; ``cuda.implicit_gemm`` launches it where it is faster."""

from __future__ import annotations

from typing import Final

from conv_advisor.kernels.cuda.family import Family, Kernel, Tuning


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.implicit_gemm_tensor import launch, menu, plan

    return Kernel(
        sources=(plan.SOURCE,),
        tuning=Tuning(plan.expected, launch.launch, constants=menu, serves=("cuda.implicit_gemm",)),
    )


FAMILY: Final = Family("implicit_gemm_tensor", kernel=_kernel)
