"""The window of a tile, the part of an image that its taps read: of one problem, or of many in arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final

import numpy as np

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.shapes import Array, Problems, Shapes

LINES: Final = 6
"""Lines of 32 copies of a window, whose places are held in registers."""
MOST_STRIP_ELEMENTS: Final = 2**32
"""Elements of a strip of y times its columns, below which the kernel's division by the columns is exact."""
_LEAST_STRIP: Final = 2
"""A divisor of 1 has no magic number."""


@dataclass(frozen=True)
class Window:
    """The part of an image that the taps of a tile read: integers, or arrays of them.

    Parameters
    ----------
    unit : int
        Elements of a copy.
    strip : int
        Columns of y that tiles cover row by row; 0 if there is no window.
    strips : int
        Strips of an image.
    tiles : int
        Tiles of a strip.
    units, rows : int
        Copies of a row, and number of rows.
    last_place : int
        Place of the last pixel of y.
    """

    unit: Any
    strip: Any
    strips: Any
    tiles: Any
    units: Any
    rows: Any
    last_place: Any

    @property
    def positions(self) -> Any:
        """Copies of a channel."""
        return self.units * self.rows

    @property
    def channel_pitch(self) -> Any:
        """Elements from one channel to the next: whole lines of copies."""
        return ceil_div(self.positions, 32) * 32 * self.unit


_FIELDS: Final = tuple(field.name for field in fields(Window))


def unit_of(problems: Problems) -> Any:
    """Elements of a copy to a window; a row of x is a whole number of copies."""
    return np.gcd(problems.w, 16 // problems.dtype.itemsize_bytes)


@cache
def window_of(problem: ConvProblem, bn: int) -> Window | None:
    """`windows_of` for one problem and a tile of ``bn`` pixels; None if there is no window."""
    found = windows_of(Shapes.of(problem), np.array([bn]))
    values = [int(getattr(found, name)[0, 0]) for name in _FIELDS]
    window = Window(*values)
    return window if window.strip else None


def windows_of(problems: Shapes, bn: Array) -> Window:
    """The windows of tiles, in the widest strips for which the copies' places fit the registers.

    They do not depend on the numbers of images, channels and filters. Strips so wide that one row of y alone has too
    many places are passed over.

    Parameters
    ----------
    problems : Shapes
    bn : int array of shape (n_tiles,)
        Pixels of a tile.

    Returns
    -------
    Window
        Of arrays of shape (n_tiles, n_problems).
    """
    unit, most = unit_of(problems), 32 * LINES // ((problems.r - 1) * problems.dilation_h + 1)
    most_columns = (most * unit - (problems.s - 1) * problems.dilation_w - 1) // problems.stride_w + 1
    widest = np.minimum(most_columns, np.sqrt((MOST_STRIP_ELEMENTS - 1) // problems.p).astype(np.int64))
    columns = np.where(widest >= _LEAST_STRIP, 1 + np.minimum(problems.q, widest), 0)
    values = np.zeros((len(_FIELDS), len(bn), len(problems)), np.int64)
    tile, place = (index.ravel() for index in np.indices(values.shape[1:]))
    columns = columns[place]
    while len(place := place[is_left := columns > 1]):
        tile, columns, some = tile[is_left], columns[is_left], problems.take(place)
        columns = ceil_div(some.q, ceil_div(some.q, columns - 1))  # the next narrower strips that are as wide
        windows = _windows(some, bn[tile], unit[place], np.maximum(_LEAST_STRIP, columns))
        fits = windows.positions <= 32 * LINES
        values[:, tile[fits], place[fits]] = [getattr(windows, name)[fits] for name in _FIELDS]
        tile, place, columns = tile[~fits], place[~fits], columns[~fits]
    return Window(*values)


def _windows(problems: Shapes, bn: Array, unit: Array, strip: Array) -> Window:
    """For each problem that of a tile of ``bn`` pixels in strips of ``strip`` columns."""
    is_straight = (strip % bn == 0) | (bn % strip == 0)
    rows_of_y = np.minimum(problems.p, np.where(is_straight, ceil_div(bn, strip), (bn + strip - 2) // strip + 1))
    lead = np.zeros_like(strip)
    for later in range(int(unit.max())):  # strips beyond these repeat their leads
        first = later * strip
        is_one = (later < unit) & (first < problems.q)
        lead = np.maximum(lead, np.where(is_one, (first * problems.stride_w - problems.pad_w) % unit, 0))
    width = (strip - 1) * problems.stride_w + (problems.s - 1) * problems.dilation_w + 1
    units = ceil_div(lead + width, unit)
    rows = (rows_of_y - 1) * problems.stride_h + (problems.r - 1) * problems.dilation_h + 1
    last_place = (rows_of_y - 1) * problems.stride_h * units * unit + (strip - 1) * problems.stride_w
    strips, tiles = ceil_div(problems.q, strip), ceil_div(problems.p * strip, bn)
    return Window(unit, strip, strips, tiles, units, rows, last_place)
