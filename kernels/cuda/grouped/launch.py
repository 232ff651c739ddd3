"""The grouped convolution of grouped.cu."""

from __future__ import annotations

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.compile import load_kernel, shape_arguments
from conv_advisor.kernels.cuda.grouped import cut as plans
from conv_advisor.kernels.cuda.grouped.plan import plan_cut
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.launching import launch_of, prepare_start
from conv_advisor.kernels.cuda.parts.overlap import overlaps
from conv_advisor.kernels.variant import Launch


def prepare(problem: ConvProblem, device: Device, _workspace_limit_bytes: int) -> Launch:
    """One launch, with the cut that the plan chooses."""
    return launch(problem, device, plan_cut(problem, device))


def launch(problem: ConvProblem, _device: Device, cut: plans.Cut) -> Launch:
    """One launch with this cut."""
    defines = plans.defines_for(cut.tile, problem) | defines_of(problem.epilogue)
    kernel = load_kernel(plans.SOURCE, "grouped", problem.dtype, **defines)
    blocks = int(cut.tile_blocks * plans.columns_of_blocks(problem, cut))
    sizes = [int(size) for size in shape_arguments(problem)] + plans.arguments(problem, cut)
    grid, shared_bytes = (blocks, 1, 1), plans.shared_bytes(problem, cut)
    start = prepare_start(kernel, grid, cut.threads, shared_bytes, sizes, overlaps=overlaps(plans.SOURCE))
    return launch_of(start, problem.epilogue)
