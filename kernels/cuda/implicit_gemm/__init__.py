"""The implicit GEMM in one launch; where that is expected to be faster, by the tensor cores' own kernel."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.family import Family, Tuning, cuda_variant
from conv_advisor.kernels.cuda.implicit_gemm import launch, menu, plan
from conv_advisor.kernels.cuda.parts.rules import NCHW
from conv_advisor.kernels.variant import Algorithm, all_of, groups_1, no_workspace


def _fits_table_of_taps(problem: ConvProblem, _device: Device) -> str | None:
    taps, most = problem.r * problem.s, plan.most_taps(problem)
    return None if taps <= most else f"the filter has {taps} taps, above {most}"


FAMILY: Final = Family(
    "implicit_gemm",
    sources=(plan.SOURCE,),
    variants=(
        cuda_variant(
            "cuda.implicit_gemm",
            Algorithm.IMPLICIT_GEMM,
            why_not=all_of(NCHW, groups_1, _fits_table_of_taps),
            workspace_bytes=no_workspace,
            source="Chetlur et al.: cuDNN: Efficient Primitives for Deep Learning, arXiv:1410.0759",
            prepare=launch.prepare,
        ),
    ),
    tuning=Tuning(plan.expected, launch.launch, constants=menu),
)
