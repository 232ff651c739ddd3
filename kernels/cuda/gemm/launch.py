"""im2col, then GEMM by cuBLAS; launcher of im2col.cu."""

from __future__ import annotations

from math import ceil
from typing import Any

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.cuda.compile import load_kernel, shape_arguments
from conv_advisor.kernels.cuda.gemm import plan as plans
from conv_advisor.kernels.cuda.parts import blas
from conv_advisor.kernels.cuda.parts.arithmetic import threads_for
from conv_advisor.kernels.cuda.parts.blas import Gemm
from conv_advisor.kernels.scratch import Scratch
from conv_advisor.kernels.variant import Launch


def prepare(problem: ConvProblem, _device: Device, workspace_limit_bytes: int) -> Launch:
    """Process as many images at a time as the workspace holds; 1×1 of stride 1 multiplies x itself."""
    plan = plans.plan_gemm(problem, workspace_limit_bytes)
    workspace = blas.new_workspace()
    multiply = _multiply_apart if plans.is_apart(problem) else _multiply_together
    if plans.is_plain_gemm(problem):
        return Launch(
            lambda x, weight, y: multiply(problem, problem.n, x.data.ptr, weight.data.ptr, y.data.ptr, workspace),
            plan.workspace_bytes,
            scratch=(workspace,),
            by_address=True,
            calls_blas=True,
        )
    itemsize = problem.dtype.itemsize_bytes
    image_elements = plans.column_elements(problem)
    columns = Scratch(plan.images * image_elements * itemsize)
    kernel = load_kernel(plans.SOURCE, f"im2col_{problem.layout}", problem.dtype)
    threads = threads_for(problem.p * problem.q) if problem.layout is Layout.NCHW else 256

    def run(x: Any, weight: Any, y: Any) -> None:
        for begin in range(0, problem.n, plan.images):
            images = min(plan.images, problem.n - begin)
            x_begin = x.data.ptr + begin * problem.c * problem.h * problem.w * itemsize
            y_begin = y.data.ptr + begin * problem.k * problem.p * problem.q * itemsize
            if problem.layout is Layout.NCHW:
                blocks = images * problem.c * ceil(problem.p * problem.q / threads)
            else:
                blocks = ceil(images * image_elements / threads)
            kernel((blocks,), (threads,), (x_begin, columns.ptr, *shape_arguments(problem, images)))
            multiply(problem, images, columns.ptr, weight.data.ptr, y_begin, workspace)

    return Launch(run, plan.workspace_bytes, scratch=(columns, workspace), calls_blas=True)


def _multiply_apart(problem: ConvProblem, images: int, columns: int, weight: int, y: int, workspace: Scratch) -> None:
    """y[n] (K, P·Q) = weight (K, C·R·S) · columns[n] (C·R·S, P·Q), each group separately; row-major is the transpose.

    A call takes a batch of images of one group, or a batch of groups of one image, whichever is larger.
    """
    pixels, depth, filters, groups = problem.p * problem.q, problem.gemm_k, problem.gemm_n, problem.groups
    by_image = (groups * depth * pixels, 0, problem.k * pixels)
    by_group = (depth * pixels, filters * depth, filters * pixels)
    is_over_images = images >= groups
    batch, strides, outer_strides, outer = (
        (images, by_image, by_group, groups) if is_over_images else (groups, by_group, by_image, images)
    )
    gemm = Gemm(
        problem.dtype,
        *(pixels, filters, depth),
        lda=pixels,
        ldb=depth,
        ldc=pixels,
        stride_a=strides[0],
        stride_b=strides[1],
        stride_c=strides[2],
        batch=batch,
    )
    for index in range(outer):
        columns_offset, weight_offset, y_offset = (
            index * stride * problem.dtype.itemsize_bytes for stride in outer_strides
        )
        blas.enqueue(gemm, columns + columns_offset, weight + weight_offset, y + y_offset, workspace)


def _multiply_together(
    problem: ConvProblem, images: int, columns: int, weight: int, y: int, workspace: Scratch
) -> None:
    """y (N·P·Q, K) = columns (N·P·Q, groups, R·S·C/groups) · weight (K, R·S·C/groups)^T, a batch of groups."""
    depth, filters = problem.gemm_k, problem.gemm_n
    gemm = Gemm(
        problem.dtype,
        *(filters, images * problem.p * problem.q, depth),
        lda=depth,
        ldb=problem.groups * depth,
        ldc=problem.k,
        stride_a=filters * depth,
        stride_b=depth,
        stride_c=filters,
        batch=problem.groups,
        is_a_transposed=True,
    )
    blas.enqueue(gemm, weight, columns, y, workspace)
