"""Launcher of the implicit GEMM of few filters."""

from __future__ import annotations

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.compile import load_kernel, shape_arguments
from conv_advisor.kernels.cuda.few_outputs import plan as plans
from conv_advisor.kernels.cuda.few_outputs.plan import SOURCE, Cut
from conv_advisor.kernels.cuda.parts.division import magic
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.launching import launch_of, prepare_start
from conv_advisor.kernels.cuda.parts.overlap import overlaps
from conv_advisor.kernels.variant import Launch


def prepare(problem: ConvProblem, device: Device, _workspace_limit_bytes: int) -> Launch:
    """One launch, with the cut that the plan chooses."""
    return launch(problem, device, plans.plan_cut(problem, device))


def launch(problem: ConvProblem, _device: Device, cut: Cut) -> Launch:
    """One launch with this cut."""
    defines = plans.defines_of(cut, problem) | defines_of(problem.epilogue)
    kernel = load_kernel(SOURCE, SOURCE.name, problem.dtype, **defines)
    sizes = (
        *(int(size) for size in shape_arguments(problem)),
        *(cut.tile_p.bit_length() - 1, cut.tile_q.bit_length() - 1, *cut.tiles_of(problem)),
        *(cut.splits, plans.rows_at_once(problem), magic(cut.width(problem), 32), cut.pitch(problem)),
    )
    grid = (plans.blocks_of(cut, problem), 1, 1)
    shared_bytes = cut.shared_bytes(problem)
    start = prepare_start(kernel, grid, cut.threads, shared_bytes, sizes, overlaps=overlaps(SOURCE))
    return launch_of(start, problem.epilogue)
