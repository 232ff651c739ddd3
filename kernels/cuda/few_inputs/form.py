"""What differs between the sources of the implicit GEMM of few input channels, as plan and launcher ask for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.few_inputs.menu import Cut
from conv_advisor.kernels.cuda.parts.source import Defines, Source


@dataclass(frozen=True)
class Load:
    """What a block asks of a multiprocessor, in cycles.

    Parameters
    ----------
    busy : float
        A tile, where other blocks fill every wait.
    alone : float
        A tile of a block that nothing else runs beside.
    packed : float
        The block's weight, once.
    """

    busy: float
    alone: float
    packed: float


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
    load : callable (cut, problem) -> Load
    """

    source: Source
    kernel: str
    cuts: tuple[Cut, ...]
    defines: Callable[[Cut, ConvProblem], Defines]
    sizes: Callable[[Cut, ConvProblem], tuple[int, ...]]
    shared_bytes: Callable[[Cut, ConvProblem], int]
    load: Callable[[Cut, ConvProblem], Load]
