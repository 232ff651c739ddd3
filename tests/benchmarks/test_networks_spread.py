"""Cells over several processes: what is begun, where it is timed, and what a process that ends takes with it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.networks.cells import Cell, Row
from benchmarks.networks.spread import COMPILING, TimeIsUp, at_most, processes, rows

CELLS = [Cell(f"network{index}", "float16", 1) for index in range(6)]


@dataclass
class Recorded:
    """A station whose work takes so much of a clock that is not the wall's.

    Attributes
    ----------
    events : list of (str, str, int)
        What was done for which network, by which thread.
    """

    prepare_s: float = 0.0
    timed_s: float = 0.0
    fails: str = ""
    now_s: float = 0.0
    events: list[tuple[str, str, int]] = field(default_factory=list)

    def _note(self, what: str, network: str, taken_s: float) -> None:
        self.events.append((what, network, threading.get_ident()))
        self.now_s += taken_s

    def prepare(self, cell: Cell, end_s: float) -> None:
        left_s = end_s - self.now_s
        self._note("prepare", cell.network, min(self.prepare_s, left_s))
        if self.prepare_s > left_s:
            raise TimeIsUp
        if cell.network == self.fails:
            raise MemoryError("no memory")

    def quieten(self) -> None:
        self._note("quieten", "", 0.0)

    def timed(self, cell: Cell) -> Row:
        self._note("timed", cell.network, self.timed_s)
        return Row(cell, device_ms={"ours": 1.0})

    def done(self, what: str) -> list[str]:
        return [network for kind, network, _ in self.events if kind == what]


@pytest.fixture
def two() -> Iterator[list[Executor]]:
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        yield [first, second]


def test_a_cell_is_timed_where_it_was_prepared_once_all_are_still(two: list[Executor]) -> None:
    station: Any = Recorded()
    assert [row.cell for row in rows(CELLS, two, station, 1000.0)] == CELLS
    kinds = [kind for kind, _, _ in station.events]
    assert kinds == ["prepare"] * 6 + ["quieten"] * len({who for _, _, who in station.events}) + ["timed"] * 6
    prepared, timed = (
        {network: who for kind, network, who in station.events if kind == wanted} for wanted in ("prepare", "timed")
    )
    assert prepared == timed


def test_what_is_not_compiled_in_time_is_given_up(two: list[Executor]) -> None:
    station: Any = Recorded(prepare_s=10.0, timed_s=1.0)
    limit_s = 35.0 / COMPILING
    made = list(rows(CELLS, two[:1], station, limit_s, lambda: station.now_s))
    assert station.done("prepare") == [cell.network for cell in CELLS[:3]], "a fourth would not be ready"
    assert [row.cell for row in made] == CELLS[:3]
    station = Recorded(prepare_s=40.0)
    assert list(rows(CELLS, two[:1], station, limit_s, lambda: station.now_s)) == []
    assert station.now_s == pytest.approx(35.0)


def test_a_process_ends_what_takes_it_too_long() -> None:
    with pytest.raises(TimeIsUp), at_most(0.05):
        threading.Event().wait(60)
    with at_most(2.0):  # in which even a busy machine gets to the end of the block
        pass
    threading.Event().wait(2.1)


def test_timing_ends_where_the_next_is_not_expected_to_fit(two: list[Executor]) -> None:
    station: Any = Recorded(timed_s=15.0)
    made = list(rows(CELLS, two[:1], station, 40.0, lambda: station.now_s))
    assert [row.cell for row in made] == CELLS[:2]
    assert all(begin[0] == end[0] == "timed" for begin, end in pairwise(station.events[-2:]))


def test_what_fails_is_a_row_with_its_reason(two: list[Executor]) -> None:
    station: Any = Recorded(fails="network1")
    made = list(rows(CELLS, two, station, 1000.0))
    assert [row.cell for row in made] == CELLS
    assert [row.failures for row in made if row.failures] == [{"process": "MemoryError: no memory"}]


@dataclass(frozen=True)
class Ending:
    """A station whose process ends while it prepares one of its cells, or times one."""

    begun: str
    prepares: str = ""
    times: str = ""

    def begin(self, alone: Any) -> None:
        with alone:
            os.environ[self.begun] = "yes"

    def prepare(self, cell: Cell, end_s: float) -> None:
        assert os.environ[self.begun] == "yes"
        if cell.network == self.prepares:
            os._exit(1)

    def quieten(self) -> None:
        pass

    def timed(self, cell: Cell) -> Row:
        if cell.network == self.times:
            os._exit(1)
        return Row(cell, device_ms={"ours": 1.0})


@pytest.mark.parametrize("when", [{"prepares": "network0"}, {"prepares": "network5"}, {"times": "network0"}])
def test_a_process_that_ends_takes_its_cells_alone_with_it(when: dict[str, str]) -> None:
    station: Any = Ending("CONV_ADVISOR_TEST_BEGUN", **when)
    with processes(station, 2) as executors:
        made = {row.cell: row for row in rows(CELLS, executors, station, 1000.0)}
    assert list(made) == CELLS
    (network,) = when.values()
    assert "BrokenProcessPool" in made[Cell(network, "float16", 1)].failures["process"]
    assert any(row.device_ms for row in made.values())
