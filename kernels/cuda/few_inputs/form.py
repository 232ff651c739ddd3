"""The interface of a source of the implicit GEMM of few input channels, as plan and launcher use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.cuda.few_inputs.menu import FRAGMENT, Cut
from conv_advisor.kernels.cuda.parts.source import Defines, Source

LAYOUTS: Final[tuple[Defines, ...]] = (
    {"IS_NHWC": 1, "IS_PAIR": 0},
    {"IS_NHWC": 0, "IS_PAIR": 0},
    {"IS_NHWC": 0, "IS_PAIR": 1},
)
"""The definitions of a source for each layout."""
_FARTHEST_PAIR: Final = 2
"""Largest distance in x, in pixels, of two neighbours of y that one thread computes: farther pixels share banks."""

# Fitted to times of up to 24 cuts of 19 layers in three precisions and of 138 problems on an H200.
_SECTOR_BYTES: Final = 32
"""What memory stores at once: parts of it at either end of a run of outputs take as long as all of it."""
_RUN_CYCLES: Final = 4
"""Time that one filter's outputs of a store take of a multiprocessor, however many they are."""
_ROW_CYCLES: Final = 1
"""The same of one filter's outputs of a tile's row."""


def layout_defines(problem: ConvProblem) -> Defines:
    """The layout's definitions for a problem: in NCHW a thread stores two neighbours where it can."""
    return {"IS_NHWC": int(problem.layout is Layout.NHWC), "IS_PAIR": int(_is_pair(problem))}


def apart_cycles(cut: Cut, problem: ConvProblem) -> float:
    """Time that a tile's stores take of a multiprocessor where they begin anywhere in 32 bytes; else 0."""
    is_whole = problem.q * problem.dtype.itemsize_bytes % _SECTOR_BYTES == 0
    if is_whole or problem.layout is Layout.NHWC or _is_pair(problem):
        return 0.0
    run = min(cut.tile_q, FRAGMENT * min(cut.tile.mt, 2))
    outputs = cut.tile.pixels * min(cut.tile.filters, problem.k)
    return float(outputs * (_RUN_CYCLES / run + _ROW_CYCLES / cut.tile_q))


def _is_pair(problem: ConvProblem) -> bool:
    return problem.layout is Layout.NCHW and problem.q % 2 == 0 and problem.stride_w <= _FARTHEST_PAIR


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
