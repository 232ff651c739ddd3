"""What runs each plan: names of plans, and the variants that are loaded, which graphs look up by those names."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Protocol

from conv_advisor.data.problem import Layout
from conv_advisor.torch.calls.layers import MEMORY_FORMATS


class Run(Protocol):
    """One variant, ready on one device: it takes x and weight, dense in the plan's layout.

    With an epilogue that adds a bias or a residual it takes those two as well, None for the one that is not added.
    """

    def __call__(self, x: Any, weight: Any, *ends: Any) -> Any:
        """y; None where an operand is not aligned."""
        ...

    def run_here(self, x: Any, weight: Any, y: Any, *ends: Any) -> bool:
        """Write y, on the current device; False where an operand is not aligned, and y is as it was."""
        ...


LOADED: Final[dict[tuple[str, Any, int], Run | None]] = {}
"""What runs a plan on an x of this shape on this device; None where that is PyTorch's own convolution.

It is filled before a graph runs: under a capture nothing may be compiled, loaded or waited for.
"""


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


def layout_of_plan(plan: str) -> Layout:
    """The layout in which a plan takes x and weight and returns y."""
    return Layout(plan.partition("/")[0].rpartition("-")[2])


@cache  # every call asks
def memory_format_of_plan(plan: str) -> Any:
    """PyTorch's name of `layout_of_plan`."""
    return MEMORY_FORMATS[layout_of_plan(plan)]
