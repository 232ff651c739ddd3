"""im2col, then GEMM by cuBLAS."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import MAX_ELEMENTS, ConvProblem
from conv_advisor.kernels.cuda.family import Family, Kernel, cuda_variant
from conv_advisor.kernels.cuda.gemm import plan
from conv_advisor.kernels.cuda.parts.rules import ANY, on_any_device, under_the_default_limit
from conv_advisor.kernels.variant import Algorithm, Ending, all_of


def _fits_columns(problem: ConvProblem, _device: Device) -> str | None:
    elements = plan.column_elements(problem)
    if elements <= MAX_ELEMENTS or plan.is_plain_gemm(problem):
        return None
    return f"the im2col matrix of one image has {elements} elements, above {MAX_ELEMENTS}"


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.gemm import launch

    return Kernel(
        sources=(plan.SOURCE,),
        prepare={"cuda.gemm": launch.prepare},
    )


FAMILY: Final = Family(
    "gemm",
    kernel=_kernel,
    variants=(
        cuda_variant(
            "cuda.gemm",
            Algorithm.GEMM,
            why_not=all_of(ANY, _fits_columns),
            workspace_bytes=under_the_default_limit(on_any_device(plan.workspace_bytes)),
            least_workspace_bytes=plan.least_gemm_bytes,
            source="Chellapilla, Puri, Simard: High Performance Convolutional Neural Networks, 2006",
            kernel=_kernel,
            ending=Ending.APPENDED,
        ),
    ),
)
