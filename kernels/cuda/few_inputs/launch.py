"""Launcher of the implicit GEMM of few input channels."""

from __future__ import annotations

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.cuda.compile import load_kernel, shape_arguments
from conv_advisor.kernels.cuda.few_inputs import plan as plans
from conv_advisor.kernels.cuda.few_inputs.menu import Cut
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.launching import launch_of, prepare_start, with_within
from conv_advisor.kernels.cuda.parts.overlap import overlaps
from conv_advisor.kernels.variant import Launch


def prepare(problem: ConvProblem, device: Device, _workspace_limit_bytes: int) -> Launch:
    """One launch, with the cut that the plan chooses."""
    return launch(problem, device, plans.plan_cut(problem, device))


def launch(problem: ConvProblem, device: Device, cut: Cut) -> Launch:
    """One launch with this cut."""
    form = plans.form_of(cut, problem, device)
    defines = form.defines(cut, problem) | defines_of(problem.epilogue)
    kernel = load_kernel(form.source, form.kernel, problem.dtype, **defines)
    sizes = (*(int(size) for size in shape_arguments(problem)), *form.sizes(cut, problem))
    grid, begins_early = (plans.blocks_of(cut, problem, device), 1, 1), overlaps(form.source)
    shared_bytes = form.shared_bytes(cut, problem)

    def into(channels: int) -> Launch:
        last = (channels,) if form.writes_within else ()
        start = prepare_start(kernel, grid, cut.tile.threads, shared_bytes, (*sizes, *last), overlaps=begins_early)
        return launch_of(start, problem.epilogue)

    is_within = form.writes_within and problem.layout is Layout.NHWC and not problem.epilogue.residual
    return with_within(into, problem.k) if is_within else into(problem.k)
