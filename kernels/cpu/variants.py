"""The CPU variants: where each applies and the scratch memory it takes; pure Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cpu import plans
from conv_advisor.kernels.variant import (
    Algorithm,
    Backend,
    Ending,
    Rule,
    Variant,
    Workspace,
    all_of,
    dilation_1,
    filter_is,
    groups_1,
    stride_1,
)

PLANS: Final[dict[Algorithm, Callable[[ConvProblem], plans.Plan]]] = {
    Algorithm.DIRECT: plans.direct,
    Algorithm.GEMM: plans.gemm,
    Algorithm.FFT: plans.fft,
    Algorithm.WINOGRAD: plans.winograd,
}

_RULES: Final[dict[Algorithm, Rule]] = {
    Algorithm.DIRECT: all_of(),
    Algorithm.GEMM: all_of(),
    Algorithm.FFT: groups_1,
    Algorithm.WINOGRAD: all_of(filter_is((3, 3)), stride_1, dilation_1, groups_1),
}

_ENDINGS: Final = {
    Algorithm.DIRECT: Ending.APPENDED,
    Algorithm.GEMM: Ending.FUSED,
    Algorithm.FFT: Ending.FUSED,
    Algorithm.WINOGRAD: Ending.FUSED,
}
"""Direct applies the epilogue to a block of images once all of it is summed; the others, as they write each part."""

_SOURCES: Final = {
    Algorithm.DIRECT: "Definition; parallel-processing study of direct, FFT and Winograd, University of Oregon 2019",
    Algorithm.GEMM: "Chellapilla et al., High Performance Convolutional Neural Networks for Document Processing, 2006",
    Algorithm.FFT: "Mathieu et al., Fast Training of Convolutional Networks through FFTs, arXiv:1312.5851",
    Algorithm.WINOGRAD: "Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, arXiv:1509.09308",
}


def is_parallel(variant: Variant) -> bool:
    """Whether it uses every core, rather than one thread."""
    return variant.id.endswith("_parallel")


def _variants() -> Iterator[Variant]:
    for algorithm, plan in PLANS.items():
        for suffix in ("", "_parallel"):
            yield Variant(
                id=f"cpu.{algorithm}{suffix}",
                algorithm=algorithm,
                backend=Backend.CPU,
                is_deterministic=True,
                why_not=_RULES[algorithm],
                workspace_bytes=_bytes_of(plan),
                source=_SOURCES[algorithm],
                ending=_ENDINGS[algorithm],
            )


def _bytes_of(plan: Callable[[ConvProblem], plans.Plan]) -> Workspace:
    return lambda problem, _device: plan(problem).workspace_bytes


VARIANTS: Final[tuple[Variant, ...]] = tuple(_variants())
