"""What a prediction costs beyond reading the layer: alone, and in one call for many."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count, islice
from statistics import median
from typing import Any, Final

import numpy as np
from rich.table import Table

from app.asked import AskedLayer
from app.layers import Reader, read_one
from data.problem import ConvProblem
from data.sampling import sample_problems
from data.table import row_of, table
from kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES
from models.advisor import Advisor
from models.batch import predict_many
from models.registry import SHIPPED
from models.tree_file import read

TREE: Final = SHIPPED / "nvidia-h200"
ROUNDS: Final = 5
KINDS: Final = {"dtype": "float16", "layout": "nhwc"}
AT_ONCE: Final = 1000
"""Layers that are held at a time, as in the service."""


def prediction_table(layers: int) -> Table:
    """Times on this machine's processor, the median of `ROUNDS`; for a call of so many layers its whole time too."""
    advisor, shorts = Advisor(read(TREE)), _layers(layers)
    asked = [AskedLayer(layer=each, dtype="float16", layout="nhwc") for each in shorts]
    problems = [read_one(each) for each in asked]
    sizes = table([row_of(problem) for problem in problems])
    limits: dict[str, Any] = {"max_workspace_bytes": DEFAULT_WORKSPACE_LIMIT_BYTES, "is_deterministic": False}
    _prepare(advisor, problems)
    found = Table(title=f"{layers:,} layers, each new, in one process without HTTP")
    for column in ("", "us a layer", "s in all"):
        found.add_column(column, justify="right" if column else "left")
    cases: dict[str, Callable[[], object]] = {
        "read, one by one": lambda: [read_one(each) for each in asked],
        "predict, one by one, beyond reading": lambda: [advisor.predict(problem) for problem in problems],
        "read, in one call": lambda: _many(shorts),
        "predict, in one call, beyond reading": lambda: predict_many(advisor, problems, sizes, **limits),
        "read and predict, in one call": lambda: _many(shorts, lambda *read: predict_many(advisor, *read, **limits)),
    }
    for name, case in cases.items():
        taken_s = median(_seconds(case) for _ in range(ROUNDS))
        found.add_row(name, f"{taken_s / layers * 1e6:.1f}", f"{taken_s:.2f}")
    return found


def _layers(wanted: int) -> list[str]:
    """Different layers by their short forms."""
    shapes = (problem for seed in count() for problem in sample_problems(10_000, seed=seed))
    return list(islice(dict.fromkeys(problem.short for problem in islice(shapes, 2 * wanted)), wanted))


def _seconds(case: Callable[[], object]) -> float:
    start = time.thread_time()
    case()
    return time.thread_time() - start


def _many(shorts: list[str], use: Callable[[list[ConvProblem], np.ndarray], object] = lambda *_: None) -> None:
    """Read all the layers, and use what was read of them, so many at a time."""
    reader = Reader(dict(KINDS))
    for start in range(0, len(shorts), AT_ONCE):
        found, sizes = reader.read(shorts[start : start + AT_ONCE])
        use([each for each in found if isinstance(each, ConvProblem)], sizes)


def _prepare(advisor: Advisor, problems: list[ConvProblem]) -> None:
    """Read the leaves of the tree, which is done once."""
    for problem in problems:
        advisor.predict(problem)
