"""The interface of a source of the implicit GEMM of few input channels, as plan and launcher use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.cuda.few_inputs.menu import Cut
from conv_advisor.kernels.cuda.parts.source import Defines, Source

LAYOUTS: Final[tuple[Defines, ...]] = (
    {"IS_NHWC": 1, "IS_PAIR": 0},
    {"IS_NHWC": 0, "IS_PAIR": 0},
    {"IS_NHWC": 0, "IS_PAIR": 1},
)
"""The definitions of a source for each layout."""
_FARTHEST_PAIR: Final = 2
"""Largest distance in x, in pixels, of two neighbours of y that one thread computes: farther pixels share banks."""


def layout_defines(problem: ConvProblem) -> Defines:
    """The layout's definitions for a problem: in NCHW a thread stores two neighbours where it can."""
    is_nhwc = problem.layout is Layout.NHWC
    is_pair = not is_nhwc and problem.q % 2 == 0 and problem.stride_w <= _FARTHEST_PAIR
    return {"IS_NHWC": int(is_nhwc), "IS_PAIR": int(is_pair)}


@dataclass(frozen=True)
class Form:
    """One source, and how it runs.

    Parameters
    ----------
    source : Source
    kernel : str
    cuts : tuple of Cut
    defines : callable (cut, problem) -> dict
        The definitions that the source is compiled with.
    sizes : callable (cut, problem) -> tuple of int
        The kernel's parameters after those of the shape.
    shared_bytes : callable (cut, problem) -> int
        Shared memory of a block.
    cycles : callable (cut, problem, turns, resident) -> float
        Expected cycles of a launch whose blocks take ``turns`` tiles each, with ``resident`` blocks per multiprocessor.
    writes_within : bool
        Whether the kernel's last parameter is how many channels y is some of.
    """

    source: Source
    kernel: str
    cuts: tuple[Cut, ...]
    defines: Callable[[Cut, ConvProblem], Defines]
    sizes: Callable[[Cut, ConvProblem], tuple[int, ...]]
    shared_bytes: Callable[[Cut, ConvProblem], int]
    cycles: Callable[[Cut, ConvProblem, int, int], float]
    writes_within: bool = False
