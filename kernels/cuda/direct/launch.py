"""Launchers of direct.cu."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from conv_advisor.data.errors import NotSupported
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.compile import load_kernel, load_module, shape_arguments
from conv_advisor.kernels.cuda.direct import plan as plans
from conv_advisor.kernels.cuda.parts.arithmetic import filters_per_thread, threads_for
from conv_advisor.kernels.cuda.parts.epilogue import addresses, defines_of
from conv_advisor.kernels.scratch import Scratch
from conv_advisor.kernels.variant import Launch


class _ConstantMemory(Scratch):
    """That of a module: all launches fill the same, so that they must not run on two streams at once."""

    def __init__(self) -> None:
        super().__init__(0)

    def free(self) -> None:
        """Refuse: nobody has other constant memory to lend."""
        raise NotSupported("its filters lie in constant memory, which cannot be lent")


def prepare_naive(
    problem: ConvProblem, device: Device, _workspace_limit_bytes: int, *, is_size_fixed: bool = True
) -> Launch:
    """Each thread computes one pixel of several filters, with all operands from global memory."""
    pixels = problem.gemm_m
    filters = filters_per_thread(plans.FILTERS, problem.gemm_n, pixels * problem.groups, device.processors)
    kernel = load_kernel(plans.SOURCE, "direct_naive", problem.dtype, **_defines(problem, filters, is_size_fixed))
    shape = shape_arguments(problem)
    threads = threads_for(pixels)
    blocks = ceil(pixels / threads) * problem.groups * ceil(problem.gemm_n / filters)

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        kernel((blocks,), (threads,), (x, weight, y, *addresses(problem.epilogue, ends), *shape))

    return Launch(run)


def prepare_constant(
    problem: ConvProblem, device: Device, _workspace_limit_bytes: int, *, is_size_fixed: bool = True
) -> Launch:
    """Fill constant memory with filters and launch, and repeat until all filters are done."""
    import cupy

    pixels, chunk = problem.gemm_m, plans.constant_filters(problem)
    filters = filters_per_thread(plans.FILTERS, chunk, pixels, device.processors) if problem.groups == 1 else 1
    defines = _defines(problem, filters, is_size_fixed)
    kernel = load_kernel(plans.SOURCE, "direct_constant", problem.dtype, **defines)
    memory = load_module(plans.SOURCE, problem.dtype, **defines).get_global("constant_weight").ptr
    shape = shape_arguments(problem)
    threads = threads_for(pixels)
    filter_bytes = problem.gemm_k * problem.dtype.itemsize_bytes
    runtime = cupy.cuda.runtime

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        stream = cupy.cuda.get_current_stream().ptr
        for begin in range(0, problem.k, chunk):
            count = min(chunk, problem.k - begin)
            source = weight.data.ptr + begin * filter_bytes
            runtime.memcpyAsync(memory, source, count * filter_bytes, runtime.memcpyDeviceToDevice, stream)
            blocks = ceil(pixels / threads) * ceil(count / filters)
            part = (np.int32(begin), np.int32(count))
            kernel((blocks,), (threads,), (x, y, *addresses(problem.epilogue, ends), *shape, *part))

    return Launch(run, scratch=(_ConstantMemory(),))


def prepare_tiled_halo(
    problem: ConvProblem, _device: Device, _workspace_limit_bytes: int, *, is_size_fixed: bool = True
) -> Launch:
    """Tile and halo in shared memory."""
    return _prepare_tiled(problem, "direct_tiled_halo", has_halo=True, is_size_fixed=is_size_fixed)


def prepare_tiled_cached(
    problem: ConvProblem, _device: Device, _workspace_limit_bytes: int, *, is_size_fixed: bool = True
) -> Launch:
    """Tile in shared memory, halo from the caches."""
    return _prepare_tiled(problem, "direct_tiled_cached", has_halo=False, is_size_fixed=is_size_fixed)


def _defines(problem: ConvProblem, filters: int, is_size_fixed: bool) -> dict[str, int]:
    """The source's definitions; ``is_size_fixed`` is false only to compare with a filter size known at run time."""
    fixed = plans.fixed_size(problem) if is_size_fixed else {}
    return {"FILTERS": filters, **fixed, **defines_of(problem.epilogue)}


def _prepare_tiled(problem: ConvProblem, name: str, *, has_halo: bool, is_size_fixed: bool) -> Launch:
    plan = plans.plan_tiles(problem, has_halo=has_halo)
    assert plan is not None, "the variant's rule asked"  # noqa: S101 - for mypy
    kernel = load_kernel(plans.SOURCE, name, problem.dtype, **_defines(problem, plan.filters, is_size_fixed))
    arguments = (*shape_arguments(problem), np.int32(plan.stage_channels))
    tiles = problem.n * ceil(problem.p / plan.height) * ceil(problem.q / plan.width)
    blocks = tiles * ceil(problem.k / plan.filters)

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        tensors = (x, weight, y, *addresses(problem.epilogue, ends))
        kernel((blocks,), (plan.width, plan.height), (*tensors, *arguments), shared_mem=plan.shared_bytes)

    return Launch(run)
