"""How the implicit GEMM of few input channels cuts a problem: its tile, and how many of its pixels lie in a row."""

from __future__ import annotations

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.few_inputs import float32, halves, is_narrow, narrow, taps
from conv_advisor.kernels.cuda.few_inputs.form import Form
from conv_advisor.kernels.cuda.few_inputs.menu import Cut
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.multiprocessor import RESERVED_BYTES, shared_memory_of


def forms_of(problem: ConvProblem, device: Device) -> tuple[Form, ...]:
    """The sources for the problem's precision and the device, and how they run."""
    if problem.dtype not in (DType.FLOAT16, DType.BFLOAT16):
        return (float32.WGMMA if device.capability == "9.0" else float32.MMA,)
    if is_narrow(problem):
        return (narrow.FORM,)
    return (halves.FORM, taps.FORM) if taps.takes(problem, device) else (halves.FORM,)


def form_of(cut: Cut, problem: ConvProblem, device: Device) -> Form:
    """The one of these that a cut is for: no two of them have the same tiles."""
    return next(form for form in forms_of(problem, device) if cut in form.cuts)


def residents(cut: Cut, problem: ConvProblem, device: Device) -> int:
    """Blocks that a multiprocessor holds; 0 where not even one fits."""
    fitting = shared_memory_of(device) // (form_of(cut, problem, device).shared_bytes(cut, problem) + RESERVED_BYTES)
    return min(cut.tile.blocks, fitting)


def blocks_of(cut: Cut, problem: ConvProblem, device: Device) -> int:
    """Blocks of the grid: for each tile of filters, as many as run at a time, at most one per tile of pixels."""
    tiles_p, tiles_q, tiles_f = cut.tiles_of(problem)
    room = (device.processors or 1) * residents(cut, problem, device)
    return tiles_f * max(1, min(problem.n * tiles_p * tiles_q, room // tiles_f))


def expected_cycles(cut: Cut, problem: ConvProblem, device: Device) -> float:
    """Expected cycles of the block that has the most tiles."""
    tiles_p, tiles_q, tiles_f = cut.tiles_of(problem)
    blocks = blocks_of(cut, problem, device)
    turns = ceil_div(problem.n * tiles_p * tiles_q, blocks // tiles_f)
    resident = min(residents(cut, problem, device), ceil_div(blocks, device.processors or 1))
    return form_of(cut, problem, device).cycles(cut, problem, turns, resident)


def cuts_of(problem: ConvProblem, device: Device) -> tuple[Cut, ...]:
    """Every cut whose block fits."""
    return tuple(cut for form in forms_of(problem, device) for cut in form.cuts if residents(cut, problem, device))


def plan_cut(problem: ConvProblem, device: Device) -> Cut:
    """The cut that is expected to be fastest."""
    return min(cuts_of(problem, device), key=lambda cut: expected_cycles(cut, problem, device))
