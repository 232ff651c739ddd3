"""Which of the two forms multiplies a problem, and in which cut: the one that is expected to be faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.few_outputs import plan as windows
from conv_advisor.kernels.cuda.few_outputs import rows, takes_windows
from conv_advisor.kernels.cuda.few_outputs.plan import Cut
from conv_advisor.kernels.cuda.few_outputs.rows import RowCut
from conv_advisor.kernels.cuda.parts.offers import Offer, cheapest
from conv_advisor.kernels.cuda.parts.shapes import Shapes


def cuts_of(problem: ConvProblem, device: Device) -> tuple[Cut | RowCut, ...]:
    """Every cut of either form whose block fits."""
    return (*(windows.cuts_of(problem, device) if takes_windows(problem) else ()), *rows.cuts_of(problem, device))


def expected_cycles(cut: Cut | RowCut, problem: ConvProblem, device: Device) -> float:
    """Cycles of the busiest multiprocessor."""
    if isinstance(cut, RowCut):
        return float(rows.expected_cycles(cut, problem, device))
    return float(windows.expected_cycles(cut, problem, device))


def offers(problems: Shapes, device: Device) -> Iterator[Offer[Any]]:
    """`cuts_of` many problems, with the times that are expected of them."""
    for offer in windows.offers(problems, device):
        yield replace(offer, us=np.where(takes_windows(problems), offer.us, np.inf))
    yield from rows.offers(problems, device)


def choose(problem: ConvProblem, device: Device) -> Cut | RowCut:
    """The cut that is expected to be fastest."""
    cut: Cut | RowCut = cheapest(offers(Shapes.of(problem), device)).tile
    return cut
