"""The guidelines of the seed papers: each a function from a problem to the variant it says to run, or None.

A paper says "large" or "small"; ``where`` has the sizes that we take for it, from the examples it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.measured import LEGACY
from conv_advisor.data.problem import ConvProblem, DType

Choice = Callable[[ConvProblem], str | None]
"""The variant that a guideline would run; None where it says nothing. Looks at the shape alone, not at the dtype."""

GEMM: Final = "cudnn.gemm"
IMPLICIT: Final = "cudnn.implicit_gemm"
PRECOMPUTED: Final = "cudnn.implicit_precomp_gemm"
WINOGRAD: Final = "cudnn.winograd"
WINOGRAD_NONFUSED: Final = "cudnn.winograd_nonfused"
FFT: Final = "cudnn.fft"
FFT_TILING: Final = "cudnn.fft_tiling"
CUCONV: Final = "cuda.cuconv"


def with_tensor_cores(variant: str) -> str:
    """The same algorithm, allowed to use tensor cores."""
    return f"{variant.removesuffix('_tc')}_tc"


def one_image_1x1(problem: ConvProblem) -> str | None:
    """Implicit GEMM for 1x1 filters at batch 1."""
    return IMPLICIT if problem.r == 1 and problem.n == 1 else None


def deep_and_narrow_1x1(problem: ConvProblem) -> str | None:
    """Implicit GEMM for 1x1 filters at large batches, deep, with few filters."""
    is_meant = problem.n >= 64 and problem.c >= 512 and problem.k <= 48
    return IMPLICIT if problem.r == 1 and is_meant else None


def many_images_1x1(problem: ConvProblem) -> str | None:
    """Precomputed implicit GEMM for 1x1 filters above batch 1, but for `deep_and_narrow_1x1`."""
    is_meant = problem.r == 1 and problem.n > 1 and not deep_and_narrow_1x1(problem)
    return PRECOMPUTED if is_meant else None


def one_image_3x3(problem: ConvProblem) -> str | None:
    """Fused Winograd for 3x3 filters at batch 1."""
    return WINOGRAD if problem.r == 3 and problem.n == 1 else None


def large_inputs_3x3(problem: ConvProblem) -> str | None:
    """Precomputed implicit GEMM for 3x3 filters above batch 1 on large inputs."""
    return PRECOMPUTED if problem.r == 3 and problem.n > 1 and problem.h >= 112 else None


def many_images_3x3(problem: ConvProblem) -> str | None:
    """Non-fused Winograd for 3x3 filters above batch 1, but for `large_inputs_3x3`."""
    return WINOGRAD_NONFUSED if problem.r == 3 and problem.n > 1 and problem.h < 112 else None


def few_images_5x5(problem: ConvProblem) -> str | None:
    """Non-fused Winograd for 5x5 filters up to batch 32."""
    return WINOGRAD_NONFUSED if problem.r == 5 and problem.n <= 32 else None


def small_inputs_5x5(problem: ConvProblem) -> str | None:
    """Explicit GEMM for 5x5 filters above batch 32 on small inputs."""
    return GEMM if problem.r == 5 and problem.n > 32 and problem.h <= 7 else None


def middle_inputs_5x5(problem: ConvProblem) -> str | None:
    """FFT for 5x5 filters above batch 32 on mid-sized inputs."""
    return FFT if problem.r == 5 and problem.n > 32 and 7 < problem.h <= 14 else None


def large_inputs_5x5(problem: ConvProblem) -> str | None:
    """Tiled FFT for 5x5 filters above batch 32 on large inputs."""
    return FFT_TILING if problem.r == 5 and problem.n > 32 and problem.h > 14 else None


def half_1x1(problem: ConvProblem) -> str | None:
    """Precomputed implicit GEMM on tensor cores for 1x1 filters."""
    return with_tensor_cores(PRECOMPUTED) if problem.r == 1 else None


def half_shallow_1x1(problem: ConvProblem) -> str | None:
    """Implicit GEMM without tensor cores for 1x1 filters, few images and a small depth."""
    return IMPLICIT if problem.r == 1 and problem.n < 32 and problem.c <= 64 else None


def half_3x3(problem: ConvProblem) -> str | None:
    """Winograd on tensor cores for 3x3 filters, but for `half_shallow_3x3`."""
    return with_tensor_cores(WINOGRAD_NONFUSED) if problem.r == 3 and not half_shallow_3x3(problem) else None


def half_shallow_3x3(problem: ConvProblem) -> str | None:
    """Precomputed implicit GEMM on tensor cores for 3x3 filters on large inputs of small depth."""
    return with_tensor_cores(PRECOMPUTED) if problem.r == 3 and problem.h >= 27 and problem.c <= 64 else None


def half_5x5(problem: ConvProblem) -> str | None:
    """Precomputed implicit GEMM on tensor cores for 5x5 filters."""
    return with_tensor_cores(PRECOMPUTED) if problem.r == 5 else None


def cuconv_1x1(problem: ConvProblem) -> str | None:
    """cuConv for 1x1 filters at batch 1."""
    return CUCONV if problem.r == 1 and problem.n == 1 else None


def cuconv_5x5(problem: ConvProblem) -> str | None:
    """cuConv for 5x5 filters at batch 1."""
    return CUCONV if problem.r == 5 and problem.n == 1 else None


@dataclass(frozen=True)
class Guideline:
    """One sentence of a paper that says what to run.

    Parameters
    ----------
    source : str
        Paper and section.
    quote : str
        In the paper's words.
    choose : callable
    where : str
        The configurations that it speaks of, as we read it.
    dtype : DType
        The precision that it speaks of; the layout is NCHW in all of them.
    pool : sequence of str
        What it chooses among.
    """

    source: str
    quote: str
    choose: Choice
    where: str
    dtype: DType = DType.FLOAT32
    pool: Sequence[str] = LEGACY


_STUDY: Final = "cuDNN study, IV"
_CUCONV: Final = "cuConv, 4.1"
_WITH_CUCONV: Final = (*LEGACY, CUCONV)
_HALF: Final = DType.FLOAT16

GUIDELINES: Final = (
    Guideline(_STUDY, "GEMM-impl is proven to be efficient for batch size of 1 input", one_image_1x1, "1×1, batch 1"),
    Guideline(
        _STUDY,
        "and configurations with large batch sizes, large depth, and a small number of filters",
        deep_and_narrow_1x1,
        "1×1, batch ≥ 64, depth ≥ 512, ≤ 48 filters",
    ),
    Guideline(
        _STUDY,
        "GEMM-impl-precomp performs better for a batch size greater than 1",
        many_images_1x1,
        "1×1, batch > 1, except the line above",
    ),
    Guideline(_STUDY, "Winograd is able to attain high performance for batch size 1", one_image_3x3, "3×3, batch 1"),
    Guideline(_STUDY, "and Winograd non-fused otherwise", many_images_3x3, "3×3, batch > 1, size < 112"),
    Guideline(
        _STUDY,
        "except for configurations with large input sizes, where GEMM-impl-precomp is able to outperform both",
        large_inputs_3x3,
        "3×3, batch > 1, size ≥ 112",
    ),
    Guideline(
        _STUDY,
        "Winograd non-fused attains high performance for batch sizes up to 32",
        few_images_5x5,
        "5×5, batch ≤ 32",
    ),
    Guideline(
        _STUDY,
        "GEMM shows as the best candidate to deal with small inputs (e.g. 7×7)",
        small_inputs_5x5,
        "5×5, batch > 32, size ≤ 7",
    ),
    Guideline(_STUDY, "FFT for mid-sized inputs (e.g. 14×14)", middle_inputs_5x5, "5×5, batch > 32, size 8 to 14"),
    Guideline(
        _STUDY,
        "and FFT tiled for larger input sizes (e.g. 28×28 and above)",
        large_inputs_5x5,
        "5×5, batch > 32, size > 14",
    ),
    Guideline(
        _STUDY, "GEMM-impl-precomp-TC for configurations with 1×1 and 5×5 filters", half_1x1, "float16, 1×1", _HALF
    ),
    Guideline(
        _STUDY, "GEMM-impl-precomp-TC for configurations with 1×1 and 5×5 filters", half_5x5, "float16, 5×5", _HALF
    ),
    Guideline(
        _STUDY,
        "and Winograd-TC for configurations with 3×3 filters",
        half_3x3,
        "float16, 3×3, except the line below",
        _HALF,
    ),
    Guideline(
        _STUDY,
        "some configurations of 3×3 filters where GEMM-impl-precomp-TC is faster than Winograd-TC",
        half_shallow_3x3,
        "float16, 3×3, size ≥ 27, depth ≤ 64",
        _HALF,
    ),
    Guideline(
        "cuDNN study, III-B",
        "a few configurations where the two GEMM variants that do not use the TCs are faster",
        half_shallow_1x1,
        "float16, 1×1, batch < 32, depth ≤ 64",
        _HALF,
    ),
    Guideline(
        _CUCONV,
        "our implementation shows a clear advantage over the best cuDNN variant for batch size of 1",
        cuconv_1x1,
        "1×1, batch 1",
        pool=_WITH_CUCONV,
    ),
    Guideline(
        _CUCONV,
        "Our implementation shows a notable advantage for batch size of 1",
        cuconv_5x5,
        "5×5, batch 1",
        pool=_WITH_CUCONV,
    ),
)

FLOAT32_GUIDELINES: Final = (
    *(one_image_1x1, deep_and_narrow_1x1, many_images_1x1, one_image_3x3, large_inputs_3x3, many_images_3x3),
    *(few_images_5x5, small_inputs_5x5, middle_inputs_5x5, large_inputs_5x5),
)
HALF_GUIDELINES: Final = (half_1x1, half_shallow_3x3, half_3x3, half_5x5)


def study_order(problem: ConvProblem) -> list[str]:
    """What the study's guidelines together would run: their choice, then what is tried where that does not run.

    Outside float32 every one is first tried with tensor cores, which cuDNN's API of today permits by default.
    """
    is_half = problem.dtype in (DType.FLOAT16, DType.BFLOAT16)
    chosen = [choose(problem) for choose in (HALF_GUIDELINES if is_half else FLOAT32_GUIDELINES)]
    order = [*filter(None, chosen), PRECOMPUTED, IMPLICIT]
    return order if problem.dtype is DType.FLOAT32 else [*map(with_tensor_cores, order), *order]
