"""Which of the two forms multiplies a problem, and in which cut: the one that is expected to be faster."""

from __future__ import annotations

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.few_outputs import plan as windows
from conv_advisor.kernels.cuda.few_outputs import rows, takes_windows
from conv_advisor.kernels.cuda.few_outputs.plan import Cut
from conv_advisor.kernels.cuda.few_outputs.rows import RowCut


def cuts_of(problem: ConvProblem, device: Device) -> tuple[Cut | RowCut, ...]:
    """Every cut of either form whose block fits."""
    return (*(windows.cuts_of(problem, device) if takes_windows(problem) else ()), *rows.cuts_of(problem, device))


def expected_cycles(cut: Cut | RowCut, problem: ConvProblem, device: Device) -> float:
    """Cycles of the busiest multiprocessor."""
    if isinstance(cut, RowCut):
        return rows.expected_cycles(cut, problem, device)
    return windows.expected_cycles(cut, problem, device)


def choose(problem: ConvProblem, device: Device) -> Cut | RowCut:
    """The cut that is expected to be fastest."""
    return min(cuts_of(problem, device), key=lambda cut: expected_cycles(cut, problem, device))
