"""The implicit GEMM that the tensor memory accelerator feeds, of planar tensors: as they lie, or packed first."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.family import Family, Kernel, Tuning, cuda_variant
from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed import forms
from conv_advisor.kernels.cuda.parts.rules import NCHW, has_wgmma, on_any_device, under_the_default_limit
from conv_advisor.kernels.variant import Algorithm, all_of, dtype_in, groups_1


def _has_maps(problem: ConvProblem, _device: Device) -> str | None:
    return forms.why_not(problem)


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed import launch, menu, plan

    return Kernel(
        sources=(plan.SOURCE,),
        prepare={"cuda.implicit_gemm_tma_transposed": launch.prepare},
        tuning=Tuning(plan.expected, launch.launch, constants=menu),
    )


FAMILY: Final = Family(
    "implicit_gemm_tma_transposed",
    kernel=_kernel,
    variants=(
        cuda_variant(
            "cuda.implicit_gemm_tma_transposed",
            Algorithm.IMPLICIT_GEMM,
            why_not=all_of(NCHW, groups_1, dtype_in(DType.FLOAT16, DType.BFLOAT16), _has_maps, has_wgmma),
            workspace_bytes=under_the_default_limit(on_any_device(forms.workspace_bytes)),
            least_workspace_bytes=forms.least_workspace_bytes,
            source="NVIDIA, PTX ISA 8.0: cp.async.bulk.tensor, wgmma; Chetlur et al., arXiv:1410.0759",
            kernel=_kernel,
        ),
    ),
)
