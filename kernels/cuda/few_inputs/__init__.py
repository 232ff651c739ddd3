"""Implicit GEMM for few input channels: the first layers of most networks, and narrow layers."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.family import Family, Kernel, cuda_variant
from conv_advisor.kernels.cuda.parts.rules import ANY
from conv_advisor.kernels.variant import Algorithm, all_of, dilation_1, groups_1, no_workspace

MOST_CHANNELS: Final = 4
MOST_TAPS: Final = 11
"""Rows and columns of a filter."""
MOST_STRIDE: Final = 4

RUN: Final = 8
"""The number of a first layer's filters is a multiple of this, and channels of the others are padded to one."""
MOST_NARROW_CHANNELS: Final = 64
MOST_NARROW_TAPS: Final = 7
MOST_NARROW_STRIDE: Final = 2
MOST_NARROW_GEMM_K: Final = 1176


def is_narrow(problem: ConvProblem) -> bool:
    """Whether few_inputs_narrow.cu is for the problem; else one of the forms for first layers."""
    return problem.c > MOST_CHANNELS or problem.k % RUN != 0


def _has_few_inputs(problem: ConvProblem, _device: Device) -> str | None:
    if not is_narrow(problem):
        return None
    if problem.dtype not in (DType.FLOAT16, DType.BFLOAT16) or problem.layout is not Layout.NHWC:
        if problem.k % RUN:
            return f"k is {problem.k}, not a multiple of {RUN}"
        return f"c is {problem.c}, above {MOST_CHANNELS}"
    if problem.c > MOST_NARROW_CHANNELS:
        return f"c is {problem.c}, above {MOST_NARROW_CHANNELS}"
    return None


def _fits_shared_memory(problem: ConvProblem, _device: Device) -> str | None:
    is_padded = is_narrow(problem)
    taps, stride = (MOST_NARROW_TAPS, MOST_NARROW_STRIDE) if is_padded else (MOST_TAPS, MOST_STRIDE)
    if max(problem.r, problem.s) > taps:
        return f"filter is {problem.r}x{problem.s}, above {taps}"
    if max(problem.stride_h, problem.stride_w) > stride:
        return f"stride is {problem.stride_h}x{problem.stride_w}, above {stride}"
    padded = problem.r * problem.s * -(-problem.c // RUN) * RUN
    if is_padded and padded > MOST_NARROW_GEMM_K:
        return f"a filter has {padded} elements, above {MOST_NARROW_GEMM_K}"
    return None


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.few_inputs import float32, halves, launch, narrow, taps

    sources = (halves.FORM.source, taps.FORM.source, narrow.FORM.source, float32.MMA.source, float32.WGMMA.source)
    return Kernel(sources=sources, prepare={"cuda.few_inputs": launch.prepare})


FAMILY: Final = Family(
    "few_inputs",
    kernel=_kernel,
    variants=(
        cuda_variant(
            "cuda.few_inputs",
            Algorithm.IMPLICIT_GEMM,
            why_not=all_of(
                ANY,
                groups_1,
                dilation_1,
                _has_few_inputs,
                _fits_shared_memory,
            ),
            workspace_bytes=no_workspace,
            source="NVIDIA, PTX ISA 8.0: ldmatrix, mma; arXiv:2203.03341; Chetlur et al., arXiv:1410.0759",
            kernel=_kernel,
        ),
    ),
)
