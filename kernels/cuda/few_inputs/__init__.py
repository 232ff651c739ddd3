"""The implicit GEMM of at most four input channels: how most networks begin."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.family import Family, Kernel, cuda_variant
from conv_advisor.kernels.cuda.parts.rules import ANY
from conv_advisor.kernels.variant import Algorithm, all_of, dilation_1, groups_1, no_workspace

MOST_CHANNELS: Final = 4
MOST_TAPS: Final = 11
"""Rows and columns of a filter."""
MOST_STRIDE: Final = 4


def _has_few_inputs(problem: ConvProblem, _device: Device) -> str | None:
    if problem.c > MOST_CHANNELS:
        return f"c is {problem.c}, above {MOST_CHANNELS}"
    if problem.k % 8:
        return f"k is {problem.k}, not a multiple of 8"
    return None


def _fits_shared_memory(problem: ConvProblem, _device: Device) -> str | None:
    if max(problem.r, problem.s) > MOST_TAPS:
        return f"filter is {problem.r}x{problem.s}, above {MOST_TAPS}"
    if max(problem.stride_h, problem.stride_w) > MOST_STRIDE:
        return f"stride is {problem.stride_h}x{problem.stride_w}, above {MOST_STRIDE}"
    return None


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.few_inputs import float32, halves, launch

    sources = (halves.FORM.source, float32.MMA.source, float32.WGMMA.source)
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
