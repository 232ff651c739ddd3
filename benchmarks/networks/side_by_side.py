"""Cells side by side in several processes: compilers share the host, and whoever times has the GPU."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.networks.cells import Cell, Row


def run_cells(
    cells: Sequence[Cell], modes: tuple[str, ...], options: Mapping[str, Any], workers: int, time_limit_s: float
) -> Iterator[Row]:
    """Rows as they come; when the time is up the cells that still run are given up.

    Parameters
    ----------
    cells : sequence of Cell
        Begun in this order.
    modes, options
        As in `running.run_cell`.
    workers : int
    time_limit_s : float
    """
    begin = time.monotonic()
    threads = max(1, (os.cpu_count() or 1) // workers)
    with TemporaryDirectory() as folder:
        work = partial(_work, modes=modes, options=dict(options), lock=Path(folder) / "gpu")
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, (threads,))
        todo = {pool.submit(work, cell): cell for cell in cells}
        processes = list((pool._processes or {}).values())
        try:
            while todo:
                left_s = time_limit_s - (time.monotonic() - begin)
                if left_s <= 0:
                    return
                done, _ = wait(todo, left_s if left_s < inf else None, FIRST_COMPLETED)
                yield from (_row(future, todo.pop(future)) for future in done)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.kill()  # a compiler does not stop when it is asked


def _row(future: Future[Row], cell: Cell) -> Row:
    try:
        return future.result()
    except Exception as error:  # one cell, even one that ends its process, must not end the run
        return Row(cell, failures={"process": f"{type(error).__name__}: {error}"})


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Within which no other process of these is within it."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _begin(compile_threads: int) -> None:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(compile_threads)


def _work(cell: Cell, modes: tuple[str, ...], options: dict[str, Any], lock: Path) -> Row:
    from benchmarks.networks.running import run_cell

    return run_cell(cell, modes, options, partial(alone, lock))
