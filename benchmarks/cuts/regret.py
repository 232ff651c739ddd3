"""What a kernel's rule gives away: the time of the cut that it chooses over that of the fastest that was timed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.cuts.kernels import KERNELS, name_of
from benchmarks.cuts.rows import Row
from benchmarks.plots.pages import number, percent, table
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem

Kind = tuple[str, str, str]
"""Kernel, dtype and layout."""


@dataclass(frozen=True)
class Timed:
    """The cuts of one kernel that were timed on one problem, by their places among all, and their times in ms."""

    kernel: str
    problem: ConvProblem
    places: np.ndarray
    times_ms: np.ndarray

    @property
    def kind(self) -> Kind:
        """Kernel, dtype and layout."""
        return self.kernel, str(self.problem.dtype), str(self.problem.layout)

    def expected_us(self, device: Device) -> np.ndarray:
        """The time that the model expects of each cut now; a refit changes its constants, not which cuts there are."""
        expected = KERNELS[self.kernel].expected(self.problem, device)
        return np.take(np.array(list(expected.values())), self.places)

    def regret(self, device: Device) -> float:
        """Time of the cut that is expected to be fastest over the least time."""
        return float(self.times_ms[self.expected_us(device).argmin()] / self.times_ms.min())


def timed(rows: Iterable[Row], device: Device) -> list[Timed]:
    """The timed cuts of each kernel and problem; rows that name no cut of the kernel are left out."""
    by_problem: dict[tuple[str, ConvProblem], dict[str, float]] = {}
    for row in rows:
        by_problem.setdefault((row.kernel, row.problem), {})[row.cut] = row.time_ms
    parts = []
    for (name, problem), times_ms in by_problem.items():
        names = [name_of(cut) for cut in KERNELS[name].expected(problem, device)]
        places = [place for place, cut in enumerate(names) if cut in times_ms]
        if places:
            times = np.array([times_ms[names[place]] for place in places])
            parts.append(Timed(name, problem, np.array(places), times))
    return parts


def by_kind(parts: Iterable[Timed]) -> dict[Kind, list[Timed]]:
    """The parts of each kind, in the order of the kinds' names."""
    groups: dict[Kind, list[Timed]] = {}
    for part in parts:
        groups.setdefault(part.kind, []).append(part)
    return dict(sorted(groups.items()))


def report(columns: Mapping[str, Mapping[Kind, Sequence[float]]]) -> str:
    """A row a kind; of each column of regrets their geometric mean, 95th percentile, worst and share within 3 %."""
    kinds = dict.fromkeys(kind for column in columns.values() for kind in column)
    head = ("", "problems", *(f"{name}: mean · p95 · worst, within 3 %" for name in columns))
    rows = []
    for kind in kinds:
        cells = [_cell(np.array(column[kind])) for column in columns.values()]
        rows.append((" ".join(kind), str(len(next(iter(columns.values()))[kind])), *cells))
    return table(head, rows)


def _cell(regrets: np.ndarray) -> str:
    values = (np.exp(np.log(regrets).mean()), np.quantile(regrets, 0.95), regrets.max())
    return f"{' · '.join(number(float(value), 3) for value in values)}, {percent(float((regrets <= 1.03).mean()))}"
