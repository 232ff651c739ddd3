"""What became slower and what faster between two data sets: another library version, another driver, another GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from conv_advisor.models.costs import Costs, is_tied

LEAST_CHANGE: Final = 0.03
"""Share by which a time must change, beside exceeding its noise: repeated sweeps agree within 0.3 % in
the median, and a clock that differs by a step of 15 MHz makes 0.8 %."""


@dataclass(frozen=True, slots=True)
class Shift:
    """One problem in both data sets.

    Parameters
    ----------
    problem : str
        Its key.
    before, after : str
        The variant: the same one twice, or in `BEST` the fastest in each.
    before_ms, after_ms : float
    """

    problem: str
    before: str
    after: str
    before_ms: float
    after_ms: float

    @property
    def ratio(self) -> float:
        """Time after over time before."""
        return self.after_ms / self.before_ms


@dataclass(frozen=True)
class Line:
    """The shifts of one variant, or of the best of all variants.

    Parameters
    ----------
    name : str
        A variant, or `BEST`.
    n_problems : int
        Problems timed in both.
    geometric_mean : float
        Mean of time after over time before; not a number where nothing was timed in both.
    n_regressed, n_improved : int
        Problems slower and faster by more than noise and `LEAST_CHANGE`.
    n_lost, n_gained : int
        Problems timed only before and tried after too; timed only after and tried before too.
    regressed, improved : tuple of Shift
        Those that changed most first.
    """

    name: str
    n_problems: int
    geometric_mean: float
    n_regressed: int
    n_improved: int
    n_lost: int
    n_gained: int
    regressed: tuple[Shift, ...]
    improved: tuple[Shift, ...]


BEST: Final = "best of all"


@dataclass(frozen=True)
class Upgrade:
    """Two data sets compared.

    Parameters
    ----------
    n_problems : int
        Problems in both.
    n_only_before, n_only_after : int
        Problems that only one of them has.
    best : Line
        The fastest variant of each problem.
    variants : tuple of Line
        Every variant that was tried in both, those that regressed on most problems first.
    """

    n_problems: int
    n_only_before: int
    n_only_after: int
    best: Line
    variants: tuple[Line, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it: null in place of not a number."""
        content = asdict(self)
        for line in (content["best"], *content["variants"]):
            if math.isnan(line["geometric_mean"]):
                line["geometric_mean"] = None
        return content


def compare(before: Costs, after: Costs, *, most: int = 20) -> Upgrade:
    """Compare what was measured before with what was measured after, on the problems that both have.

    Parameters
    ----------
    before, after : Costs
        As `models.costs.from_table` gives them.
    most : int
        Most shifts of each kind in a line.
    """
    rows = _common(before.problems, after.problems)
    columns = _common(before.variants, after.variants)
    a, b = (costs.take([pair[side] for pair in rows]) for side, costs in enumerate((before, after)))
    lines = [_line(before.variants[i], a, b, np.full(len(rows), i), np.full(len(rows), j), most) for i, j in columns]
    lines = [line for line in lines if line.n_problems or line.n_lost or line.n_gained]
    return Upgrade(
        n_problems=len(rows),
        n_only_before=len(before.problems) - len(rows),
        n_only_after=len(after.problems) - len(rows),
        best=_line(BEST, a, b, _fastest(a), _fastest(b), most),
        variants=tuple(sorted(lines, key=lambda line: (-line.n_regressed, -line.n_lost, line.name))),
    )


def _common(before: Sequence[Any], after: Sequence[Any]) -> list[tuple[int, int]]:
    """The indices in both sequences of each thing that both have, in the order of the first."""
    place = {thing: index for index, thing in enumerate(after)}
    return [(index, place[thing]) for index, thing in enumerate(before) if thing in place]


def _fastest(costs: Costs) -> np.ndarray:
    times = np.where(costs.is_pruned | np.isnan(costs.time_ms), np.inf, costs.time_ms)
    return np.asarray(times.argmin(axis=1)) if len(times) else np.empty(0, np.int64)


def _line(name: str, before: Costs, after: Costs, i: np.ndarray, j: np.ndarray, most: int) -> Line:
    """The shifts between variant i of one and variant j of the other, problem by problem."""
    rows = np.arange(len(before.problems))
    a, b = (
        np.where(costs.is_pruned[rows, place], np.nan, costs.time_ms[rows, place])
        for costs, place in ((before, i), (after, j))
    )
    is_tried = before.is_known[rows, i] & after.is_known[rows, j]
    is_pruned = before.is_pruned[rows, i] | after.is_pruned[rows, j]
    both = np.flatnonzero(np.isfinite(a) & np.isfinite(b))
    shifts = list(_shifts(before, after, i, j, both))
    regressed = sorted((shift for shift in shifts if shift.ratio > 1), key=lambda shift: -shift.ratio)
    improved = sorted((shift for shift in shifts if shift.ratio < 1), key=lambda shift: shift.ratio)
    only = is_tried & ~is_pruned
    return Line(
        name=name,
        n_problems=len(both),
        geometric_mean=float(np.exp(np.mean(np.log(b[both] / a[both])))) if len(both) else math.nan,
        n_regressed=len(regressed),
        n_improved=len(improved),
        n_lost=int((only & np.isfinite(a) & np.isnan(b)).sum()),
        n_gained=int((only & np.isnan(a) & np.isfinite(b)).sum()),
        regressed=tuple(regressed[:most]),
        improved=tuple(improved[:most]),
    )


def _shifts(before: Costs, after: Costs, i: np.ndarray, j: np.ndarray, rows: np.ndarray) -> Iterator[Shift]:
    """The problems whose time changed by more than noise and `LEAST_CHANGE`."""
    for row in rows.tolist():
        a_ms, b_ms = float(before.time_ms[row, i[row]]), float(after.time_ms[row, j[row]])
        noise = float(before.noise[row, i[row]]), float(after.noise[row, j[row]])
        if max(a_ms, b_ms) <= (1 + LEAST_CHANGE) * min(a_ms, b_ms) or is_tied(a_ms, noise[0], b_ms, noise[1]):
            continue
        names = before.variants[i[row]], after.variants[j[row]]
        yield Shift(before.problems[row].key, *names, a_ms, b_ms)
