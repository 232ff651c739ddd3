"""Made-up layers like those of real networks, spread over their whole space: more to train on than the seeds have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from conv_advisor.data import networks
from conv_advisor.data.errors import InvalidInput, InvalidProblem
from conv_advisor.data.extras import require
from conv_advisor.data.problem import ConvProblem, DType, Layout

MAX_FLOPS: Final = 2e12
MAX_BYTES: Final = 1.5e9
"""Largest sampled problem, in float32: operations, and bytes of x, weight and y together."""

FIRST_LAYER_SHARE: Final = 0.03
"""Share of layers that read an RGB image."""
SIGNAL_SHARE: Final = 0.08
"""Share of layers over signals, in one dimension."""
STRIDE_2_SHARE: Final = 1 / 8
DILATED_SHARE: Final = 0.02
DEPTHWISE_SHARE: Final = 0.07
GROUPED_SHARE: Final = 0.03
RECTANGULAR_SHARE: Final = 0.15
"""Share of planes that are not square: frames of a camera, and crops of them."""

_MAX_SIZE_TIMES_CHANNELS: Final = 28_672
"""Networks trade resolution for channels: at 14 pixels a side up to 2048 of them, at 56 up to 512, at 224 up to 128."""
_LEAST_CHANNELS: Final = 8
_SIZES: Final = (7, 8, 13, 14, 16, 27, 28, 32, 55, 56, 64, 112, 128, 224)
_LARGEST_SIZE: Final = 1024
_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_FILTERS: Final = {(1, 1): 0.46, (3, 3): 0.36, (5, 5): 0.11, (7, 7): 0.03}
_FLAT_FILTERS: Final = dict.fromkeys(((1, 3), (3, 1), (1, 7), (7, 1)), 0.01)
_ASPECTS: Final = (1 / 2, 9 / 16, 3 / 4, 4 / 3, 16 / 9, 2)
_LENGTHS: Final = (64, 160_000)
"""Of signals: from 64 frames to ten seconds at 16 kHz."""
_MAX_LENGTH_TIMES_CHANNELS: Final = 2**24
"""wav2vec 2.0 has 512 channels of 31,999 samples."""
_SIGNAL_TAPS: Final = {1: 0.2, 3: 0.3, 5: 0.1, 7: 0.15, 9: 0.05, 11: 0.1, 16: 0.03, 31: 0.04, 128: 0.03}
_STRIDES_AND_DILATIONS: Final = (*((1, 1),) * 10, (2, 1), (4, 1), (5, 1), (8, 1), (1, 2), (1, 3), (1, 5), (1, 9))
_GROUP_SIZES: Final = (4, 8, 16, 24, 32)
"""Channels of a group."""
_POINTS_AT_ONCE: Final = 1024
"""A power of two keeps the sequence balanced."""


def sample_problems(
    count: int, seed: int, *, dtypes: Iterable[DType] = (DType.FLOAT32,), layouts: Iterable[Layout] = (Layout.NCHW,)
) -> list[ConvProblem]:
    """Draw distinct same-padded layers, most of them square, of stride 1 and ungrouped; some over signals.

    None of them is a layer of the seed networks, nor of the networks that advice is judged by.

    Parameters
    ----------
    count : int
        Layers with their batches; each is given in every dtype and layout.
    seed : int
        Equal seeds give equal layers; a smaller count gives the first layers of a larger one.

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
    seen = {layer.problem for name in ("seeds", *networks.NEVER_TRAINED) for layer in networks.layers(name)}
    drawn: dict[ConvProblem, None] = {}
    points = _sequence(seed)
    while len(drawn) < count:
        with suppress(InvalidProblem):  # too large for a tensor
            problem = _problem(next(points))
            if replace(problem, n=1) not in seen and problem.flops <= MAX_FLOPS and problem.bytes <= MAX_BYTES:
                drawn[problem] = None
    return [replace(problem, dtype=dtype, layout=layout) for problem in drawn for dtype in dtypes for layout in layouts]


class _Point(NamedTuple):
    """One point of the unit cube: the quantile of each choice in its distribution."""

    size: float
    batch: float
    filter: float
    c: float
    k: float
    kind: float
    aspect: float
    groups: float


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


_SIZE: Final = _Scale.mixed(
    (0.62, _evenly(_SIZES)),
    (0.25, _log_uniform(range(7, 225))),
    (0.10, _log_uniform(range(225, _LARGEST_SIZE + 1))),
    (0.03, {1: 1.0}),  # the gates of squeeze-and-excitation
)
_BATCH: Final = _Scale.mixed((0.85, _evenly(_BATCHES)), (0.15, _log_uniform(range(1, 257))))
_CHANNELS: Final = _Scale.mixed(
    (0.10, _log_uniform(range(_LEAST_CHANNELS, 2049))),
    (0.25, _log_uniform(range(8, 2049, 8))),
    (0.40, _log_uniform(range(16, 2049, 16))),
    (0.25, _evenly(2**power for power in range(4, 12))),
)
_TAPS: Final = tuple(_FILTERS | _FLAT_FILTERS)
_TAPS_BELOW: Final = np.cumsum([*_FILTERS.values(), *_FLAT_FILTERS.values()])


def _sequence(seed: int) -> Iterator[_Point]:
    require("scipy")
    from scipy.stats import qmc

    sobol = qmc.Sobol(len(_Point._fields), rng=np.random.default_rng(seed))
    while True:
        yield from map(_Point._make, sobol.random(_POINTS_AT_ONCE).tolist())


def _problem(point: _Point) -> ConvProblem:
    if FIRST_LAYER_SHARE <= point.kind < FIRST_LAYER_SHARE + SIGNAL_SHARE:
        return _signal(point)
    size = _SIZE.at(point.size)
    r, s = _TAPS[int(np.searchsorted(_TAPS_BELOW[:-1], point.filter, side="right"))]
    most = max(_MAX_SIZE_TIMES_CHANNELS / size, _LEAST_CHANNELS)
    c = 3 if point.kind < FIRST_LAYER_SHARE else _CHANNELS.at(point.c, most)
    c, k, groups = _grouped(c, _CHANNELS.at(point.k, most), point.groups)
    stride = 2 if point.kind >= 1 - STRIDE_2_SHARE else 1
    dilation = 2 if stride == 1 and point.kind >= 1 - STRIDE_2_SHARE - DILATED_SHARE else 1
    return ConvProblem(
        n=_BATCH.at(point.batch),
        c=c,
        h=size,
        w=_width(size, point.aspect),
        k=k,
        r=r,
        s=s,
        stride_h=stride,
        stride_w=stride,
        pad_h=dilation * (r // 2),
        pad_w=dilation * (s // 2),
        dilation_h=dilation if r > 1 else 1,
        dilation_w=dilation if s > 1 else 1,
        groups=groups,
    )


def _signal(point: _Point) -> ConvProblem:
    """A layer in one dimension."""
    shortest, longest = _LENGTHS
    length = round(shortest * (longest / shortest) ** point.size)
    most = max(_MAX_LENGTH_TIMES_CHANNELS / length, _LEAST_CHANNELS)
    taps = list(_SIGNAL_TAPS)[int(np.searchsorted(np.cumsum(list(_SIGNAL_TAPS.values()))[:-1], point.filter, "right"))]
    stride, dilation = _STRIDES_AND_DILATIONS[int(point.aspect * len(_STRIDES_AND_DILATIONS))]
    dilation = dilation if taps > 1 else 1
    c, k, groups = _grouped(_CHANNELS.at(point.c, most), _CHANNELS.at(point.k, most), point.groups)
    return ConvProblem(
        n=_BATCH.at(point.batch),
        c=c,
        h=1,
        w=length,
        k=k,
        r=1,
        s=taps,
        stride_w=stride,
        pad_w=dilation * (taps // 2),
        dilation_w=dilation,
        groups=groups,
    )


def _width(height: int, share: float) -> int:
    """The height in most draws, otherwise another size by one of the usual aspects."""
    if share >= RECTANGULAR_SHARE:
        return height
    return max(1, round(height * _ASPECTS[int(share / RECTANGULAR_SHARE * len(_ASPECTS))]))


def _grouped(c: int, k: int, share: float) -> tuple[int, int, int]:
    """Channels, filters and groups: one group in most draws; the first layer of a network is never grouped."""
    if c < _LEAST_CHANNELS or share >= DEPTHWISE_SHARE + GROUPED_SHARE:
        return c, k, 1
    if share < DEPTHWISE_SHARE:
        return c, c, c
    width = _GROUP_SIZES[int((share - DEPTHWISE_SHARE) / GROUPED_SHARE * len(_GROUP_SIZES))]
    groups = max(1, c // width)
    return groups * width, max(1, k // groups) * groups, groups
