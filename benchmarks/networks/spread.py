"""Cells over several processes: all of them compile at once, then one at a time times what it compiled, alone."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from benchmarks.networks.cells import Cell, Row

COMPILING: Final = 0.7
"""The share of the time after which nothing is compiled any more."""


class TimeIsUp(BaseException):
    """A cell was not prepared in time: no error of a mode, and nothing goes on."""


@dataclass(frozen=True)
class Station:
    """What processes are told to do; they import PyTorch, and the process that tells them need not.

    Parameters
    ----------
    modes : tuple of str
        Those of PyTorch, and `cells.ALL` and `cells.GIVEN` where they are to run; ours always does.
    options : mapping
        For our backend.
    threads : int
        Processes in which Inductor compiles for one of these.
    folder : str
        Where each process keeps its choices.
    """

    modes: tuple[str, ...]
    options: Mapping[str, Any]
    threads: int
    folder: str

    def begin(self, alone: Any) -> None:
        """Get a process ready, with a lock that all of them share."""
        from benchmarks.networks import compiling

        compiling.begin(alone, self.threads)

    def prepare(self, cell: Cell, end_s: float) -> None:
        """Compile a cell, and keep it in the process; `TimeIsUp` at that time of the clock that all processes share."""
        from benchmarks.networks import compiling

        with at_most(end_s - time.monotonic()):
            compiling.prepare(cell, self.modes, self.options, self.folder)

    def quieten(self) -> None:
        """End what still runs in a process."""
        from benchmarks.networks.running import quieten

        quieten()

    def timed(self, cell: Cell) -> Row:
        """Time a cell that the process prepared."""
        from benchmarks.networks import compiling

        return compiling.timed(cell)


@contextmanager
def at_most(limit_s: float) -> Iterator[None]:
    """Raise `TimeIsUp` in the main thread of a process after so many seconds; never where they are infinite."""

    def stop(_signal: int, _frame: Any) -> None:
        raise TimeIsUp

    if limit_s == inf:
        yield
        return
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(limit_s, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def processes(station: Station, count: int) -> Iterator[list[Executor]]:
    """Executors of one process each, ready to be told what to do."""
    context = multiprocessing.get_context("spawn")
    alone = context.Lock()
    executors = [
        ProcessPoolExecutor(1, mp_context=context, initializer=station.begin, initargs=(alone,)) for _ in range(count)
    ]
    try:
        yield list(executors)
    finally:
        for executor in executors:
            executor.shutdown(cancel_futures=True)


def rows(
    todo: Sequence[Cell],
    executors: Sequence[Executor],
    station: Station,
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Row]:
    """A row of each cell that the time allows, in their order.

    Parameters
    ----------
    todo : sequence of Cell
        What matters most first.
    executors : sequence of Executor
        One process each: a cell is timed where it was prepared.
    station : Station
    limit_s : float
        From now on; a cell that is not compiled after `COMPILING` of it is given up.
    clock : callable () -> float
    """
    now_s = clock()
    end_s = now_s + limit_s
    prepared = _prepare(todo, executors, station, now_s + COMPILING * limit_s, clock)
    for executor in executors:
        with suppress(BrokenExecutor):  # its cells will say so
            executor.submit(station.quieten).result()
    longest_s = 0.0
    for cell in filter(prepared.__contains__, todo):
        begin_s = clock()
        if begin_s + longest_s > end_s:
            return
        yield _timed(cell, *prepared[cell], station)
        longest_s = max(longest_s, clock() - begin_s)


def _prepare(
    todo: Sequence[Cell], executors: Sequence[Executor], station: Station, end_s: float, clock: Callable[[], float]
) -> dict[Cell, tuple[Executor, Future[None]]]:
    """For each cell that the time allowed, the process that prepared it and how that ended."""
    prepared: dict[Cell, tuple[Executor, Future[None]]] = {}
    left, idle = deque(todo), list(executors)
    busy: dict[Future[None], tuple[Cell, Executor, float]] = {}
    taken_s: list[float] = []
    while True:
        while left and idle and (begin_s := clock()) + min(taken_s, default=0.0) < end_s:
            cell, executor = left.popleft(), idle.pop(0)
            busy[executor.submit(station.prepare, cell, end_s)] = cell, executor, begin_s
        if not busy:
            return prepared
        for future in wait(busy, return_when=FIRST_COMPLETED).done:
            cell, executor, begin_s = busy.pop(future)
            error = future.exception()
            if not isinstance(error, TimeIsUp):
                prepared[cell] = executor, future
                taken_s.append(clock() - begin_s)
            if not isinstance(error, BrokenExecutor):
                idle.append(executor)


def _timed(cell: Cell, executor: Executor, prepared: Future[None], station: Station) -> Row:
    try:
        prepared.result()
        return executor.submit(station.timed, cell).result()
    except Exception as error:  # a process that has ended takes its cells with it, and no others
        return Row(cell, failures={"process": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})
