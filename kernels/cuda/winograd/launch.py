"""Launchers of winograd.cu: fused, and non-fused with cuBLAS between the transforms."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.compile import load_kernel, shape_arguments
from conv_advisor.kernels.cuda.parts import blas
from conv_advisor.kernels.cuda.parts.blas import Gemm
from conv_advisor.kernels.cuda.parts.epilogue import addresses, defines_of
from conv_advisor.kernels.cuda.winograd import plan as plans
from conv_advisor.kernels.scratch import Scratch
from conv_advisor.kernels.variant import Launch

_BLOCK_TILES = _BLOCK_FILTERS = 32
_THREADS = 256
_POSITIONS = 16


def prepare_fused(problem: ConvProblem, _device: Device, _workspace_limit_bytes: int) -> Launch:
    """Transforms and products in one kernel."""
    kernel = load_kernel(plans.SOURCE, "winograd_fused", problem.dtype, **defines_of(problem.epilogue))
    shape = shape_arguments(problem)
    tiles = problem.n * plans.winograd_tiles(problem)
    blocks = ceil(tiles / _BLOCK_TILES) * ceil(problem.k / _BLOCK_FILTERS)

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        kernel((blocks,), (_THREADS,), (x, weight, y, *addresses(problem.epilogue, ends), *shape))

    return Launch(run)


def prepare_nonfused(problem: ConvProblem, _device: Device, workspace_limit_bytes: int) -> Launch:
    """Transform the filters; then transform each chunk of images, multiply at each position, transform back."""
    plan = plans.plan_winograd(problem, workspace_limit_bytes)
    workspace = blas.new_workspace()
    transform_x, transform_weight, transform_y = (
        load_kernel(plans.SOURCE, f"winograd_transform_{operand}", problem.dtype, **defines_of(problem.epilogue))
        for operand in ("x", "weight", "y")
    )
    chunk_tiles = plan.images * plans.winograd_tiles(problem)
    u = Scratch(4 * _POSITIONS * problem.k * problem.c)
    v = Scratch(4 * _POSITIONS * problem.c * chunk_tiles)
    m = Scratch(4 * _POSITIONS * problem.k * chunk_tiles)
    itemsize = problem.dtype.itemsize_bytes
    weight_blocks = ceil(problem.k * problem.c / _THREADS)
    weight_sizes = (np.int32(problem.k), np.int32(problem.c))

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        transform_weight((weight_blocks,), (_THREADS,), (weight, u.ptr, *weight_sizes))
        for begin in range(0, problem.n, plan.images):
            images = min(plan.images, problem.n - begin)
            tiles = images * plans.winograd_tiles(problem)
            tile_blocks = ceil(tiles / _THREADS)
            shape = shape_arguments(problem, images)
            x_begin = x.data.ptr + begin * problem.c * problem.h * problem.w * itemsize
            y_offset = begin * problem.k * problem.p * problem.q * itemsize
            outputs = (y.data.ptr + y_offset, *addresses(problem.epilogue, ends, y_offset))
            transform_x((tile_blocks * problem.c,), (_THREADS,), (x_begin, v.ptr, *shape))
            blas.enqueue(_gemm(problem, tiles), v.ptr, u.ptr, m.ptr, workspace)
            transform_y((tile_blocks * problem.k,), (_THREADS,), (m.ptr, *outputs, *shape))

    return Launch(run, plan.workspace_bytes, scratch=(u, v, m, workspace), calls_blas=True)


def _gemm(problem: ConvProblem, tiles: int) -> Gemm:
    """m (K, tiles) = u (K, C) · v (C, tiles) at each position; row-major is the transpose.

    The transforms are in float32 whatever the storage; all but float32 problems may round the products to tf32.
    """
    return Gemm(
        DType.FLOAT32 if problem.dtype is DType.FLOAT32 else DType.TF32,
        *(tiles, problem.k, problem.c),
        lda=tiles,
        ldb=problem.c,
        ldc=tiles,
        stride_a=problem.c * tiles,
        stride_b=problem.k * problem.c,
        stride_c=problem.k * tiles,
        batch=_POSITIONS,
    )
