"""Training on several threads: scikit-learn lets other threads run while a tree grows, or is walked by many rows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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


def _alone() -> None:
    from threadpoolctl import threadpool_limits

    threadpool_limits(1, user_api="openmp")
