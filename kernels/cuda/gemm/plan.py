"""How im2col and GEMM cut a problem: images whose im2col matrices are there at a time."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.parts.chunks import BLAS_WORKSPACE_BYTES, ChunkPlan, check_limit, plan_images
from conv_advisor.kernels.cuda.parts.source import Source

SOURCE: Final = Source("im2col")


def is_plain_gemm(problem: ConvProblem) -> bool:
    """Whether x is its own im2col matrix: 1×1, stride 1, no padding."""
    is_whole = (problem.padded_h, problem.padded_w) == (problem.h, problem.w)
    return problem.r == problem.s == problem.stride_h == problem.stride_w == 1 and is_whole


def column_elements(problem: ConvProblem) -> int:
    """Elements of the im2col matrix of one image."""
    return problem.c * problem.r * problem.s * problem.p * problem.q


def plan_gemm(problem: ConvProblem, limit_bytes: int) -> ChunkPlan:
    """Images whose im2col matrices fit the limit beside cuBLAS's own workspace.

    Raises
    ------
    WorkspaceExceeded
        Not even one fits.
    """
    if is_plain_gemm(problem):
        check_limit(BLAS_WORKSPACE_BYTES, limit_bytes)
        return ChunkPlan(problem.n, BLAS_WORKSPACE_BYTES)
    elements = column_elements(problem)
    return plan_images(problem.n, BLAS_WORKSPACE_BYTES, elements * problem.dtype.itemsize_bytes, elements, limit_bytes)


def workspace_bytes(problem: ConvProblem, limit_bytes: int) -> int:
    """Bytes that cuBLAS takes, and those of the im2col matrices that are there at a time."""
    return plan_gemm(problem, limit_bytes).workspace_bytes


def least_gemm_bytes(problem: ConvProblem) -> int:
    """What `plan_gemm` needs for one image at a time."""
    columns = 0 if is_plain_gemm(problem) else column_elements(problem) * problem.dtype.itemsize_bytes
    return BLAS_WORKSPACE_BYTES + columns
