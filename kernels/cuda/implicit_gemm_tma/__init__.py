"""The implicit GEMM with channels last that the tensor memory accelerator feeds."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.cuda.family import Family, Kernel, Tuning, cuda_variant
from conv_advisor.kernels.cuda.parts.rules import ANY, has_wgmma
from conv_advisor.kernels.variant import Algorithm, all_of, bytes_as_in, groups_1, no_workspace


def _has_maps(problem: ConvProblem, _device: Device) -> str | None:
    from conv_advisor.kernels.cuda.implicit_gemm_tma import limits

    return limits.why_not(problem)


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.implicit_gemm_tma import launch, menu, plan, small, split, straight

    return Kernel(
        sources=(plan.SOURCE, small.SOURCE, split.SOURCE, straight.SOURCE),
        prepare={"cuda.implicit_gemm_tma": launch.prepare},
        tuning=Tuning(plan.expected, launch.launch, constants=menu),
    )


FAMILY: Final = Family(
    "implicit_gemm_tma",
    kernel=_kernel,
    variants=(
        cuda_variant(
            "cuda.implicit_gemm_tma",
            Algorithm.IMPLICIT_GEMM,
            why_not=all_of(ANY, bytes_as_in(Layout.NHWC), groups_1, _has_maps, has_wgmma),
            workspace_bytes=no_workspace,
            source="NVIDIA, PTX ISA 8.0: cp.async.bulk.tensor, wgmma; Chetlur et al., arXiv:1410.0759",
            kernel=_kernel,
        ),
    ),
)
