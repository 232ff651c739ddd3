"""The implicit GEMM for small batches on tensor cores: ``cuda.implicit_gemm`` launches it where it is faster."""

from __future__ import annotations

from typing import Final

from conv_advisor.kernels.cuda.family import Family, Tuning
from conv_advisor.kernels.cuda.implicit_gemm_tensor import launch, plan

FAMILY: Final = Family(
    "implicit_gemm_tensor",
    sources=(plan.SOURCE,),
    tuning=Tuning(plan.cuts_for, plan.expected_us, launch.launch, constants=plan, serves=("cuda.implicit_gemm",)),
)
