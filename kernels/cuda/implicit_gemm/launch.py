"""Launcher of implicit_gemm.cu, and of implicit_gemm_tensor.cu where that is faster."""

from __future__ import annotations

from typing import Any

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.compile import load_kernel, shape_arguments
from conv_advisor.kernels.cuda.implicit_gemm import plan as plans
from conv_advisor.kernels.cuda.implicit_gemm.choice import choose_cut
from conv_advisor.kernels.cuda.implicit_gemm.menu import Tile
from conv_advisor.kernels.cuda.implicit_gemm_tensor import launch as tensor
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.launching import launch_of, prepare_start
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.overlap import overlaps
from conv_advisor.kernels.variant import Launch


def prepare(problem: ConvProblem, device: Device, _workspace_limit_bytes: int) -> Launch:
    """One launch, with the kernel, the tile and the cluster that are expected to be fastest."""
    cut: Cut[Any] = choose_cut(problem, device)
    if isinstance(cut.tile, Tile):
        return launch(problem, device, cut)
    return tensor.launch(problem, device, cut)


def launch(problem: ConvProblem, _device: Device, cut: Cut[Tile]) -> Launch:
    """One launch of implicit_gemm.cu with this tile and cluster."""
    tile, loading = cut.tile, plans.loading_for(problem)
    kernel = load_kernel(
        plans.SOURCE,
        "implicit_gemm",
        problem.dtype,
        **tile.defines,
        LOADING=int(loading),
        **defines_of(problem.epilogue),
    )
    grid = (plans.blocks_for(cut, problem), 1, 1)
    shared_bytes = int(plans.shared_bytes(tile, cut.cluster, problem))
    shape = [int(size) for size in shape_arguments(problem)]
    begins_early = overlaps(plans.SOURCE)
    start = prepare_start(kernel, grid, tile.threads, shared_bytes, shape, cluster=cut.cluster, overlaps=begins_early)
    return launch_of(start, problem.epilogue)
