"""Synthetic layers, combined from measured ones, for the teacher to label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.table import SIZES, is_sound, sizes_of
from conv_advisor.models.tree.features import Quantities, codes_of

_TRIES: Final = 50
_JITTER_OCTAVES: Final = 0.6
_AS_MEASURED: Final = 0.8
"""Share of the sizes of made-up layers that stay as they were measured: a tree tells layers apart where it has many
examples, and networks share their sizes."""

_RARITY: Final = 0.3
"""A layer is drawn by the number of layers of its kind to the power of minus this: those of rare kinds more often. A
tree splits where it has many examples, and networks beyond classifiers have many layers of kinds that are rare among
what was measured."""
_FEW: Final = 8
_LARGE_FILTER: Final = 12
_LARGE_STRIDE: Final = 3
_LARGE_PLANE: Final = 256
"""What tells kinds apart: their filter, stride, dilation, dimensions, large planes, and few channels or filters."""

_HEADS: Final = 0.05
_MOST_OF_HEAD: Final = 4
"""Share of layers without groups that have one to four filters, as heads have: their images, flows, masks and scores
are the end of networks that have many other layers."""

_STEPS: Final = np.array([8, 8, 8, 4, 2, 1])
"""What channels are multiples of, each as likely: for half of them eight, which decides what tensor cores can do."""
_LEAST_STEPPED: Final = 24
"""Fewer channels are multiples of nothing."""

_N, _C, _H, _W, _K, _GROUPS = (SIZES.index(name) for name in ("n", "c", "h", "w", "k", "groups"))
_R, _S = SIZES.index("r"), SIZES.index("s")
_STRIDES = [SIZES.index("stride_h"), SIZES.index("stride_w")]
_DILATIONS = [SIZES.index("dilation_h"), SIZES.index("dilation_w")]


def sample_like(problems: Sequence[ConvProblem], count: int, rng: np.random.Generator) -> np.ndarray:
    """Make up layers like these: their sizes recombined and jittered, no larger than the largest.

    Parameters
    ----------
    problems : sequence of ConvProblem
    count : int
        How many at most; fewer where too few recombinations are valid.
    rng : numpy.random.Generator

    Returns
    -------
    int64 array of shape (n, 16)
        As in `data.table`.
    """
    sizes, codes = sizes_of(problems), codes_of(problems)
    measured, share = Quantities(sizes, *codes), _shares(sizes)
    most_flops, most_bytes = measured.flops.max(), measured.bytes.max()
    made_up = np.empty((0, len(SIZES)), np.int64)
    for _ in range(_TRIES):
        if len(made_up) == count:
            break
        planes, channels = rng.choice(len(problems), (2, count - len(made_up)), p=share)
        batches = rng.integers(len(problems), size=count - len(made_up))
        layers = _recombined(sizes[planes], sizes[channels], sizes[batches], rng)
        sound = np.flatnonzero(is_sound(layers))
        quantities = Quantities(layers[sound], *(code[planes[sound]] for code in codes))
        fits = (quantities.flops <= most_flops) & (quantities.bytes <= most_bytes)
        made_up = np.concatenate([made_up, layers[sound[fits]]])
    return made_up


def _shares(sizes: np.ndarray) -> np.ndarray:
    """How often each layer is drawn, float64 array that adds up to 1."""
    planes = sizes[:, [_H, _W]]
    kinds = np.column_stack(
        (
            np.minimum(sizes[:, [_R, _S]], _LARGE_FILTER),
            np.minimum(sizes[:, _STRIDES].max(axis=1), _LARGE_STRIDE),
            sizes[:, _DILATIONS].max(axis=1) > 1,
            planes.min(axis=1) == 1,
            planes.max(axis=1) > _LARGE_PLANE,
            sizes[:, [_C, _K]] <= _FEW,
        )
    )
    _, kind, counts = np.unique(kinds, axis=0, return_inverse=True, return_counts=True)
    weights = counts[kind.ravel()] ** -_RARITY
    shares: np.ndarray = weights / weights.sum()
    return shares


def _recombined(planes: np.ndarray, channels: np.ndarray, batches: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Planes and filters of some layers, channels of others or the same, batches of third ones; some are invalid.

    Groups keep their size, and their number varies.
    """
    layers = planes.copy()
    channels = np.where(rng.random(len(planes))[:, None] < 0.5, planes, channels)
    layers[:, _N] = batches[:, _N]
    layers[:, [_H, _W]] = np.maximum(1, np.rint(planes[:, [_H, _W]] * _jitter(len(planes), rng)[:, None]))
    is_head = (rng.random(len(planes)) < _HEADS) & (channels[:, _GROUPS] == 1)
    channels[:, _K] = np.where(is_head, rng.integers(1, _MOST_OF_HEAD + 1, len(planes)), channels[:, _K])
    columns = [_C, _K, _GROUPS]
    c, k, groups = (_stepped(channels[:, column] * _jitter(len(planes), rng), rng) for column in columns)
    n_groups = channels[:, _GROUPS]
    of_groups = [groups * channels[:, column] // n_groups for column in (_C, _K)]
    is_grouped = (n_groups > 1)[:, None]
    layers[:, columns] = np.where(is_grouped, np.stack((*of_groups, groups), 1), np.stack((c, k, n_groups), 1))
    return layers


def _jitter(count: int, rng: np.random.Generator) -> np.ndarray:
    """Factors, most of them 1."""
    octaves = rng.uniform(-_JITTER_OCTAVES, _JITTER_OCTAVES, count)
    return np.where(rng.random(count) < _AS_MEASURED, 1.0, np.exp2(octaves))


def _stepped(counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Whole numbers, and from `_LEAST_STEPPED` multiples of one of `_STEPS`, as the channels of networks are."""
    steps = np.where(counts < _LEAST_STEPPED, 1, rng.choice(_STEPS, len(counts)))
    whole: np.ndarray = np.maximum(1, steps * np.rint(counts / steps)).astype(np.int64)
    return whole
