"""Training on several threads and processes.

scikit-learn lets other threads run while a tree grows, or is walked by many rows. Boosted trees and plans are much
Python between short calls: two threads of them take as long as one, two processes half as long.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from conv_advisor.data.extras import require

Each = Callable[..., Iterator[Any]]
"""Like `map`: results come in the order of the inputs."""


@contextmanager
def threads(count: int) -> Iterator[Each]:
    """A `map` that works on so many threads; the libraries that one of them calls use no further threads.

    Raises
    ------
    NotInstalled

    Notes
    -----
    Threads of OpenMP that wait for a busy core spin: beside other work, two took ten times as long as one. The limit on
    libraries is a thread's own, and only libraries that are loaded already are limited.
    """
    require("sklearn", "threadpoolctl")
    importlib.import_module("sklearn.ensemble")
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), ThreadPoolExecutor(count, "train", initializer=_alone) as pool:
        yield pool.map


@contextmanager
def processes(count: int) -> Iterator[Each]:
    """A `map` of a function of a module that works in so many processes; `map` itself where that is at most one."""
    if count <= 1:
        yield map
        return
    # Not forked: a child of a process whose threads hold locks may wait for them for ever.
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_alone_in_process) as pool:
        yield pool.map


def _alone_in_process() -> None:
    from threadpoolctl import threadpool_limits

    importlib.import_module("sklearn.ensemble")
    threadpool_limits(1)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _end_with_parent() -> None:
    """End this process once the one that started it has ended, even by a signal: it would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        os._exit(1)


def _alone() -> None:
    from threadpoolctl import threadpool_limits

    threadpool_limits(1, user_api="openmp")
