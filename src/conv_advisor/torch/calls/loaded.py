"""What runs each plan: names of plans, and the variants that are loaded, which graphs look up by those names."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Protocol

import torch

from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.torch.calls.layers import MEMORY_FORMATS


class Run(Protocol):
    """One variant, ready on one device: it takes x and weight, dense in the plan's layout.

    With an epilogue that adds a bias or a residual it takes those two as well, None for the one that is not added.

    Attributes
    ----------
    writes_within : bool
        Whether it can write y as some of the channels of a larger tensor, nhwc.
    """

    writes_within: bool

    def __call__(self, x: Any, weight: Any, *ends: Any) -> Any:
        """y; None where an operand is not aligned."""
        ...

    def run_here(self, x: Any, weight: Any, y: Any, *ends: Any) -> bool:
        """Write y, on the current device; False where an operand is not aligned, and y is as it was."""
        ...

    def run_within(self, x: Any, weight: Any, y: Any, *ends: Any) -> bool:
        """The same where y is some of the channels of a larger tensor, nhwc; False also where it cannot write so."""
        ...

    def run_behind_prologue(self, x: Any, weight: Any, y: Any, prologue: Any, *ends: Any, channels: int) -> bool:
        """The same of max(x * scale + shift, 0), x the first of so many channels, nhwc; False where it has none."""
        ...


LOADED: Final[dict[tuple[str, Any, int], Run | None]] = {}
"""What runs a plan on an x of this shape on this device; None where that is PyTorch's own convolution.

It is filled before a graph runs: under a capture nothing may be compiled, loaded or waited for.
"""

_PROLOGUE: Final = "prologue"


def plan_name(problem_key: str, limits: str = "") -> str:
    """The name of a plan: the key of its problem, and what narrows the choice.

    Parameters
    ----------
    problem_key : str
        `ConvProblem.key`. With symbolic sizes it has the shape that the graph was made for; x tells other shapes.
    limits : str
        As `Options.limits` says it.
    """
    return f"{problem_key}/{limits}" if limits else problem_key


def plan_behind(plan: str) -> str:
    """The name of the plan by which a problem runs behind a prologue, by that of its own plan."""
    key, _, limits = plan.partition("/")
    return plan_name(key, f"{limits}-{_PROLOGUE}" if limits else _PROLOGUE)


def limits_of(plan: str) -> list[str]:
    """The parts of what narrows a plan's choice, as `plan_name` was told it."""
    return plan.partition("/")[2].split("-")


def is_behind(plan: str) -> bool:
    """Whether a plan is one of `plan_behind`."""
    return limits_of(plan)[-1] == _PROLOGUE


def run_of(plan: str, device: Any) -> Run | None:
    """What is loaded for a plan on a device, for the shape that it is named after; None where nothing is."""
    problem = problem_of_plan(plan)
    index = -1 if device.index is None else device.index
    return LOADED.get((plan, torch.Size((problem.n, problem.c, problem.h, problem.w)), index))


@cache
def problem_of_plan(plan: str) -> ConvProblem:
    """The problem that a plan is named after; only the sizes of its filter are certain."""
    short, dtype, layout = plan.partition("/")[0].rsplit("-", 2)
    return ConvProblem.parse(short, dtype=dtype, layout=layout)


def layout_of_plan(plan: str) -> Layout:
    """The layout in which a plan takes x and weight and returns y."""
    return Layout(plan.partition("/")[0].rpartition("-")[2])


@cache  # every call asks
def memory_format_of_plan(plan: str) -> Any:
    """PyTorch's name of `layout_of_plan`."""
    return MEMORY_FORMATS[layout_of_plan(plan)]
