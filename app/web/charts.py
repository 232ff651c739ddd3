"""Parts of a drawing beside its data: axes with round ticks, and labels that do not overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil, floor, log
from typing import Final

MARGIN: Final = 4.0
"""Distance of the outermost points from a drawing's edges, in percent."""

_HEIGHT_PX: Final = 224.0
_WIDTHS_PX: Final = (180.0, 1_200.0)
"""How high a drawing is, and how wide at least and at most: on a small phone, on a desk."""

_DOT_PX: Final = 6.0
_CHARACTER_PX: Final = 7.5
_LINE_PX: Final = 13.0
_AWAY_PX: Final = 9.0


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis, from its least value to its greatest.

    Parameters
    ----------
    low, high : float
        Both positive; equal ones are drawn apart.
    """

    low: float
    high: float

    def at(self, value: float) -> float:
        """Where a value lies, in percent from the start."""
        reach = log(self.high / self.low)
        share = log(value / self.low) / reach if reach else 0.5
        return round(MARGIN + (100 - 2 * MARGIN) * min(max(share, 0.0), 1.0), 2)

    def ticks(self, most: int) -> list[float]:
        """Round values within the axis, at most so many: 1, 2 and 5 by powers of ten, or fewer of them."""
        for steps in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
            ticks = list(self._within(steps, 10.0))
            if 2 <= len(ticks) <= most:
                return ticks
        ticks = list(self._within((1.0, 2.0, 5.0), 10.0))
        return ticks[:: max(1, ceil(len(ticks) / most))] if ticks else [self.low]

    def binary_ticks(self, most: int) -> list[float]:
        """Powers of two within the axis, at most ``most``, at the smallest even step that leaves no more."""
        for power in count(1):
            ticks = list(self._within((1.0,), 2.0**power))
            if len(ticks) <= most:
                return ticks or [self.low]
        raise AssertionError

    def _within(self, steps: Sequence[float], base: float) -> Iterator[float]:
        first, last = floor(log(self.low, base) - 1e-9), ceil(log(self.high, base) + 1e-9)
        for power in range(first, last + 1):
            for step in steps:
                value = step * base**power
                if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9):
                    yield value


def axis_of(values: Sequence[float]) -> Axis:
    """The axis that holds these positive values."""
    return Axis(min(values), max(values))


@dataclass(frozen=True)
class Label:
    """Where a text stands beside its dot: both in percent, and from there in pixels.

    Parameters
    ----------
    x, y : float
    text : str
    dx, dy : float
        To the middle of the text.
    """

    x: float
    y: float
    text: str
    dx: float = 0.0
    dy: float = 0.0


def place_labels(dots: Sequence[tuple[float, float, str]], others: Sequence[tuple[float, float]] = ()) -> list[Label]:
    """Labels for dots, none of which overlaps another, however wide the drawing is.

    Dots that can hardly be told apart share a label. A label that fits nowhere beside its dot is left out.

    Parameters
    ----------
    dots : sequence of (float, float, str)
        Positions in percent from the left and from the top, and the names of the dots.
    others : sequence of (float, float)
        Dots without names, which labels keep off where they can.
    """
    shared = _shared(dots)
    places = [(x, y) for x, y, _ in shared]
    placed: list[Label] = []
    for x, y, text in shared:
        candidates = [Label(x, y, text, dx, dy) for dx, dy in _around(text)]
        free = [
            candidate
            for candidate in candidates
            if _is_inside(candidate) and not any(_meet(candidate, label) for label in placed)
        ]
        if free:
            placed.append(min(free, key=lambda candidate: _covered(candidate, [*places, *others])))
    return placed


def _shared(dots: Sequence[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    groups: list[list[tuple[float, float, str]]] = []
    for dot in dots:
        near = next((group for group in groups if _is_near(group[0], dot)), None)
        if near is None:
            groups.append([dot])
        else:
            near.append(dot)
    return [(*group[0][:2], ", ".join(text for _, _, text in group)) for group in groups]


def _is_near(one: tuple[float, float, str], other: tuple[float, float, str]) -> bool:
    across, down = abs(one[0] - other[0]) / 100, abs(one[1] - other[1]) / 100
    return across * _WIDTHS_PX[0] < _DOT_PX and down * _HEIGHT_PX < _DOT_PX


def _around(text: str) -> Iterator[tuple[float, float]]:
    aside = _AWAY_PX + len(text) * _CHARACTER_PX / 2
    above = _AWAY_PX + _LINE_PX / 2
    yield from ((0, -above), (aside, 0), (-aside, 0), (0, above))
    yield from ((aside, -above), (-aside, -above), (aside, above), (-aside, above))


def _half_width_px(label: Label) -> float:
    return len(label.text) * _CHARACTER_PX / 2


def _is_inside(label: Label) -> bool:
    half, down = _half_width_px(label), label.y * _HEIGHT_PX / 100 + label.dy
    middles = ((label.x * width_px / 100 + label.dx, width_px) for width_px in _WIDTHS_PX)
    is_within = all(half - 2 <= middle <= width_px - half + 2 for middle, width_px in middles)
    return is_within and _LINE_PX / 2 - 14 <= down <= _HEIGHT_PX - _LINE_PX / 2 + 2


def _meet(one: Label, other: Label) -> bool:
    """Whether two labels overlap at any width."""
    reach = _half_width_px(one) + _half_width_px(other)
    return _nearest_px(one, other.x, other.dx) < reach and _apart_px(one, other.y, other.dy) < _LINE_PX


def _covered(label: Label, dots: Sequence[tuple[float, float]]) -> int:
    """How many dots a label lies on at some width."""
    reach = _half_width_px(label) + _DOT_PX
    return sum(_nearest_px(label, x) < reach and _apart_px(label, y) < _LINE_PX / 2 + _DOT_PX for x, y in dots)


def _nearest_px(label: Label, x: float, dx: float = 0.0) -> float:
    """Least horizontal distance of a label's middle from another place, over all widths of the drawing."""
    narrow, wide = ((label.x - x) * width_px / 100 + label.dx - dx for width_px in _WIDTHS_PX)
    return 0.0 if narrow * wide <= 0 else min(abs(narrow), abs(wide))


def _apart_px(label: Label, y: float, dy: float = 0.0) -> float:
    return abs((label.y - y) * _HEIGHT_PX / 100 + label.dy - dy)
