"""What differs between the sources of the implicit GEMM of few input channels, as plan and launcher ask for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.few_inputs.menu import Cut
from conv_advisor.kernels.cuda.parts.source import Defines, Source


@dataclass(frozen=True)
class Form:
    """One source, and how it runs.

    Parameters
    ----------
    source : Source
    kernel : str
    cuts : tuple of Cut
    defines : callable (cut, problem) -> dict
        What the source is compiled with.
    sizes : callable (cut, problem) -> tuple of int
        The kernel's parameters behind the shape's.
    shared_bytes : callable (cut, problem) -> int
        Shared memory of a block.
    cycles : callable (cut, problem, turns, beside) -> float
        Expected of a launch whose blocks take so many tiles one after the other, so many of them on a multiprocessor.
    """

    source: Source
    kernel: str
    cuts: tuple[Cut, ...]
    defines: Callable[[Cut, ConvProblem], Defines]
    sizes: Callable[[Cut, ConvProblem], tuple[int, ...]]
    shared_bytes: Callable[[Cut, ConvProblem], int]
    cycles: Callable[[Cut, ConvProblem, int, int], float]
