"""Winograd F(2x2,3x3): fused in one kernel, and non-fused around a GEMM by cuBLAS."""

from __future__ import annotations

from typing import Final

from conv_advisor.kernels.cuda.family import Family, Kernel, cuda_variant
from conv_advisor.kernels.cuda.parts.rules import PLAIN, on_any_device, under_the_default_limit
from conv_advisor.kernels.cuda.winograd import plan
from conv_advisor.kernels.variant import Algorithm, all_of, filter_is, no_workspace

_LAVIN_GRAY: Final = "Lavin, Gray: Fast Algorithms for Convolutional Neural Networks, arXiv:1509.09308"


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.winograd import launch

    return Kernel(
        sources=(plan.SOURCE,),
        prepare={
            "cuda.winograd_fused": launch.prepare_fused,
            "cuda.winograd_nonfused": launch.prepare_nonfused,
        },
    )


FAMILY: Final = Family(
    "winograd",
    kernel=_kernel,
    variants=(
        cuda_variant(
            "cuda.winograd_fused",
            Algorithm.WINOGRAD,
            why_not=all_of(PLAIN, filter_is((3, 3))),
            workspace_bytes=no_workspace,
            source=_LAVIN_GRAY,
            kernel=_kernel,
        ),
        cuda_variant(
            "cuda.winograd_nonfused",
            Algorithm.WINOGRAD,
            why_not=all_of(PLAIN, filter_is((3, 3))),
            workspace_bytes=under_the_default_limit(on_any_device(plan.workspace_bytes)),
            source=_LAVIN_GRAY,
            kernel=_kernel,
        ),
    ),
)
