"""Winograd with tiles of 4x4 outputs, non-fused, its products on tensor cores by split operands."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.problem import DType
from conv_advisor.kernels.cuda.family import Family, Kernel, cuda_variant
from conv_advisor.kernels.cuda.parts.rules import ANY, has_wgmma, under_the_default_limit
from conv_advisor.kernels.cuda.winograd_large import plan
from conv_advisor.kernels.variant import Algorithm, all_of, dilation_1, dtype_in, filter_is, groups_1, stride_1

_ID_OF: Final = {(r, s): f"cuda.winograd_nonfused_4x4_{r}x{s}" for r, s in plan.TILES_OF}


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.winograd_large import launch

    return Kernel(
        sources=(*plan.TRANSFORM_SOURCES.values(), plan.GEMM_SOURCE),
        prepare=dict.fromkeys(_ID_OF.values(), launch.prepare),
    )


FAMILY: Final = Family(
    "winograd_large",
    kernel=_kernel,
    variants=tuple(
        cuda_variant(
            id_,
            Algorithm.WINOGRAD,
            why_not=all_of(
                *(ANY, stride_1, dilation_1, groups_1),
                *(filter_is(filter_), dtype_in(DType.FLOAT32), has_wgmma),
            ),
            workspace_bytes=under_the_default_limit(plan.planned_bytes),
            least_workspace_bytes=plan.least_workspace_bytes,
            source="Lavin, Gray: Fast Algorithms for Convolutional Neural Networks, arXiv:1509.09308",
            kernel=_kernel,
        )
        for filter_, id_ in _ID_OF.items()
    ),
)
