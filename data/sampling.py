"""Made-up layers like those of real networks, spread over the whole space: more to train on than the seeds' layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from data import networks
from data.errors import InvalidInput
from data.problem import ConvProblem, DType, Layout

MAX_FLOPS: Final = 2e12
MAX_BYTES: Final = 1.5e9
"""Largest sampled problem, in float32: operations, and bytes of x, weight and y together."""

FIRST_LAYER_SHARE: Final = 0.03
"""Layers that read an RGB image."""
STRIDE_2_SHARE: Final = 1 / 16

_MAX_SIZE_TIMES_CHANNELS: Final = 28_672
"""Networks trade resolution for channels: at 14 pixels a side up to 2048 of them, at 56 up to 512, at 224 up to 128."""
_LEAST_CHANNELS: Final = 8
_SIZES: Final = (7, 8, 13, 14, 16, 27, 28, 32, 55, 56, 64, 112, 128, 224)
_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_FILTERS: Final[dict[int, float]] = {1: 0.48, 3: 0.36, 5: 0.13, 7: 0.03}
_POINTS_AT_ONCE: Final = 1024
"""A power of two keeps the sequence balanced."""


def sample_problems(
    count: int, seed: int, *, dtypes: Iterable[DType] = (DType.FLOAT32,), layouts: Iterable[Layout] = (Layout.NCHW,)
) -> list[ConvProblem]:
    """Draw distinct square, same-padded layers, most of them of stride 1, none of them a layer of the seed networks.

    Parameters
    ----------
    count : int
        Layers with their batches; each is given in every dtype and layout.
    seed : int
        Equal seeds give equal layers, and a smaller count the first of those of a larger one.

    Returns
    -------
    list of ConvProblem, as long as count times dtypes times layouts
        Spread evenly, whatever the count: in the order of the sequence, not sorted.

    Raises
    ------
    InvalidInput

    Notes
    -----
    A scrambled Sobol sequence, each coordinate mapped through the inverse of a distribution that favours usual values
    and is otherwise uniform in the logarithm.
    """
    if count < 0:
        raise InvalidInput("count", count, "0 or more")
    dtypes, layouts = tuple(dtypes), tuple(layouts)
    seen = {layer.problem for layer in networks.layers("seeds")}
    drawn: dict[ConvProblem, None] = {}
    points = _sequence(seed)
    while len(drawn) < count:
        problem = _problem(*next(points))
        if replace(problem, n=1) not in seen and problem.flops <= MAX_FLOPS and problem.bytes <= MAX_BYTES:
            drawn[problem] = None
    return [replace(problem, dtype=dtype, layout=layout) for problem in drawn for dtype in dtypes for layout in layouts]


@dataclass(frozen=True, slots=True)
class _Scale:
    """Values in rising order, and the share of the distribution below each one and, at the end, below infinity."""

    values: np.ndarray
    below: np.ndarray

    @classmethod
    def mixed(cls, *parts: tuple[float, dict[int, float]]) -> _Scale:
        """Mix distributions, given as weights of values, by these shares."""
        weights: dict[int, float] = {}
        for share, part in parts:
            total = sum(part.values())
            for value, weight in part.items():
                weights[value] = weights.get(value, 0.0) + share * weight / total
        values = sorted(weights)
        return cls(np.array(values), np.concatenate([[0.0], np.cumsum([weights[value] for value in values])]))

    def at(self, share: float, most: float = np.inf) -> int:
        """The value below which this share of the distribution lies, the distribution cut off above `most`."""
        reach = self.below[np.searchsorted(self.values, most, side="right")]
        return int(self.values[np.searchsorted(self.below, share * reach, side="right") - 1])


def _evenly(values: Iterable[int]) -> dict[int, float]:
    return dict.fromkeys(values, 1.0)


def _log_uniform(values: Iterable[int]) -> dict[int, float]:
    return {value: 1 / value for value in values}


_SIZE: Final = _Scale.mixed((0.7, _evenly(_SIZES)), (0.3, _log_uniform(range(7, 225))))
_BATCH: Final = _Scale.mixed((0.85, _evenly(_BATCHES)), (0.15, _log_uniform(range(1, 257))))
_FILTER: Final = _Scale.mixed((1.0, _FILTERS))
_CHANNELS: Final = _Scale.mixed(
    (0.10, _log_uniform(range(_LEAST_CHANNELS, 2049))),
    (0.25, _log_uniform(range(8, 2049, 8))),
    (0.40, _log_uniform(range(16, 2049, 16))),
    (0.25, _evenly(2**power for power in range(4, 12))),
)


def _sequence(seed: int) -> Iterator[list[float]]:
    from scipy.stats import qmc

    sobol = qmc.Sobol(6, rng=np.random.default_rng(seed))
    while True:
        yield from sobol.random(_POINTS_AT_ONCE).tolist()


def _problem(size_at: float, batch_at: float, filter_at: float, c_at: float, k_at: float, kind: float) -> ConvProblem:
    size, taps = _SIZE.at(size_at), _FILTER.at(filter_at)
    most = max(_MAX_SIZE_TIMES_CHANNELS / size, _LEAST_CHANNELS)
    stride = 2 if kind >= 1 - STRIDE_2_SHARE else 1
    return ConvProblem(
        n=_BATCH.at(batch_at),
        c=3 if kind < FIRST_LAYER_SHARE else _CHANNELS.at(c_at, most),
        h=size,
        w=size,
        k=_CHANNELS.at(k_at, most),
        r=taps,
        s=taps,
        stride_h=stride,
        stride_w=stride,
        pad_h=taps // 2,
        pad_w=taps // 2,
    )
