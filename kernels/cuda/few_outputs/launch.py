"""Launcher of the implicit GEMM of few filters."""

from __future__ import annotations

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.compile import load_kernel, shape_arguments
from conv_advisor.kernels.cuda.few_outputs import plan as plans
from conv_advisor.kernels.cuda.few_outputs import rows
from conv_advisor.kernels.cuda.few_outputs.choice import choose
from conv_advisor.kernels.cuda.few_outputs.plan import SOURCE, Cut
from conv_advisor.kernels.cuda.few_outputs.rows import RowCut
from conv_advisor.kernels.cuda.parts.division import magic
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.launching import launch_of, prepare_start
from conv_advisor.kernels.cuda.parts.overlap import overlaps
from conv_advisor.kernels.cuda.parts.source import Defines, Source
from conv_advisor.kernels.variant import Launch


def prepare(problem: ConvProblem, device: Device, _workspace_limit_bytes: int) -> Launch:
    """One launch, with the cut that the plan chooses."""
    return launch(problem, device, choose(problem, device))


def launch(problem: ConvProblem, device: Device, cut: Cut | RowCut) -> Launch:
    """One launch with this cut."""
    source, defines = build_of(problem, cut)
    kernel = load_kernel(source, source.name, problem.dtype, **defines)
    if isinstance(cut, RowCut):
        sizes, blocks = rows.sizes(cut, problem), int(rows.blocks_of(cut, problem, device))
    else:
        sizes, blocks = _sizes(cut, problem), plans.blocks_of(cut, problem)
    every_size = (*(int(size) for size in shape_arguments(problem)), *sizes)
    shared_bytes = int(cut.shared_bytes(problem))
    start = prepare_start(kernel, (blocks, 1, 1), cut.threads, shared_bytes, every_size, overlaps=overlaps(source))
    return launch_of(start, problem.epilogue)


def build_of(problem: ConvProblem, cut: Cut | RowCut) -> tuple[Source, Defines]:
    """The source of a cut, and its definitions with those of the epilogue."""
    ends = defines_of(problem.epilogue)
    if isinstance(cut, RowCut):
        return rows.SOURCE, rows.defines_of(cut, problem) | ends
    return SOURCE, plans.defines_of(cut, problem) | ends


def _sizes(cut: Cut, problem: ConvProblem) -> tuple[int, ...]:
    """The parameters of few_outputs.cu after those of the shape."""
    return (
        *(cut.tile_p.bit_length() - 1, cut.tile_q.bit_length() - 1, *cut.tiles_of(problem)),
        *(cut.splits, plans.rows_at_once(problem), magic(cut.width(problem), 32), cut.pitch(problem)),
    )
