"""Cells over several processes: all of them compile at once, then one at a time times what it compiled, alone."""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.networks.cells import Cell, Row

TIMING_S: Final = 4.0
"""What timing a cell is taken to need while others are still compiled."""


@dataclass(frozen=True)
class Station:
    """What processes are told to do; they import PyTorch, and who tells them need not.

    Parameters
    ----------
    modes : tuple of str
        Of PyTorch, and whether `cells.ALL`; ours is run in any case.
    options : mapping
        For our backend.
    threads : int
        Processes in which Inductor compiles for one of these.
    """

    modes: tuple[str, ...]
    options: Mapping[str, Any]
    threads: int

    def begin(self, alone: Any) -> None:
        """Get a process ready, with a lock of all."""
        from benchmarks.networks import compiling

        compiling.begin(alone, self.threads)

    def prepare(self, cell: Cell) -> None:
        """Compile a cell, and keep it in the process."""
        from benchmarks.networks import compiling

        compiling.prepare(cell, self.modes, self.options)

    def quieten(self) -> None:
        """End what still runs in a process."""
        from benchmarks.networks.running import quieten

        quieten()

    def timed(self, cell: Cell) -> Row:
        """Time a cell that the process prepared."""
        from benchmarks.networks import compiling

        return compiling.timed(cell)


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
        From now on. No cell is begun that is not expected to be timed in it.
    clock : callable () -> float
    """
    end_s = clock() + limit_s
    prepared = _prepare(todo, executors, station, end_s, clock)
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
    """Where each cell was prepared that the time allowed, and how that ended."""
    prepared: dict[Cell, tuple[Executor, Future[None]]] = {}
    left, idle = deque(todo), list(executors)
    busy: dict[Future[None], tuple[Cell, Executor, float]] = {}
    longest_s = 0.0
    while True:
        while left and idle and clock() + longest_s + TIMING_S * (len(prepared) + len(busy) + 1) <= end_s:
            cell, executor, begin_s = left.popleft(), idle.pop(0), clock()
            busy[executor.submit(station.prepare, cell)] = cell, executor, begin_s
        if not busy:
            return prepared
        for future in wait(busy, return_when=FIRST_COMPLETED).done:
            cell, executor, begin_s = busy.pop(future)
            longest_s = max(longest_s, clock() - begin_s)
            prepared[cell] = executor, future
            if not isinstance(future.exception(), BrokenExecutor):
                idle.append(executor)


def _timed(cell: Cell, executor: Executor, prepared: Future[None], station: Station) -> Row:
    try:
        prepared.result()
        return executor.submit(station.timed, cell).result()
    except Exception as error:  # a process that has ended takes its cells with it, and no others
        return Row(cell, failures={"process": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})
