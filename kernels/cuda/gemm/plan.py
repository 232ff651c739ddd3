"""How im2col and GEMM cut a problem: the images whose im2col matrices are in memory at a time."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.cuda.parts.chunks import BLAS_WORKSPACE_BYTES, ChunkPlan, check_limit, plan_images
from conv_advisor.kernels.cuda.parts.source import Source

SOURCE: Final = Source("im2col")

_MOST_APART: Final = 4e6
"""Images of one pixel are multiplied separately below this cost: for each output, its products plus `_OUTPUT`.

On an H200, of 114 layers of one pixel with several images, timed both ways in four precisions, this choice takes 1.02
times as long as the faster way in the geometric mean; always one product takes 1.38, always separate products 1.44. One
product of few rows is a matter of luck with cuBLAS: in float32 up to 55 us where separate products take 4. Many
separate rows read the weight once per row, which takes up to 140 us."""
_OUTPUT: Final = 120


def is_plain_gemm(problem: ConvProblem) -> bool:
    """Whether x is its own im2col matrix: 1×1, stride 1, no padding."""
    is_whole = (problem.padded_h, problem.padded_w) == (problem.h, problem.w)
    return problem.r == problem.s == problem.stride_h == problem.stride_w == 1 and is_whole


def is_apart(problem: ConvProblem) -> bool:
    """Whether every image is multiplied separately, and not all of them in one product.

    NCHW always multiplies separately and NHWC never, except where images have one pixel: then both layouts have the
    same bytes, and either way is possible.
    """
    if is_plain_gemm(problem) and problem.h == problem.w == problem.groups == 1:
        return problem.n * problem.k * (_OUTPUT + problem.c) < _MOST_APART
    return problem.layout is Layout.NCHW


def column_elements(problem: ConvProblem) -> int:
    """Elements of the im2col matrix of one image."""
    return problem.c * problem.r * problem.s * problem.p * problem.q


def plan_gemm(problem: ConvProblem, limit_bytes: int) -> ChunkPlan:
    """Images whose im2col matrices fit the limit together with cuBLAS's own workspace.

    Raises
    ------
    WorkspaceExceeded
        Not even one image fits.
    """
    if is_plain_gemm(problem):
        check_limit(BLAS_WORKSPACE_BYTES, limit_bytes)
        return ChunkPlan(problem.n, BLAS_WORKSPACE_BYTES)
    elements = column_elements(problem)
    return plan_images(problem.n, BLAS_WORKSPACE_BYTES, elements * problem.dtype.itemsize_bytes, elements, limit_bytes)


def workspace_bytes(problem: ConvProblem, limit_bytes: int) -> int:
    """Bytes of cuBLAS's workspace and of the im2col matrices that are in memory at a time."""
    return plan_gemm(problem, limit_bytes).workspace_bytes


def least_gemm_bytes(problem: ConvProblem) -> int:
    """Bytes that `plan_gemm` needs for one image at a time."""
    columns = 0 if is_plain_gemm(problem) else column_elements(problem) * problem.dtype.itemsize_bytes
    return BLAS_WORKSPACE_BYTES + columns
