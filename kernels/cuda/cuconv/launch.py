"""Launcher of cuconv.cu."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.compile import load_kernel, shape_arguments
from conv_advisor.kernels.cuda.cuconv import plan as plans
from conv_advisor.kernels.cuda.parts.arithmetic import STAGE_BYTES, threads_for
from conv_advisor.kernels.cuda.parts.epilogue import addresses, defines_of
from conv_advisor.kernels.scratch import Scratch
from conv_advisor.kernels.variant import Launch


def prepare(problem: ConvProblem, device: Device, workspace_limit_bytes: int, *, filters: int | None = None) -> Launch:
    """Two kernels, or one for 1×1; ``filters`` is the number of filter rows per block, by default the plan's choice."""
    workspace_bytes = plans.planes_bytes(problem)
    if workspace_bytes > workspace_limit_bytes:
        raise WorkspaceExceeded(workspace_bytes, workspace_limit_bytes)
    pixels, taps = problem.gemm_m, problem.r * problem.s
    filters = filters or plans.filters_per_block(problem, device.processors)
    name = "cuconv_pointwise" if taps == 1 else "cuconv_scalar_products"
    epilogue, defines = problem.epilogue, {"FILTERS": filters, **defines_of(problem.epilogue)}
    multiply = load_kernel(plans.SOURCE, name, problem.dtype, **defines)
    stage_channels = min(problem.c, STAGE_BYTES // (4 * filters))
    arguments = (*shape_arguments(problem), np.int32(stage_channels))
    threads = threads_for(pixels)
    blocks = ceil(pixels / threads) * taps * ceil(problem.k / filters)
    shared_bytes = 16 * ceil(filters * stage_channels / 4)  # the assembler reads the last rows as a whole vector

    def run_pointwise(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        tensors = (x, weight, y, *addresses(epilogue, ends))
        multiply((blocks,), (threads,), (*tensors, *arguments), shared_mem=shared_bytes)

    if taps == 1:
        return Launch(run_pointwise)

    planes = Scratch(workspace_bytes)
    sum_planes = load_kernel(plans.SOURCE, "cuconv_sum_planes", problem.dtype, **defines)
    outputs = workspace_bytes // 4 // taps
    sizes = (taps, outputs, *((problem.k, problem.p * problem.q) if epilogue else ()))

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        multiply((blocks,), (threads,), (x, weight, planes.ptr, *arguments), shared_mem=shared_bytes)
        tensors = (planes.ptr, y, *addresses(epilogue, ends))
        sum_planes((ceil(outputs / 256),), (256,), (*tensors, *map(np.int32, sizes)))

    return Launch(run, workspace_bytes, scratch=(planes,))
