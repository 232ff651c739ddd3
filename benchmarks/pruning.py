"""Whether pruning was right: attempts that a sweep ended after their first launch, measured to the end.

    python -m benchmarks.pruning --shard 0/2 --device cuda:0 --output again-0.json
    python -m benchmarks.pruning --report again-*.json

Attempts are drawn from the measurements that ship, in turns one that was over twenty times behind the best at that
launch and one that was less. Printed is how much that launch had said too much, and how far behind the samples are.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.options import existing, say, shard
from conv_advisor.data.packing import attempts_in
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.shipped import TIMINGS
from conv_advisor.kernels.bench import BenchOptions, measure, open_runner
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.runner import Runner
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.models.costs import Costs, from_table

FAR: Final = 20.0
EDGES: Final = (5.0, 10.0, 20.0, 50.0, 100.0, float("inf"))
"""Edges of the bins of the first launch over the best."""
LONGEST_MS: Final = 250.0
"""Attempts whose first launch took longer are not drawn: a few would take all the time."""
OPTIONS: Final = BenchOptions(prune_factor=float("inf"), stop=StopRule(max_samples=6))
NEAR: Final = (1.1, 1.5, 3.0)


@dataclass(frozen=True)
class Again:
    """One attempt: its first launch then, the best of its problem then, and now the median of its samples, ms."""

    layer: str
    dtype: str
    layout: str
    variant: str
    first_ms: float
    best_ms: float
    time_ms: float | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write, or read and print; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pruning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--report", type=Path, nargs="+", metavar="FILE", help="print what runs wrote, and end")
    parser.add_argument("--output", type=Path, help="write what was found there, as JSON")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 (default), cuda:1 ..., cpu")
    parser.add_argument("--timings", type=existing, default=TIMINGS / "nvidia-h200", help="the measurements")
    parser.add_argument("--shard", type=shard, default=(0, 1), metavar="I/N")
    parser.add_argument("--time-limit", type=float, default=200, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    if chosen.report:
        print(report(Again(**fields) for path in chosen.report for fields in json.loads(path.read_text())))
        return 0
    index, count = chosen.shard
    runner = open_runner(chosen.device)
    drawn = draw(from_table(attempts_in(chosen.timings), runner.device.id), chosen.seed)[index::count]
    again = measure_again(runner, drawn, chosen.time_limit)
    say(f"{len(again)} of {len(drawn)}")
    if chosen.output:
        chosen.output.write_text(json.dumps([vars(attempt) for attempt in again]))
    print(report(again))
    return 0


def draw(costs: Costs, seed: int) -> list[Again]:
    """Every attempt that was pruned with a launch of its own, in a random order, far ones and others in turns."""
    was_launched = costs.is_pruned & np.isfinite(costs.noise) & (costs.time_ms < LONGEST_MS)
    best_ms = costs.best_ms
    attempts = [
        Again(
            *(problem.short, problem.dtype, problem.layout, costs.variants[column]),
            first_ms=float(costs.time_ms[row, column]),
            best_ms=float(best_ms[row]),
        )
        for row, column in np.argwhere(was_launched)
        for problem in [costs.problems[row]]
        if costs.variants[column] in VARIANTS
    ]
    random.Random(seed).shuffle(attempts)  # noqa: S311 - no secret
    far = [attempt for attempt in attempts if attempt.first_ms / attempt.best_ms > FAR]
    others = [attempt for attempt in attempts if attempt.first_ms / attempt.best_ms <= FAR]
    return [attempt for attempt in chain.from_iterable(zip_longest(far, others)) if attempt is not None]


def measure_again(runner: Runner, attempts: Iterable[Again], time_limit_s: float) -> list[Again]:
    """Measure without pruning, in order, until the time is up."""
    again: list[Again] = []
    end = time.monotonic() + time_limit_s
    for attempt in attempts:
        if time.monotonic() > end:
            break
        problem = ConvProblem.parse(attempt.layer, dtype=DType(attempt.dtype), layout=Layout(attempt.layout))
        [measured] = measure(runner, problem, [VARIANTS[attempt.variant]], options=OPTIONS)
        again.append(replace(attempt, time_ms=measured.time_ms))
    return again


def report(attempts: Iterable[Again]) -> str:
    """A table with a row for each range of how far behind the first launch was."""
    rows = np.array([(one.first_ms, one.best_ms, one.time_ms) for one in attempts if one.time_ms is not None])
    near = " | ".join(f"within {limit} of the best" for limit in NEAR)
    lines = [
        f"| first launch over the best | attempts | first launch over samples: median · p90 · p99 | {near} |",
        "| --- " * (3 + len(NEAR)) + "|",
    ]
    first_ms, best_ms, time_ms = rows.reshape(-1, 3).T
    for low, high in [*pairwise(EDGES), (0.0, float("inf"))]:
        mine = (first_ms / best_ms >= low) & (first_ms / best_ms < high)
        if not mine.any():
            continue
        over = " · ".join(f"{value:.2f}" for value in np.quantile(first_ms[mine] / time_ms[mine], (0.5, 0.9, 0.99)))
        counts = " | ".join(str(int((time_ms[mine] < limit * best_ms[mine]).sum())) for limit in NEAR)
        label = "all" if low == 0 else f"{low:g} to {high:g}"
        lines.append(f"| {label} | {int(mine.sum())} | {over} | {counts} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
