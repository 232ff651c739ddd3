"""Depthwise convolutions: each channel has filters of its own."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.family import Family, Kernel, Tuning, cuda_variant
from conv_advisor.kernels.cuda.parts.rules import ANY
from conv_advisor.kernels.variant import Algorithm, all_of, no_workspace


def _is_depthwise(problem: ConvProblem, _device: Device) -> str | None:
    if problem.c == problem.groups > 1:
        return None
    return f"groups is {problem.groups}, with {problem.c // problem.groups} of the {problem.c} channels each"


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.depthwise import launch, menu, plan

    return Kernel(
        sources=plan.SOURCES,
        prepare={"cuda.depthwise": launch.prepare},
        tuning=Tuning(plan.expected, launch.launch, constants=menu),
    )


FAMILY: Final = Family(
    "depthwise",
    kernel=_kernel,
    variants=(
        cuda_variant(
            "cuda.depthwise",
            Algorithm.DIRECT,
            why_not=all_of(ANY, _is_depthwise),
            workspace_bytes=no_workspace,
            source="Howard et al.: MobileNets, arXiv:1704.04861",
            kernel=_kernel,
        ),
    ),
)
