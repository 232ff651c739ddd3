"""Which variant is predicted fastest over two sizes of a layer, the other sizes unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from conv_advisor.data.errors import InvalidInput, InvalidProblem
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES
from conv_advisor.models.advice.advisor import Advisor


class Axis(StrEnum):
    """What may vary; a closed list."""

    SIZE = "size"
    """h and w."""
    BATCH = "batch"
    FILTERS = "filters"
    DEPTH = "depth"

    def of(self, problem: ConvProblem) -> int:
        """The value of a problem on this axis."""
        value: int = getattr(problem, _FIELDS[self][0])
        return value

    def put(self, problem: ConvProblem, value: int) -> ConvProblem:
        """The problem with another value on this axis.

        Raises
        ------
        InvalidProblem
        """
        changes: dict[str, Any] = dict.fromkeys(_FIELDS[self], value)
        return replace(problem, **changes)


_FIELDS: Final = {Axis.SIZE: ("h", "w"), Axis.BATCH: ("n",), Axis.FILTERS: ("k",), Axis.DEPTH: ("c",)}
_RANGES: Final = {Axis.SIZE: (7, 224), Axis.BATCH: (1, 256), Axis.FILTERS: (8, 2048), Axis.DEPTH: (3, 2048)}
"""Ranges of the shipped measurements."""

_QUARTERS: Final = (4, 5, 6, 7)


@dataclass(frozen=True)
class Landscape:
    """Winners over two axes.

    Parameters
    ----------
    problem : ConvProblem
        A problem that lies on the grid.
    x, y : Axis
    x_values, y_values : tuple of int
        Rising.
    variants : tuple of str
        Variants that win in any cell, those that win most cells first.
    winners : tuple of tuple of int or None
        One row for each value of y: indices into `variants`; None where no variant is predicted to run, or there is no
        such layer.
    """

    problem: ConvProblem
    x: Axis
    y: Axis
    x_values: tuple[int, ...]
    y_values: tuple[int, ...]
    variants: tuple[str, ...]
    winners: tuple[tuple[int | None, ...], ...]


def survey(
    advisor: Advisor,
    problem: ConvProblem,
    x: Axis,
    y: Axis,
    *,
    max_workspace_bytes: int = DEFAULT_WORKSPACE_LIMIT_BYTES,
    is_deterministic: bool = False,
) -> Landscape:
    """Ask the tree over the ranges of two axes, at four values an octave and at the problem's own.

    Raises
    ------
    InvalidInput
        The axes are the same.
    """
    if x is y:
        raise InvalidInput("y", str(y), f"another axis than x: {', '.join(axis for axis in Axis if axis is not x)}")

    def winner(problem: ConvProblem) -> str | None:
        order = advisor.predict_order(
            problem, max_workspace_bytes=max_workspace_bytes, is_deterministic=is_deterministic
        )
        return next(order, None)

    x_values, y_values = _values(x, problem), _values(y, problem)
    names = [[_at(winner, problem, {x: x_value, y: y_value}) for x_value in x_values] for y_value in y_values]
    flat = [name for row in names for name in row if name is not None]
    variants = tuple(sorted(set(flat), key=lambda name: (-flat.count(name), name)))
    places: dict[str | None, int] = {name: place for place, name in enumerate(variants)}
    winners = tuple(tuple(places.get(name) for name in row) for row in names)
    return Landscape(problem, x, y, x_values, y_values, variants, winners)


def _values(axis: Axis, problem: ConvProblem) -> tuple[int, ...]:
    """Values of the form 4, 5, 6 or 7 times a power of two, which networks have; and the problem's own."""
    least, most = _RANGES[axis]
    quarters = {quarter << octave >> 2 for octave in range(12) for quarter in _QUARTERS if (quarter << octave) % 4 == 0}
    return tuple(sorted({value for value in quarters if least <= value <= most} | {axis.of(problem)}))


def _at(winner: Callable[[ConvProblem], str | None], problem: ConvProblem, place: dict[Axis, int]) -> str | None:
    try:
        for axis, value in place.items():
            problem = axis.put(problem, value)
    except InvalidProblem:
        return None
    return winner(problem)
