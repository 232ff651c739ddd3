"""The 1x1 convolution of nchw by Hopper's wgmma, in one launch."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.family import Family, Kernel, Tuning, cuda_variant
from conv_advisor.kernels.cuda.parts.rules import NCHW, has_wgmma
from conv_advisor.kernels.variant import Algorithm, all_of, filter_is, groups_1, no_workspace, padding_of, stride_1


def _is_unpadded(problem: ConvProblem, _device: Device) -> str | None:
    if (problem.padded_h, problem.padded_w) == (problem.h, problem.w):
        return None
    return f"padding is {padding_of(problem)}, not 0x0"


def _is_dense_in_halves(problem: ConvProblem, device: Device) -> str | None:
    return None if problem.dtype.itemsize_bytes == 4 else stride_1(problem, device)


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.pointwise import launch, menu, plan

    return Kernel(
        sources=(plan.SOURCE,),
        prepare={"cuda.pointwise": launch.prepare},
        tuning=Tuning(plan.expected, launch.launch, constants=menu),
    )


FAMILY: Final = Family(
    "pointwise",
    kernel=_kernel,
    variants=(
        cuda_variant(
            "cuda.pointwise",
            Algorithm.IMPLICIT_GEMM,
            why_not=all_of(NCHW, _is_dense_in_halves, groups_1, filter_is((1, 1)), _is_unpadded, has_wgmma),
            workspace_bytes=no_workspace,
            source="Ootomo, Yokota: Recovering single precision accuracy from Tensor Cores, arXiv:2203.03341",
            kernel=_kernel,
        ),
    ),
)
