"""Our families of CUDA kernels and their variants: importable without any CUDA library, and without the plans."""

from __future__ import annotations

from typing import Final

from conv_advisor.kernels.cuda import (
    appended,
    cuconv,
    depthwise,
    direct,
    few_inputs,
    few_outputs,
    fft,
    gemm,
    grouped,
    implicit_gemm,
    implicit_gemm_nhwc,
    implicit_gemm_tensor,
    implicit_gemm_tma,
    implicit_gemm_tma_packed,
    implicit_gemm_tma_transposed,
    pointwise,
    winograd,
    winograd_large,
)
from conv_advisor.kernels.cuda.family import CudaVariant, Family

FAMILIES: Final[tuple[Family, ...]] = (
    direct.FAMILY,
    cuconv.FAMILY,
    gemm.FAMILY,
    implicit_gemm.FAMILY,
    implicit_gemm_tensor.FAMILY,
    implicit_gemm_nhwc.FAMILY,
    implicit_gemm_tma.FAMILY,
    implicit_gemm_tma_transposed.FAMILY,
    implicit_gemm_tma_packed.FAMILY,
    few_inputs.FAMILY,
    few_outputs.FAMILY,
    fft.FAMILY,
    winograd.FAMILY,
    winograd_large.FAMILY,
    pointwise.FAMILY,
    depthwise.FAMILY,
    grouped.FAMILY,
    appended.FAMILY,
)

VARIANTS: Final[tuple[CudaVariant, ...]] = tuple(variant for family in FAMILIES for variant in family.variants)
"""In the order that a sweep tries them."""
