"""Grouped layers: our own kernels against the best of cuDNN's two APIs, from one run of those that ship.

Every variant was timed on every one of these layers in one run (`data/timings/README.md`, ``zoo-grouped``): layers of
models of timm and torchvision, which no rule of a kernel was fitted to. Printed are ratios of times, by kind of layer,
dtype and layout. Needs no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow.compute as pc

from benchmarks.contest.choice import CUDNN, OURS
from benchmarks.measured import ALL_COLUMNS, best_of, is_win, mean_ratio
from benchmarks.options import existing
from benchmarks.plots.pages import number, percent, table
from conv_advisor.data.packing import attempts_in
from conv_advisor.data.shipped import TIMINGS
from conv_advisor.models.costs import Costs, from_table

KINDS: Final = {"one channel a group": True, "several channels a group": False}
SMALL_BATCH: Final = 8
"""Up to this batch the launch and its latency are a large part of the time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table a kind of layer."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.grouped", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="nvidia-h200", help="whose measurements (default nvidia-h200)")
    parser.add_argument("--timings", type=existing, help="measurements (default what ships)")
    parser.add_argument("--source", default="zoo-grouped", help="the sweep whose rows count (default zoo-grouped)")
    chosen = parser.parse_args(arguments)
    attempts = attempts_in(chosen.timings or TIMINGS / chosen.device)
    costs = from_table(attempts.filter(pc.equal(attempts["source"], chosen.source)), chosen.device)
    for name, is_depthwise in KINDS.items():
        print(f"{name}\n\n{report(costs, is_depthwise=is_depthwise)}\n")
    return 0


def report(costs: Costs, *, is_depthwise: bool) -> str:
    """The table of one kind of layer: how often ours wins, and the geometric mean of cuDNN's time over ours."""
    kinds = [problem.groups > 1 and (problem.c == problem.groups) is is_depthwise for problem in costs.problems]
    is_timed = np.isfinite(best_of(costs, OURS)[1]) & np.isfinite(best_of(costs, CUDNN)[1])
    rows = []
    for column in ALL_COLUMNS:
        is_of = np.array([(problem.dtype, problem.layout) == column for problem in costs.problems])
        if (places := np.flatnonzero(kinds & is_timed & is_of)).size:
            rows.append((" ".join(column), *_row(costs.take(places))))
    small = f"batch ≤ {SMALL_BATCH}"
    return table(("", "layers", "over 3 % faster", "cuDNN over ours", small, "larger batches", "worst"), rows)


def _row(costs: Costs) -> tuple[str, ...]:
    _, ours_ms, _ = best_of(costs, OURS)
    _, cudnn_ms, _ = best_of(costs, CUDNN)
    is_small = np.array([problem.n <= SMALL_BATCH for problem in costs.problems])
    parts = (mean_ratio(cudnn_ms[rows], ours_ms[rows]) for rows in (is_small | True, is_small, ~is_small))
    worst = float(np.min(cudnn_ms / ours_ms))
    return (str(len(costs.problems)), percent(float(is_win(costs).mean())), *map(number, parts), number(worst))


if __name__ == "__main__":
    sys.exit(main())
