"""Launcher of few_inputs.cu."""

from __future__ import annotations

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.compile import load_kernel, shape_arguments
from conv_advisor.kernels.cuda.few_inputs import plan as plans
from conv_advisor.kernels.cuda.few_inputs.menu import Cut
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.launching import launch_of, prepare_start
from conv_advisor.kernels.cuda.parts.overlap import overlaps
from conv_advisor.kernels.variant import Launch


def prepare(problem: ConvProblem, device: Device, _workspace_limit_bytes: int) -> Launch:
    """One launch, with the cut of the kernel's own rule."""
    return launch(problem, device, plans.plan_cut(problem, device))


def launch(problem: ConvProblem, device: Device, cut: Cut) -> Launch:
    """One launch with this cut."""
    defines = cut.tile.defines(problem.c, problem.s) | defines_of(problem.epilogue)
    kernel = load_kernel(plans.SOURCE, "few_inputs", problem.dtype, **defines)
    stage = plans.Stage.of(cut, problem)
    sizes = (
        *(int(size) for size in shape_arguments(problem)),
        *(cut.tile_p, cut.tile_q, *plans.tiles_of(cut, problem)),
        *(stage.rows, stage.slots, stage.copy_bytes),
    )
    grid, begins_early = (plans.blocks_of(cut, problem, device), 1, 1), overlaps(plans.SOURCE)
    shared_bytes = plans.shared_bytes(cut, problem)
    start = prepare_start(kernel, grid, cut.tile.threads, shared_bytes, sizes, overlaps=begins_early)
    return launch_of(start, problem.epilogue)
