"""cuConv: scalar products of filter rows along the depth, then the sum of their planes."""

from __future__ import annotations

from typing import Final

from conv_advisor.kernels.cuda.cuconv import plan
from conv_advisor.kernels.cuda.family import Family, Kernel, cuda_variant
from conv_advisor.kernels.cuda.parts.rules import NCHW
from conv_advisor.kernels.variant import Algorithm, all_of, groups_1


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.cuconv import launch

    return Kernel(
        sources=(plan.SOURCE,),
        prepare={"cuda.cuconv": launch.prepare},
    )


FAMILY: Final = Family(
    "cuconv",
    kernel=_kernel,
    variants=(
        cuda_variant(
            "cuda.cuconv",
            Algorithm.TWO_STAGE,
            why_not=all_of(NCHW, groups_1),
            workspace_bytes=lambda problem, _device: plan.planes_bytes(problem),
            source="Jordà, Valero-Lara, Peña: cuConv, arXiv:2103.16234",
            kernel=_kernel,
        ),
    ),
)
