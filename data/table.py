"""Many problems at once: their sizes as one array, checked and turned into problems together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import numpy as np

from data.problem import FIELDS, KEY_ENDS, MAX_ELEMENTS, ConvProblem, DType, Layout

SIZES: Final = FIELDS[:14]
"""The columns: every field of a problem but dtype and layout."""

_PADS: Final = (SIZES.index("pad_h"), SIZES.index("pad_w"))

Row = tuple[int, ...]
"""The sizes of one problem."""

_NAMED: Final = (*FIELDS, "short", "key")
_SIZES_OF: Final = attrgetter(*SIZES)
_SHORT: Final = re.compile("-".join([r"([1-9][0-9]{0,9})"] * 5))
_SHORTS: Final = re.compile(r"(?:[1-9][0-9]{0,9}-){4}[1-9][0-9]{0,9}(?:\n(?:[1-9][0-9]{0,9}-){4}[1-9][0-9]{0,9})*")
_LONG: Final = re.compile(
    "AxA-A-AxA-A-A-strideAxA-padBxB-dilationAxA-groupsA".replace("A", "([1-9][0-9]{0,9})").replace(
        "B", "(0|[1-9][0-9]{0,9})"
    )
)


def is_sound(sizes: np.ndarray) -> np.ndarray:
    """Which rows `ConvProblem` would accept.

    Parameters
    ----------
    sizes : int64 array of shape (N, 14)

    Returns
    -------
    bool array of shape (N,)
    """
    least = np.ones(len(SIZES), np.int64)
    least[list(_PADS)] = 0
    sound = np.asarray(((sizes >= least) & (sizes <= MAX_ELEMENTS)).all(axis=1))
    n, c, h, w, k, r, s, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups = np.maximum(sizes, least).T
    rows = h + 2 * pad_h - dilation_h * (r - 1) - 1
    columns = w + 2 * pad_w - dilation_w * (s - 1) - 1
    sound = sound & (rows >= 0) & (columns >= 0) & (c % groups == 0) & (k % groups == 0)
    # As floats, which do not overflow: below the limit, and so wherever it matters, they are exact.
    x_elements = 1.0 * n * c * h * w
    weight_elements = 1.0 * k * (c // groups) * r * s
    y_elements = 1.0 * n * k * (rows // stride_h + 1) * (columns // stride_w + 1)
    most = np.maximum(np.maximum(x_elements, weight_elements), y_elements)
    return np.asarray(sound & (most <= MAX_ELEMENTS))


def row_of_short(layer: str) -> Row | None:
    """The sizes that a form means which `ConvProblem.short` may have; None where a problem would not say it so."""
    match = _SHORT.fullmatch(layer)
    if match is None:
        return _row_of_long(layer)
    size, batch, taps, filters, depth = map(int, match.groups())
    pad = taps // 2
    return batch, depth, size, size, filters, taps, taps, 1, 1, pad, pad, 1, 1, 1


def table_of_shorts(layers: Sequence[str]) -> np.ndarray | None:
    """The rows of `row_of_short` as an array, read in one go; None unless every layer has the form with five sizes."""
    text = "\n".join(layers)
    if not _SHORTS.fullmatch(text):
        return None
    found = np.fromstring(text.replace("-", " "), np.int64, sep=" ").reshape(-1, 5)
    if len(found) != len(layers):  # a layer has a line break in it
        return None
    size, batch, taps, filters, depth = found.T
    pad, one = taps // 2, np.ones_like(taps)
    rows = (batch, depth, size, size, filters, taps, taps, one, one, pad, pad, one, one, one)
    return np.stack(rows, axis=1)


def _row_of_long(layer: str) -> Row | None:
    match = _LONG.fullmatch(layer)
    if match is None:
        return None
    h, w, n, r, s, k, c, *steps = map(int, match.groups())
    stride_h, stride_w, pad_h, pad_w, *others = steps
    has_short = h == w and r == s and pad_h == pad_w == r // 2 and stride_h == stride_w == max(others) == 1
    return None if has_short else (n, c, h, w, k, r, s, *steps)


def row_of(problem: ConvProblem) -> Row:
    """The sizes of a problem."""
    return _SIZES_OF(problem)


def problem_of(row: Sequence[int], dtype: DType, layout: Layout, short: str | None = None) -> ConvProblem:
    """The problem of a row, without a check: where it has had none, `ConvProblem.is_sound` makes up for it.

    Parameters
    ----------
    row : sequence of int
    dtype : DType
    layout : Layout
    short : str, optional
        Its short form, where that is known already.
    """
    problem = object.__new__(ConvProblem)
    if short is None:
        problem.__dict__.update(zip(FIELDS, (*row, dtype, layout), strict=True))
    else:
        values = (*row, dtype, layout, short, short + KEY_ENDS[dtype, layout])
        problem.__dict__.update(zip(_NAMED, values, strict=True))
    return problem


def table(rows: Sequence[Row]) -> np.ndarray:
    """Rows as an array, int64 of shape (N, 14)."""
    return np.array(rows, np.int64).reshape(-1, len(SIZES))
