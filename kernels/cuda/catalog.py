"""Our families of CUDA kernels, and what follows from the list: importable without any CUDA library."""

from __future__ import annotations

from typing import Final

from conv_advisor.kernels.cuda import (
    appended,
    cuconv,
    depthwise,
    direct,
    fft,
    gemm,
    grouped,
    implicit_gemm,
    implicit_gemm_nhwc,
    implicit_gemm_tensor,
    pointwise,
    winograd,
    winograd_large,
)
from conv_advisor.kernels.cuda.family import CudaVariant, Family
from conv_advisor.kernels.cuda.parts.source import Source

FAMILIES: Final[tuple[Family, ...]] = (
    direct.FAMILY,
    cuconv.FAMILY,
    gemm.FAMILY,
    implicit_gemm.FAMILY,
    implicit_gemm_tensor.FAMILY,
    implicit_gemm_nhwc.FAMILY,
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

SOURCES: Final[dict[str, Source]] = {source.name: source for family in FAMILIES for source in family.sources}
"""By name: what is compiled to check all of them without a GPU."""
