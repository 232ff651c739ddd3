"""Implicit GEMM with channels innermost; NCHW tensors are packed to that layout first."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.family import Family, Kernel, Tuning, cuda_variant
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import packing
from conv_advisor.kernels.cuda.parts.rules import ANY, NCHW, has_wgmma, on_any_device, under_the_default_limit
from conv_advisor.kernels.variant import Algorithm, all_of, dtype_in, groups_1, layout_is

_CUDNN: Final = "Chetlur et al.: cuDNN: Efficient Primitives for Deep Learning, arXiv:1410.0759"
_PACKED: Final = all_of(groups_1, dtype_in(DType.TF32, DType.FLOAT16, DType.BFLOAT16), has_wgmma)
_WORKSPACE_BYTES: Final = under_the_default_limit(on_any_device(packing.workspace_bytes))


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.implicit_gemm_nhwc import launch, menu, plan
    from conv_advisor.kernels.cuda.parts.offers import Cut

    def expected(problem: ConvProblem, device: Device) -> dict[Cut[menu.Tile], float]:
        """The expected times of the layer by its patches, since that is what is launched."""
        return plan.expected(packing.by_patches(problem), device)

    return Kernel(
        sources=(plan.SOURCE, packing.PACK_SOURCE),
        prepare={
            "cuda.implicit_gemm_nhwc": launch.prepare,
            "cuda.implicit_gemm_transposed": launch.prepare,
        },
        tuning=Tuning(expected, launch.launch, constants=menu),
    )


FAMILY: Final = Family(
    "implicit_gemm_nhwc",
    kernel=_kernel,
    variants=(
        cuda_variant(
            "cuda.implicit_gemm_nhwc",
            Algorithm.IMPLICIT_GEMM,
            why_not=all_of(ANY, layout_is(Layout.NHWC), _PACKED),
            workspace_bytes=_WORKSPACE_BYTES,
            least_workspace_bytes=packing.least_workspace_bytes,
            source=_CUDNN,
            kernel=_kernel,
        ),
        cuda_variant(
            "cuda.implicit_gemm_transposed",
            Algorithm.IMPLICIT_GEMM,
            why_not=all_of(NCHW, _PACKED),
            workspace_bytes=_WORKSPACE_BYTES,
            least_workspace_bytes=packing.least_workspace_bytes,
            source=_CUDNN,
            kernel=_kernel,
        ),
    ),
)
