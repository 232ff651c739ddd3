"""The 1x1 convolution of pointwise.cu."""

from __future__ import annotations

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.compile import load_kernel, shape_arguments
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.launching import launch_of, prepare_start
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.overlap import overlaps
from conv_advisor.kernels.cuda.pointwise import plan as plans
from conv_advisor.kernels.cuda.pointwise.menu import Tile
from conv_advisor.kernels.variant import Launch


def prepare(problem: ConvProblem, device: Device, _workspace_limit_bytes: int) -> Launch:
    """One launch, with the tile and the cluster that the plan chooses."""
    return launch(problem, device, plans.plan_cut(problem, device))


def launch(problem: ConvProblem, device: Device, cut: Cut[Tile]) -> Launch:
    """One launch with this tile and cluster."""
    tile = cut.tile
    defines = plans.defines_for(tile, problem) | defines_of(problem.epilogue)
    kernel = load_kernel(plans.SOURCE, "pointwise", problem.dtype, **defines)
    blocks, shared_bytes = plans.blocks_for(cut, problem, device.processors), int(plans.shared_bytes(tile, problem))
    shape = [int(size) for size in shape_arguments(problem)]
    grid, begins_early = (blocks, 1, 1), overlaps(plans.SOURCE)
    start = prepare_start(kernel, grid, tile.threads, shared_bytes, shape, cluster=cut.cluster, overlaps=begins_early)
    return launch_of(start, problem.epilogue)
