"""Winograd with tiles of 4x4 outputs, non-fused, its products on tensor cores by split operands."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.problem import DType
from conv_advisor.kernels.cuda.family import Family, cuda_variant
from conv_advisor.kernels.cuda.parts.rules import PLAIN, has_wgmma, under_the_default_limit
from conv_advisor.kernels.cuda.winograd_large import launch, plan
from conv_advisor.kernels.variant import Algorithm, all_of, dtype_in, filter_is

FAMILY: Final = Family(
    "winograd_large",
    sources=(plan.TRANSFORM_SOURCE, plan.GEMM_SOURCE),
    variants=tuple(
        cuda_variant(
            f"cuda.winograd_nonfused_4x4_{r}x{s}",
            Algorithm.WINOGRAD,
            why_not=all_of(PLAIN, filter_is((r, s)), dtype_in(DType.FLOAT32), has_wgmma),
            workspace_bytes=under_the_default_limit(plan.planned_bytes),
            least_workspace_bytes=plan.least_workspace_bytes,
            source="Lavin, Gray: Fast Algorithms for Convolutional Neural Networks, arXiv:1509.09308",
            prepare=launch.prepare,
        )
        for r, s in plan.TILES_OF
    ),
)
