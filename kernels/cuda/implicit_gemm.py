"""Launcher of implicit_gemm.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

import cupy

from data.measurement import Device
from data.problem import ConvProblem
from kernels.cuda import implicit_gemm_plan as plans
from kernels.cuda.compile import load_kernel, shape_arguments
from kernels.cuda.plans import SHARED_BYTES
from kernels.variant import Launch

Start = Callable[[Any, int, int, int, tuple[Any, ...]], None]
"""(kernel, blocks, threads, shared_bytes, arguments)"""

_ADDRESSES: Final = 3
"""x, weight and y: the arguments before the sizes."""


def prepare(problem: ConvProblem, device: Device, _workspace_limit_bytes: int) -> Launch:
    """One launch, with the tile and the cluster of the kernel's own rule."""
    return prepare_cut(problem, plans.plan_cut(problem, device))


def prepare_cut(problem: ConvProblem, cut: plans.Cut) -> Launch:
    """One launch with this tile and cluster."""
    tile, loading = cut.tile, plans.loading_for(problem)
    kernel = load_kernel("implicit_gemm", "implicit_gemm", problem.dtype, **tile.defines, LOADING=int(loading))
    shape = shape_arguments(problem)
    blocks = plans.blocks_for(cut, problem)
    shared_bytes = plans.shared_bytes(tile, problem, loading, cut.cluster)
    if shared_bytes > SHARED_BYTES:
        kernel.max_dynamic_shared_size_bytes = shared_bytes
    start = _start_blocks if cut.cluster == 1 else _start_clusters(cut.cluster)

    def run(x: Any, weight: Any, y: Any) -> None:
        start(kernel, blocks, tile.threads, shared_bytes, (x, weight, y, *shape))

    return Launch(run)


def _start_blocks(kernel: Any, blocks: int, threads: int, shared_bytes: int, arguments: tuple[Any, ...]) -> None:
    kernel((blocks,), (threads,), arguments, shared_mem=shared_bytes)


def _start_clusters(cluster: int) -> Start:
    # CuPy's own launch takes no cluster size.
    from cuda.bindings import driver

    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x = cluster
    attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1

    def start(kernel: Any, blocks: int, threads: int, shared_bytes: int, arguments: tuple[Any, ...]) -> None:
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = shared_bytes
        config.hStream = driver.CUstream(cupy.cuda.get_current_stream().ptr)
        config.attrs, config.numAttrs = [attribute], 1
        addresses = [array.data.ptr for array in arguments[:_ADDRESSES]]
        sizes = [int(size) for size in arguments[_ADDRESSES:]]
        types = (*[ctypes.c_void_p] * len(addresses), *[ctypes.c_int] * len(sizes))
        (status,) = driver.cuLaunchKernelEx(
            config, driver.CUfunction(kernel.kernel.ptr), ((*addresses, *sizes), types), 0
        )
        if status != driver.CUresult.CUDA_SUCCESS:
            raise cupy.cuda.driver.CUDADriverError(int(status))

    return start
