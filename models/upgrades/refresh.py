"""After a change of driver, library or kernels: what to measure again, which variants moved, which layers regressed."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from math import exp
from typing import Any, Final

import numpy as np

from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.costs import Costs
from conv_advisor.models.evaluation.confidence import half_of
from conv_advisor.models.upgrades.compare import LEAST_CHANGE, Line, compare
from conv_advisor.models.upgrades.moves import Cells, Known, Question, Said, say

MOST_SHARE: Final = 0.02
"""Most of the known times that are measured again, as a share."""
MOVED: Final = 0.1
"""A variant has moved where it is slower, faster or lost beyond noise on this share of its layers..."""
_LEAST_MOVED: Final = 2
"""...and on so many..."""
_PREDICTED: Final = 0.2
"""...or on one, where the trees predict the same for this share of its layers."""
LEAST_MEASURED: Final = 20
"""Fewer times measured again say nothing."""
HELD: Final = 0.95
"""The layers that are named are the likeliest that together hold this share of the expected regressions."""

_LEAST_CHANCE: Final = 0.1
"""A layer less likely to have regressed than this is not named."""
_NEAR: Final = 1.6
"""A variant further behind the best than this factor decides no layer."""
_OF_VARIANT: Final = 5
"""Times of each variant, where it was near the best, that decide whether it moved."""
_ROUNDS: Final = 4
"""The first round is drawn at random; the others go where the verdict is least sure."""
_DRAWN_FROM: Final = 3
"""Layers are drawn from this many times as many candidates: the least sure ones are much alike."""

Asked = Callable[[Question], Said]
"""Answers like `models.upgrades.moves.say`, in this process or in one that may load scikit-learn."""


@dataclass(frozen=True, slots=True)
class Regressed:
    """A layer that is slower than before.

    Parameters
    ----------
    problem : str
        Its key.
    variant : str
        The variant that was the fastest.
    before_ms, now_ms : float
        Time of the fastest variant; now predicted, unless `is_measured`.
    chance : float
        Probability that it is slower by more than `models.upgrades.moves.REGRESSED`.
    is_measured : bool
        Whether the variant that was the fastest was measured again.
    """

    problem: str
    variant: str
    before_ms: float
    now_ms: float
    chance: float
    is_measured: bool


@dataclass(frozen=True)
class Findings:
    """What is known after so many new measurements.

    Parameters
    ----------
    n_known, n_measured : int
        Times known from before, and how many of these were measured again.
    variants : tuple of Line
        Comparison of each variant where it was measured again.
    moved : tuple of str
        Variants that moved.
    regressed : tuple of Regressed
        Layers that regressed, those that are slower by most first.
    expected : float
        Expected number of layers that regressed, named or not.
    off_before, off_after : float
        Error of the times from before, and of those repaired by what was measured on other layers: geometric means over
        the times that were measured again. What was measured on one half of the layers, with all their batches, dtypes
        and layouts, says which variants moved and how, and is judged by the other half. Equal where nothing moved.
    """

    n_known: int
    n_measured: int
    variants: tuple[Line, ...]
    moved: tuple[str, ...]
    regressed: tuple[Regressed, ...]
    expected: float
    off_before: float
    off_after: float

    @property
    def share(self) -> float:
        """Share of the known times that was measured again."""
        return self.n_measured / self.n_known

    def to_dict(self, most: int | None = None) -> dict[str, Any]:
        """As JSON takes it, with at most so many of the layers that regressed."""
        lines = [
            {"variant": line.name, "measured": line.n_problems, "slower": line.n_regressed}
            | {"faster": line.n_improved, "lost": line.n_lost}
            | {"ratio": line.geometric_mean if line.n_problems else None}
            for line in self.variants
        ]
        return {
            "known": self.n_known,
            "measured": self.n_measured,
            "moved": list(self.moved),
            "variants": lines,
            "expected_regressed": self.expected,
            "n_regressed": len(self.regressed),
            "regressed": [asdict(layer) for layer in self.regressed[:most]],
            "off_before": self.off_before,
            "off_after": self.off_after,
        }


class Refresh:
    """Known times of a device, and what was measured there again.

    Parameters
    ----------
    known : Costs
        Times from before; each problem has one.
    share : float
        Share of the times that may be measured again.
    seed : int
    never : collection of ConvProblem
        Layers that are not measured again, since they judge every tree; their times now are predicted too.
    asked : callable
        As `Asked`.

    Raises
    ------
    InvalidInput
    """

    def __init__(
        self,
        known: Costs,
        *,
        share: float = MOST_SHARE,
        seed: int = 0,
        never: Collection[ConvProblem] = (),
        asked: Asked = say,
    ) -> None:
        if not 0 < share <= MOST_SHARE:
            raise InvalidInput("share", share, f"above 0, and at most {MOST_SHARE}")
        self._known, self._asked = Known(known), asked
        self._drawn = random.Random(seed)  # noqa: S311 - no secret
        self._row = {problem: row for row, problem in enumerate(known.problems) if problem.layer not in never}
        self._is_free = np.array([problem in self._row for problem in known.problems])
        self._column = {name: column for column, name in enumerate(known.variants)}
        shape = known.time_ms.shape
        self._time_ms, self._noise = np.full(shape, np.nan), np.full(shape, np.nan)
        self._is_lost, self._is_tried = np.zeros(shape, bool), np.zeros(shape, bool)
        is_known = np.isfinite(self._known.time_ms)
        rows, columns = np.nonzero(is_known & (self._known.time_ms < _NEAR * self._known.best_ms[:, None]))
        self._near: Cells = (rows, columns)
        self.n_known = int(is_known.sum())
        self.budget = int(share * self.n_known)

    @property
    def n_measured(self) -> int:
        """Times that were measured again, and variants that no longer ran."""
        return int(self._is_tried.sum())

    @property
    def n_timed(self) -> int:
        """Times that were measured again."""
        return int(np.isfinite(self._time_ms).sum())

    def take(self, problem: ConvProblem, variant: str, time_ms: float | None, noise: float = 0.0) -> None:
        """Take the new time of a variant that was timed before, or None where it no longer runs.

        A variant that was not timed before is passed over.
        """
        row, column = self._row.get(problem), self._column.get(variant)
        if row is None or column is None or np.isnan(self._known.time_ms[row, column]):
            return
        self._is_tried[row, column], self._is_lost[row, column] = True, time_ms is None
        if time_ms is not None:
            self._time_ms[row, column], self._noise[row, column] = time_ms, noise

    def rounds(self) -> Iterator[list[tuple[ConvProblem, str]]]:
        """What to measure, a round at a time: each round follows from what was taken in those before it."""
        yield self._named(self._of_variants())
        for left in range(_ROUNDS, 0, -1):
            count = (self.budget - self.n_measured) // left
            if count <= 0:
                return
            yield self._named(self._fastest(count) if left == _ROUNDS else self._least_sure(count))

    def findings(self) -> Findings:
        """What the measurements say, however few more than `LEAST_MEASURED` they are."""
        lines, answer = self._lines(), self._said()
        moved = self._moved(lines, answer)
        off_before = self._off(self._known.time_ms)
        return Findings(
            n_known=self.n_known,
            n_measured=self.n_measured,
            variants=lines,
            moved=moved,
            regressed=self._regressed(answer) if moved else (),
            expected=float(answer.chance.sum()),
            off_before=off_before,
            off_after=self._off(self._repaired_by_halves()) if moved else off_before,
        )

    def corrected(self, moved: tuple[str, ...]) -> Costs:
        """The times of today: as measured, else as before times the predicted ratio of a variant that moved.

        Parameters
        ----------
        moved : tuple of str
        """
        return replace(self._known.costs, time_ms=self._repaired(moved, self._said()))

    def _repaired(self, moved: Collection[str], answer: Said) -> np.ndarray:
        """The times of `corrected`, float64 array of shape (P, V)."""
        is_moved = np.array([name in moved for name in self._known.costs.variants])
        logs = np.zeros(self._time_ms.shape)
        logs[self._near] = np.where(is_moved[self._near[1]] & np.isfinite(answer.mean), answer.mean, 0.0)
        time_ms = np.where(np.isfinite(self._time_ms), self._time_ms, self._known.time_ms * np.exp(logs))
        return np.where(self._is_lost, np.nan, time_ms)

    def _of_variants(self) -> list[tuple[int, int]]:
        """Some cells of each variant, where it was near the best if it ever was."""
        n_variants = int(np.isfinite(self._known.time_ms).any(axis=0).sum())
        count = max(1, min(_OF_VARIANT, self.budget // (2 * n_variants)))
        cells: list[tuple[int, int]] = []
        for column in range(len(self._column)):
            times = np.where(self._is_free, self._known.time_ms[:, column], np.nan)
            near = np.flatnonzero(times < _NEAR * self._known.best_ms)
            rows = near if len(near) >= count else np.flatnonzero(np.isfinite(times))
            cells += [(row, column) for row in self._some(rows, count)]
        self._drawn.shuffle(cells)
        return [cell for cell in cells if not self._is_tried[cell]][: max(0, self.budget - self.n_measured)]

    def _fastest(self, count: int) -> list[tuple[int, int]]:
        """The fastest variant of some problems, as cells."""
        columns = np.nanargmin(self._known.time_ms, axis=1)
        rows = np.flatnonzero(self._is_free & ~self._is_tried[np.arange(len(columns)), columns])
        return [(row, int(columns[row])) for row in self._some(rows, count)]

    def _least_sure(self, count: int) -> list[tuple[int, int]]:
        """The variant now believed the fastest, on problems where it is least known whether they have regressed."""
        if not np.isfinite(self._time_ms).any():
            return self._fastest(count)
        answer = self._said()
        columns = self._best_columns(answer)
        doubt = np.minimum(answer.chance, 1 - answer.chance)
        doubt[self._is_tried[np.arange(len(columns)), columns] | ~self._is_free] = -1.0
        rows = np.argsort(-doubt, kind="stable")[: _DRAWN_FROM * count]
        return [(row, int(columns[row])) for row in self._some(rows[doubt[rows] >= 0], count)]

    def _some(self, rows: np.ndarray, count: int) -> list[int]:
        return self._drawn.sample(rows.tolist(), min(count, len(rows)))

    def _named(self, cells: list[tuple[int, int]]) -> list[tuple[ConvProblem, str]]:
        costs = self._known.costs
        return [(costs.problems[row], costs.variants[column]) for row, column in cells]

    def _said(self) -> Said:
        rows, columns = np.nonzero(np.isfinite(self._time_ms))
        return self._asked(self._question((rows, columns)))

    def _question(self, measured: Cells) -> Question:
        rows, columns = self._near
        logs = np.log(self._time_ms / self._known.time_ms)
        return Question(
            measured=self._known.describe(measured),
            logs=logs[measured],
            wanted=self._known.describe(self._near),
            rows=rows,
            known=np.log(self._known.time_ms[rows, columns] / self._known.best_ms[rows]),
            exact=np.where(self._is_lost, np.inf, logs)[self._near],
        )

    def _best_columns(self, answer: Said) -> np.ndarray:
        """The variant of each problem that is predicted to be the fastest now."""
        now = np.full(self._time_ms.shape, np.inf)
        now[self._near] = np.log(self._known.time_ms[self._near]) + answer.mean
        columns: np.ndarray = now.argmin(axis=1)
        return columns

    def _lines(self) -> tuple[Line, ...]:
        """What became of each variant on the problems where it was tried again."""
        costs = self._known.costs
        is_tried = self._is_tried
        before = replace(
            costs,
            time_ms=np.where(is_tried, self._known.time_ms, np.nan),
            is_known=is_tried,
            is_pruned=is_tried & False,
        )
        return compare(before, replace(before, time_ms=self._time_ms, noise=self._noise)).variants

    def _shares_moved(self, answer: Said) -> dict[str, float]:
        """The share of each variant's layers on which it is predicted to have moved by more than `LEAST_CHANGE`."""
        columns = self._near[1]
        is_moved = np.abs(answer.mean) > np.log1p(LEAST_CHANGE)
        counts, moved = np.bincount(columns), np.bincount(columns, weights=is_moved)
        return {
            self._known.costs.variants[column]: float(moved[column] / counts[column])
            for column in np.flatnonzero(counts).tolist()
        }

    def _moved(self, lines: Sequence[Line], answer: Said) -> tuple[str, ...]:
        predicted = self._shares_moved(answer)
        return tuple(line.name for line in lines if has_moved(line, predicted.get(line.name, 0.0)))

    def _repaired_by_halves(self) -> np.ndarray:
        """The times of each half of the layers, repaired by nothing but what was measured on the other."""
        half = np.array([half_of(problem) for problem in self._known.costs.problems])
        repaired = np.empty(self._time_ms.shape)
        for is_here in (half == 0, half == 1):
            other = self._measured_on(~is_here)
            answer = other._said()
            repaired[is_here] = other._repaired(other._moved(other._lines(), answer), answer)[is_here]
        return repaired

    def _measured_on(self, is_taken: np.ndarray) -> Refresh:
        """The same without what was measured on other problems than these."""
        part = copy(self)
        part._time_ms = np.where(is_taken[:, None], self._time_ms, np.nan)
        part._is_lost, part._is_tried = (cells & is_taken[:, None] for cells in (self._is_lost, self._is_tried))
        return part

    def _off(self, time_ms: np.ndarray) -> float:
        """How far times are, in the geometric mean, from those that were measured again."""
        is_timed = np.isfinite(self._time_ms)
        return float(np.expm1(np.abs(np.log(self._time_ms[is_timed] / time_ms[is_timed])).mean()))

    def _regressed(self, answer: Said) -> tuple[Regressed, ...]:
        order = np.argsort(-answer.chance, kind="stable")
        held = np.cumsum(answer.chance[order])
        count = int(np.searchsorted(held, HELD * held[-1])) + 1
        rows = [row for row in order[:count].tolist() if answer.chance[row] >= _LEAST_CHANCE]
        fastest = np.nanargmin(self._known.time_ms[rows], axis=1).tolist() if rows else []
        layers = [
            Regressed(
                problem=self._known.costs.problems[row].key,
                variant=self._known.costs.variants[column],
                before_ms=float(self._known.best_ms[row]),
                now_ms=float(self._known.best_ms[row]) * exp(answer.best[row]),
                chance=float(answer.chance[row]),
                is_measured=bool(np.isfinite(self._time_ms[row, column])),
            )
            for row, column in zip(rows, fastest, strict=True)
        ]
        return tuple(sorted(layers, key=lambda layer: layer.before_ms / layer.now_ms))


def has_moved(line: Line, predicted: float = 0.0) -> bool:
    """Whether a variant has moved: on several of its measured layers, or on one where it is predicted for many.

    Parameters
    ----------
    line : Line
        What was measured again.
    predicted : float
        The share of all its layers on which it is predicted to have moved.
    """
    n_moved = line.n_regressed + line.n_improved + line.n_lost
    is_seen = n_moved >= max(_LEAST_MOVED, MOVED * (line.n_problems + line.n_lost))
    return is_seen or (n_moved > 0 and predicted >= _PREDICTED)
