"""Cuts of many problems in one table, for kernels whose cuts depend on the problem: a row is a cut of one problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np

from conv_advisor.kernels.cuda.parts.shapes import Array

T = TypeVar("T")

AT_A_TIME: Final = 64
"""Problems whose cuts are in memory together: one problem may have thousands."""


@dataclass(frozen=True)
class Candidates(Generic[T]):
    """The cuts that problems may have.

    Parameters
    ----------
    owner : int array of shape (n_cuts,)
        Index of each cut's problem, in ascending order.
    cut : T
        A dataclass of arrays of shape (n_cuts,).
    us : float64 array of shape (n_cuts,)
        Expected time.
    """

    owner: Array
    cut: T
    us: Array

    def firsts(self) -> Array:
        """The row of each problem's cheapest cut; of equally cheap cuts, the first."""
        order = np.lexsort((self.us, self.owner))
        firsts: Array = order[np.diff(self.owner[order], prepend=-1) > 0]
        return firsts

    def cheapest(self) -> list[T]:
        """Each problem's cheapest cut, as `firsts` orders them."""
        return [row_of(self.cut, row) for row in self.firsts().tolist()]

    def expected(self) -> dict[T, float]:
        """The cuts of one problem, and the time in us that each is expected to take."""
        return {row_of(self.cut, row): us for row, us in enumerate(self.us.tolist())}


def take(table: T, rows: Array) -> T:
    """Some rows of a dataclass of arrays; its numbers are shared by all rows and stay."""
    return _mapped(table, lambda column: column[rows] if np.ndim(column) else column)


def joined(first: T, second: T) -> T:
    """The rows of two dataclasses of arrays, one after the other."""
    second_columns = iter(_columns(second))
    return _mapped(first, lambda column: np.append(column, next(second_columns)) if np.ndim(column) else column)


def row_of(table: T, row: int | tuple[()] = ()) -> T:
    """One row of a dataclass of arrays as Python integers; without ``row``, the fields are NumPy scalars."""
    return _mapped(table, lambda column: int(np.asarray(column)[row]))


def _mapped(table: T, change: Callable[[Any], Any]) -> T:
    values = [getattr(table, name) for name in _names(table)]
    return type(table)(*[_mapped(value, change) if _names(value) else change(value) for value in values])


def _columns(table: Any) -> list[Any]:
    """The arrays and numbers of a dataclass, and of dataclasses nested in it, in order."""
    values = [getattr(table, name) for name in _names(table)]
    return [column for value in values for column in (_columns(value) if _names(value) else [value])]


def _names(value: Any) -> tuple[str, ...]:
    """The names of a dataclass's fields; empty for any other value."""
    names: tuple[str, ...] = getattr(value, "__match_args__", ())
    return names
