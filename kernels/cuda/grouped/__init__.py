"""Grouped convolution with several channels per group, on tensor cores, in one launch."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.family import Family, Kernel, Tuning, cuda_variant
from conv_advisor.kernels.cuda.parts.rules import ANY
from conv_advisor.kernels.variant import Algorithm, all_of, no_workspace

MOST_TAPS: Final = 1024
"""The least block, of one pixel, one filter and four words of channels, takes 52 bytes a tap."""


def _has_groups_of_channels(problem: ConvProblem, _device: Device) -> str | None:
    if 1 < problem.groups < problem.c:
        return None
    return f"groups is {problem.groups}, with {problem.c // problem.groups} of the {problem.c} channels each"


def _fits_a_slab(problem: ConvProblem, _device: Device) -> str | None:
    taps = problem.r * problem.s
    return None if taps <= MOST_TAPS else f"the filter has {taps} taps, above {MOST_TAPS}"


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.grouped import cut, launch, menu, plan

    return Kernel(
        sources=(cut.SOURCE,),
        prepare={"cuda.grouped": launch.prepare},
        tuning=Tuning(plan.expected, launch.launch, constants=menu),
    )


FAMILY: Final = Family(
    "grouped",
    kernel=_kernel,
    variants=(
        cuda_variant(
            "cuda.grouped",
            Algorithm.IMPLICIT_GEMM,
            why_not=all_of(ANY, _has_groups_of_channels, _fits_a_slab),
            workspace_bytes=no_workspace,
            source="Ootomo, Yokota: Recovering single precision accuracy from Tensor Cores, arXiv:2203.03341",
            kernel=_kernel,
        ),
    ),
)
