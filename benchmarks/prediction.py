"""What a prediction costs beyond reading the layer: alone, and in one call for many.

Run it as ``python -m benchmarks.prediction``; it needs no GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count, islice, product
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from conv_advisor.app.wire.layers import named, problem_from, problems_from
from conv_advisor.data.errors import InvalidProblem
from conv_advisor.data.networks import held_out_layers
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.sampling import sample_problems
from conv_advisor.data.table import Row, problem_of, row_of, table
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.ranking.batch import predict_many
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.tree.file import read

TREE: Final = SHIPPED / "nvidia-h200"
ROUNDS: Final = 5
KINDS: Final = {"dtype": "float16", "layout": "nhwc"}
AT_ONCE: Final = 1000
"""Layers that are held at a time, as in the service."""

LAYERS: Final = 100_000
MOST_US: Final = 5.0
"""A prediction alone takes at most so long, the median over layers."""
MOST_S: Final = 2.0
"""A list of `LAYERS` takes at most so long; another one in proportion."""
_REPEATS: Final = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Time, and print the table; the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks.prediction", description=__doc__)
    parser.add_argument("--tree", type=Path, default=TREE, help="folder of a tree; default: the one that ships")
    parser.add_argument("--layers", type=int, default=LAYERS, help="of a list")
    chosen = parser.parse_args(arguments)
    Console().print(verdict_table(Advisor(read(chosen.tree)), chosen.layers))
    return 0


def verdict_table(advisor: Advisor, layers: int) -> Table:
    """Times of every dtype and layout on layers that no tree was trained on, and whether they are short enough."""
    rows, limits = _never_trained(layers), {"max_workspace_bytes": DEFAULT_WORKSPACE_LIMIT_BYTES}
    alone = rows[: len(held_out_layers())]
    sizes, most_s = table(rows), MOST_S * layers / LAYERS
    shown = Table(title="layers never trained on, in one process, beyond reading them")
    for column in (
        "",
        "alone, us",
        f"at most {MOST_US:g} us",
        "in a list, us",
        f"{layers:,}, s",
        f"at most {most_s:g} s",
    ):
        shown.add_column(column, justify="right" if column else "left")
    for dtype, layout in product(DType, Layout):
        problems = [problem_of(row, dtype, layout) for row in alone]
        # The least, as `timeit` does: what other users of the machine add is never below nothing.
        alone_us = min(median(_alone_us(advisor, problem) for problem in problems) for _ in range(ROUNDS))
        list_s = median(_list_s(advisor, rows, sizes, dtype, layout, limits) for _ in range(ROUNDS))
        per_layer_us = list_s / len(rows) * 1e6
        verdicts = [_verdict(alone_us <= MOST_US), _verdict(list_s <= most_s)]
        cells = (f"{alone_us:.1f}", verdicts[0], f"{per_layer_us:.1f}", f"{list_s:.2f}", verdicts[1])
        shown.add_row(f"{dtype} {layout}", *cells)
    return shown


def _never_trained(n_layers: int) -> list[Row]:
    """Layers held out, first all at batch 1, then at batch 2 and so on, as far as their tensors are not too large."""
    layers = sorted(held_out_layers(), key=lambda layer: layer.key)

    def rows() -> Iterator[Row]:
        for n in count(1):
            for layer in layers:
                with suppress(InvalidProblem):
                    yield row_of(replace(layer, n=n))

    return list(islice(rows(), n_layers))


def _alone_us(advisor: Advisor, problem: ConvProblem) -> float:
    advisor.predict(problem)
    start = time.thread_time_ns()
    for _ in range(_REPEATS):
        advisor.predict(problem)
    return (time.thread_time_ns() - start) / _REPEATS / 1e3


def _list_s(
    advisor: Advisor, rows: list[Row], sizes: np.ndarray, dtype: DType, layout: Layout, limits: dict[str, int]
) -> float:
    """CPU seconds of a list. Its problems are made anew, for they keep what was computed of them."""
    problems = [problem_of(row, dtype, layout) for row in rows]
    return _seconds(
        lambda: [
            predict_many(
                advisor, problems[at : at + AT_ONCE], sizes[at : at + AT_ONCE], is_deterministic=False, **limits
            )
            for at in range(0, len(rows), AT_ONCE)
        ]
    )


def _verdict(is_reached: bool) -> str:
    return "reached" if is_reached else "missed"


def prediction_table(layers: int) -> Table:
    """Times on this machine's processor, the median of `ROUNDS`; for a call of so many layers its whole time too."""
    advisor, shorts = Advisor(read(TREE)), _layers(layers)
    bodies = [{"layer": short} | KINDS for short in shorts]
    problems = [problem_from(body) for body in bodies]
    sizes = table([row_of(problem) for problem in problems])
    limits: dict[str, Any] = {"max_workspace_bytes": DEFAULT_WORKSPACE_LIMIT_BYTES, "is_deterministic": False}
    _prepare(advisor, problems)
    shown = Table(title=f"{layers:,} layers, each new, in one process without HTTP")
    for column in ("", "us a layer", "s in all"):
        shown.add_column(column, justify="right" if column else "left")
    cases: dict[str, Callable[[], object]] = {
        "read, one by one": lambda: [problem_from(body) for body in bodies],
        "predict, one by one, beyond reading": lambda: [advisor.predict(problem) for problem in problems],
        "read, in one call": lambda: _many(shorts),
        "predict, in one call, beyond reading": lambda: predict_many(advisor, problems, sizes, **limits),
        "read and predict, in one call": lambda: _many(shorts, lambda *read: predict_many(advisor, *read, **limits)),
    }
    for name, case in cases.items():
        taken_s = median(_seconds(case) for _ in range(ROUNDS))
        shown.add_row(name, f"{taken_s / layers * 1e6:.1f}", f"{taken_s:.2f}")
    return shown


def _layers(n_layers: int) -> list[str]:
    """Different layers by their short forms."""
    shapes = (problem for seed in count() for problem in sample_problems(10_000, seed=seed))
    return list(islice(dict.fromkeys(problem.short for problem in islice(shapes, 2 * n_layers)), n_layers))


def _seconds(case: Callable[[], object]) -> float:
    start = time.thread_time()
    case()
    return time.thread_time() - start


def _many(shorts: list[str], use: Callable[[list[ConvProblem], np.ndarray], object] = lambda *_: None) -> None:
    """Read all the layers, so many at a time, and pass what was read to `use`."""
    common = named(KINDS)
    for start in range(0, len(shorts), AT_ONCE):
        parsed, sizes = problems_from(shorts[start : start + AT_ONCE], common)
        use([problem for problem in parsed if isinstance(problem, ConvProblem)], sizes)


def _prepare(advisor: Advisor, problems: list[ConvProblem]) -> None:
    """Read the leaves of the tree, which is done once."""
    for problem in problems:
        advisor.predict(problem)


if __name__ == "__main__":
    sys.exit(main())
