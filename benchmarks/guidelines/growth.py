"""How the time of a variant grows with depth and with the number of filters: the study's finding on tensor cores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from benchmarks.guidelines.study import PRECOMPUTED, WINOGRAD_NONFUSED, with_tensor_cores
from benchmarks.measured import fastest_ms
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.costs import Costs

LEAST_DEPTH: Final = 16
"""The study's least depth. An image's depth of 3 is padded for tensor cores, so a little more of it costs nothing."""


class Varied(StrEnum):
    """What differs between the two layers of a pair, and nothing else."""

    DEPTH = "depth"
    FILTERS = "filters"


_SIZE: Final[dict[Varied, Callable[[ConvProblem], int]]] = {
    Varied.DEPTH: lambda problem: problem.c,
    Varied.FILTERS: lambda problem: problem.k,
}


@dataclass(frozen=True, slots=True)
class Growth:
    """How one kernel or variant takes longer on a larger layer.

    Parameters
    ----------
    factors, ratios : float64 array of shape (N,)
        Of each pair, the larger layer over the smaller: the ratio of depths or filters, and the ratio of times.
    """

    factors: np.ndarray
    ratios: np.ndarray

    @property
    def a_doubling(self) -> float:
        """Ratio of times of a doubling, by the power of the factor that fits all pairs best; NaN without pairs."""
        if not len(self.factors):
            return math.nan
        logs = np.log2(self.factors)
        return float(2 ** (logs @ np.log2(self.ratios) / (logs @ logs)))


def _one(factor: float, ratio: float) -> Growth:
    return Growth(np.array([factor]), np.array([ratio]))


STUDIED: Final[dict[str, dict[Varied, Growth]]] = {
    with_tensor_cores(WINOGRAD_NONFUSED): {Varied.FILTERS: _one(4, 1.2), Varied.DEPTH: _one(16, 2.9)},
    with_tensor_cores(PRECOMPUTED): {Varied.FILTERS: _one(4, 3.3), Varied.DEPTH: _one(16, 6.2)},
}
"""Section III-B of the study: its main kernels on 3×3 filters in 16 bit, 64 to 256 filters, and depth 16 to 256."""


def growth_of(costs: Costs, variant: str, varied: Varied, filter_size: int) -> Growth:
    """The growth over all pairs of measured layers that differ in the depth alone, or in the filters alone.

    Parameters
    ----------
    costs : Costs
    variant : str
    varied : Varied
    filter_size : int
        That of all paired layers.
    """
    times_ms = fastest_ms(costs, [variant])
    alike: dict[ConvProblem, list[tuple[int, float]]] = {}
    for problem, time_ms in zip(costs.problems, times_ms.tolist(), strict=True):
        if problem.r == filter_size and problem.c >= LEAST_DEPTH and math.isfinite(time_ms):
            alike.setdefault(_without(problem, varied), []).append((_SIZE[varied](problem), time_ms))
    pairs = [pair for layers in alike.values() for pair in _pairs(layers)]
    return Growth(np.array([factor for factor, _ in pairs]), np.array([ratio for _, ratio in pairs]))


def _without(problem: ConvProblem, varied: Varied) -> ConvProblem:
    """What a layer has in common with those that it is paired with."""
    return replace(problem, c=1) if varied is Varied.DEPTH else replace(problem, k=1)


def _pairs(layers: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    return [(large / small, ms / small_ms) for small, small_ms in layers for large, ms in layers if large > small]
