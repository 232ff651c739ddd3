"""Many problems at once: their sizes as one array, checked and turned into problems together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np

from conv_advisor.data.epilogue import PLAIN
from conv_advisor.data.problem import FIELDS, KEY_ENDS, MAX_ELEMENTS, ConvProblem, DType, Layout

SIZES: Final = (*FIELDS[:14], "pad_h_end", "pad_w_end")
"""The columns: every field of a problem but dtype, layout and epilogue."""

_PADS: Final = [SIZES.index(name) for name in ("pad_h", "pad_w", "pad_h_end", "pad_w_end")]

Row = tuple[int, ...]
"""The sizes of one problem."""


def _forms(text: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The patterns of a name and of lines of names: A is a size, B a size or zero."""
    one = text.replace("A", "([1-9][0-9]{0,9})").replace("B", "(0|[1-9][0-9]{0,9})")
    line = one.replace("(", "(?:")
    return re.compile(one), re.compile(f"{line}(?:\\n{line})*")


_SIZES_OF: Final = attrgetter(*SIZES)
_SHORT, _SHORTS = _forms("A-A-A-A-A")
_LONG, _LONGS = _forms("AxA-A-AxA-A-A-strideAxA-padBxB-dilationAxA-groupsA")
_BLANKS: Final = str.maketrans(dict.fromkeys("abcdefghijklmnopqrstuvwxyz-", " "))


def is_sound(sizes: np.ndarray) -> np.ndarray:
    """The rows that `ConvProblem` would accept.

    Parameters
    ----------
    sizes : int64 array of shape (N, 16)

    Returns
    -------
    bool array of shape (N,)
    """
    least = np.ones(len(SIZES), np.int64)
    least[_PADS] = 0
    sound = np.asarray(((sizes >= least) & (sizes <= MAX_ELEMENTS)).all(axis=1))
    raised = np.maximum(sizes, least)
    n, c, h, w, k, r, s, *_, groups, _, _ = raised.T
    p, q = output_plane(raised)
    sound = sound & (p >= 1) & (q >= 1) & (c % groups == 0) & (k % groups == 0)
    # As floats, which do not overflow: below the limit, where the comparison is decided, they are exact.
    x_elements = 1.0 * n * c * h * w
    weight_elements = 1.0 * k * (c // groups) * r * s
    y_elements = 1.0 * n * k * p * q
    most = np.maximum(np.maximum(x_elements, weight_elements), y_elements)
    return np.asarray(sound & (most <= MAX_ELEMENTS))


def row_of_short(layer: str) -> Row | None:
    """The sizes of a form that `ConvProblem.short` may return; None where it would return another."""
    match = _SHORT.fullmatch(layer)
    if match is None:
        return _row_of_long(layer)
    size, batch, taps, filters, depth = map(int, match.groups())
    pad = taps // 2
    return batch, depth, size, size, filters, taps, taps, 1, 1, pad, pad, 1, 1, 1, pad, pad


def table_of_names(layers: Sequence[str]) -> np.ndarray | None:
    """The rows of `row_of_short` as an array, read in one go; zeros where a layer has another, shorter name.

    None unless every layer has one of the two forms.
    """
    is_long = np.array(["x" in layer for layer in layers], bool)
    longs = [layer for layer in layers if "x" in layer]
    shorts = [layer for layer in layers if "x" not in layer] if longs else layers
    short, long = _numbers(shorts, _SHORTS, 5), _numbers(longs, _LONGS, len(SIZES) - 2)
    if short is None or long is None:
        return None
    sizes = np.ones((len(layers), len(SIZES)), np.int64)
    height, batch, taps, filters, depth = short.T
    sizes[~is_long, :7] = np.stack((batch, depth, height, height, filters, taps, taps), axis=1)
    for column in _PADS:
        sizes[~is_long, column] = taps // 2
    h, w, n, r, s, k, c, *steps = long.T
    stride_h, stride_w, pad_h, pad_w, *others = steps
    is_same = (h == w) & (r == s) & (pad_h == pad_w) & (pad_w == r // 2)
    has_short = is_same & (np.maximum.reduce([stride_h, stride_w, *others]) == 1)
    sizes[is_long] = np.where(has_short[:, None], 0, np.stack((n, c, h, w, k, r, s, *steps, pad_h, pad_w), axis=1))
    return sizes


def _numbers(layers: Sequence[str], form: re.Pattern[str], count: int) -> np.ndarray | None:
    """The numbers of every layer, int64 array of shape (N, count); None where a layer does not have this form."""
    text = "\n".join(layers)
    if layers and not form.fullmatch(text):
        return None
    numbers = np.fromstring(text.translate(_BLANKS), np.int64, sep=" ").reshape(-1, count)
    return numbers if len(numbers) == len(layers) else None  # a layer has a line break in it


def _row_of_long(layer: str) -> Row | None:
    match = _LONG.fullmatch(layer)
    if match is None:
        return None
    h, w, n, r, s, k, c, *steps = map(int, match.groups())
    stride_h, stride_w, pad_h, pad_w, *others = steps
    has_short = h == w and r == s and pad_h == pad_w == r // 2 and stride_h == stride_w == max(others) == 1
    return None if has_short else (n, c, h, w, k, r, s, *steps, pad_h, pad_w)


def row_of(problem: ConvProblem) -> Row:
    """The sizes of a problem."""
    return _SIZES_OF(problem)


def sizes_of(problems: Sequence[ConvProblem]) -> np.ndarray:
    """The sizes of many problems, int64 array of shape (N, 16)."""
    return table([row_of(problem) for problem in problems])


def problem_of(row: Sequence[int], dtype: DType, layout: Layout, short: str | None = None) -> ConvProblem:
    """The problem of a row, unchecked: for rows that nobody checked, `ConvProblem.is_sound` makes up for it.

    Parameters
    ----------
    row : sequence of int
    dtype : DType
    layout : Layout
    short : str, optional
        The problem's short form, where it is already known.
    """
    n, c, h, w, k, r, s, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups, pad_h_end, pad_w_end = row
    # A dictionary display, which is built in half the time of any other way.
    attributes: dict[str, Any] = {
        "n": n,
        "c": c,
        "h": h,
        "w": w,
        "k": k,
        "r": r,
        "s": s,
        "stride_h": stride_h,
        "stride_w": stride_w,
        "pad_h": pad_h,
        "pad_w": pad_w,
        "dilation_h": dilation_h,
        "dilation_w": dilation_w,
        "groups": groups,
        "dtype": dtype,
        "layout": layout,
        "pad_h_end": pad_h_end,
        "pad_w_end": pad_w_end,
        "epilogue": PLAIN,
    }
    if short is not None:
        attributes["short"], attributes["key"] = short, short + KEY_ENDS[dtype, layout]
    problem = object.__new__(ConvProblem)
    object.__setattr__(problem, "__dict__", attributes)
    return problem


def table(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Rows as an array, int64 of shape (N, 16)."""
    return np.array(rows, np.int64).reshape(-1, len(SIZES))


def output_plane(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Height and width of y of each row, int64 arrays of shape (N,); below 1 where the filter is too large."""
    _, _, h, w, _, r, s, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, _, pad_h_end, pad_w_end = sizes.T
    rows = h + pad_h + pad_h_end - dilation_h * (r - 1) - 1
    columns = w + pad_w + pad_w_end - dilation_w * (s - 1) - 1
    return rows // stride_h + 1, columns // stride_w + 1
