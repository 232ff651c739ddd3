"""The implicit GEMM with channels last that the tensor memory accelerator feeds, of planar tensors that are packed."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.family import Family, Kernel, cuda_variant
from conv_advisor.kernels.cuda.implicit_gemm_tma_packed import plan
from conv_advisor.kernels.cuda.parts.rules import NCHW, has_wgmma, on_any_device, under_the_default_limit
from conv_advisor.kernels.variant import Algorithm, all_of, dtype_in, groups_1


def _has_maps(problem: ConvProblem, _device: Device) -> str | None:
    return plan.why_not(problem)


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.implicit_gemm_tma_packed import launch

    return Kernel(
        sources=(plan.UNPACK_SOURCE,),
        prepare={"cuda.implicit_gemm_tma_packed": launch.prepare},
    )


FAMILY: Final = Family(
    "implicit_gemm_tma_packed",
    kernel=_kernel,
    variants=(
        cuda_variant(
            "cuda.implicit_gemm_tma_packed",
            Algorithm.IMPLICIT_GEMM,
            why_not=all_of(NCHW, groups_1, dtype_in(DType.FLOAT32, DType.TF32), _has_maps, has_wgmma),
            workspace_bytes=under_the_default_limit(on_any_device(plan.workspace_bytes)),
            least_workspace_bytes=plan.least_workspace_bytes,
            source="NVIDIA, PTX ISA 8.0: cp.async.bulk.tensor, wgmma; Chetlur et al., arXiv:1410.0759",
            kernel=_kernel,
        ),
    ),
)
