"""Dilated, one-dimensional and rectangular layers against undilated square ones of the same operations.

    python -m benchmarks.alike --problems > layers.txt
    conv-advisor sweep --networks "" --problems layers.txt --no-picks --run-id first --output first.parquet
    conv-advisor sweep --networks "" --problems layers.txt --no-picks --run-id again --output again.parquet
    python -m benchmarks.alike first.parquet again.parquet

The layers are a random choice of those of the networks in ``data/networks`` (but of ``beyond-held-out``), float16,
channels last. What each is held
against has its outputs, filters and groups: a dilated layer without its dilation; any other as 3x3 on a plane as square
as its outputs allow, of so many channels that the operations stay (to a multiple of eight, eight at least). The bytes
then differ a little, so times are first divided by the roofline. The fastest variant of each is chosen in the first
file and told from the second.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.contest.scores import geometric_mean, roofline
from benchmarks.contest.tables import markdown
from conv_advisor.data import networks
from conv_advisor.data.parquet import SCHEMA, distinct_problems, read, times
from conv_advisor.data.problem import ConvProblem, DType, Layout

KINDS: Final = ("dilated", "one-dimensional", "rectangular")
BATCHES: Final = (1, 8)
LEAST_CHANNELS: Final = 8
"""The channels of a comparable layer are a multiple of this."""
TARGET: Final = 1.3
"""Median of a layer's time over that of its comparable layer, at most."""
_Times = dict[ConvProblem, dict[str, float]]
_WORST: Final = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """List the problems, or print the table of two sweeps of them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.alike", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweeps", nargs="*", type=Path, metavar="PARQUET", help="two sweeps: that chooses, that tells")
    parser.add_argument("--problems", action="store_true", help="print what to sweep, a line each")
    parser.add_argument("--count", type=int, default=14, help="layers of a kind (default 14)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice (default 0)")
    chosen = parser.parse_args(arguments)
    layers = drawn(chosen.count, chosen.seed)
    if chosen.problems:
        problems = dict.fromkeys(problem for layer in layers for problem in (layer, alike(layer)))
        print(*(f"{problem.short} {problem.dtype} {problem.layout}" for problem in problems), sep="\n")
        return 0
    if len(chosen.sweeps) != 2:
        parser.error("two sweeps are wanted, or --problems")
    first, again = map(_times_in, chosen.sweeps)
    print(report(layers, first, again))
    return 0


def kind_of(problem: ConvProblem) -> str | None:
    """Which of `KINDS` a layer is; None where it is square and undilated, grouped, or has no comparable layer.

    A filter of fewer weights than 3x3 of eight channels has no comparable layer.
    """
    if problem.groups > 1 or problem.r * problem.s == 1 or problem.c * problem.r * problem.s < 9 * LEAST_CHANNELS:
        return None
    if problem.h == problem.r == 1:
        return "one-dimensional"
    if max(problem.dilation_h, problem.dilation_w) > 1:
        return "dilated"
    return "rectangular" if problem.r != problem.s else None


def alike(problem: ConvProblem) -> ConvProblem:
    """The undilated square layer that a layer is held against."""
    if kind_of(problem) == "dilated":
        rows, columns = problem.dilation_h - 1, problem.dilation_w - 1
        less_h, less_w = rows * (problem.r - 1), columns * (problem.s - 1)
        return replace(
            problem,
            h=problem.h + problem.pad_h + problem.pad_h_end - less_h - 2 * (problem.r // 2),
            w=problem.w + problem.pad_w + problem.pad_w_end - less_w - 2 * (problem.s // 2),
            pad_h=problem.r // 2,
            pad_w=problem.s // 2,
            pad_h_end=problem.r // 2,
            pad_w_end=problem.s // 2,
            dilation_h=1,
            dilation_w=1,
        )
    pixels = problem.p * problem.q
    height = max(1, math.isqrt(pixels))
    return replace(
        problem,
        c=LEAST_CHANNELS * round(problem.c * problem.r * problem.s / (9 * LEAST_CHANNELS)),
        h=height,
        w=round(pixels / height),
        r=3,
        s=3,
        stride_h=1,
        stride_w=1,
        pad_h=1,
        pad_w=1,
        pad_h_end=1,
        pad_w_end=1,
        dilation_h=1,
        dilation_w=1,
    )


def drawn(count: int, seed: int) -> list[ConvProblem]:
    """So many layers of each kind, at random, none twice."""
    every = dict.fromkeys(
        problem
        for name in (group for group in networks.GROUPS if group != "beyond-held-out")
        for problem in networks.problems(name, batches=BATCHES, dtypes=[DType.FLOAT16], layouts=[Layout.NHWC])
    )
    layers = []
    for kind in KINDS:
        mine = sorted((problem for problem in every if kind_of(problem) == kind), key=lambda problem: problem.key)
        layers += random.Random(seed).sample(mine, min(count, len(mine)))  # noqa: S311 - no secret
    return layers


def report(layers: Iterable[ConvProblem], first: _Times, again: _Times) -> str:
    """A line a kind, and the worst layers."""
    compared = [(layer, _told(layer, first, again), _told(alike(layer), first, again)) for layer in layers]
    ratios = {
        layer: (mine[1] / roofline(layer).least_ms) / (its[1] / roofline(alike(layer)).least_ms)
        for layer, mine, its in compared
        if mine and its
    }
    lines = []
    for kind in KINDS:
        mine = [ratio for layer, ratio in ratios.items() if kind_of(layer) == kind]
        if mine:
            over = sum(ratio > TARGET for ratio in mine)
            lines.append(
                (kind, str(len(mine)), *(f"{value:.2f}" for value in (median(mine), geometric_mean(mine))), str(over))
            )
    head = ("", "layers", "over what is alike, median", "geometric mean", f"over {TARGET}")
    worst = []
    for layer, mine_told, its_told in compared:
        if layer in ratios and mine_told and its_told:
            bound = roofline(layer)
            worst.append(
                (ratios[layer], layer.key, *_line(mine_told), alike(layer).short, *_line(its_told), bound.bound)
            )
    worst.sort(key=lambda line: -line[0])
    shown = [(f"{ratio:.2f}", *rest) for ratio, *rest in worst[:_WORST]]
    columns = ("times", "layer", "variant", "µs", "alike", "its variant", "µs", "bound")
    return f"{markdown(head, lines)}\n\n{markdown(columns, shown)}"


def _line(timed: tuple[str, float]) -> tuple[str, str]:
    return timed[0], f"{1e3 * timed[1]:.1f}"


def _told(problem: ConvProblem, first: _Times, again: _Times) -> tuple[str, float] | None:
    """The variant that is the fastest in the first sweep, and its time in the second; None where it has none."""
    chosen = min((times_ms := first.get(problem, {})), key=times_ms.__getitem__, default=None)
    time_ms = again.get(problem, {}).get(chosen) if chosen else None
    return (chosen, time_ms) if chosen and time_ms else None


def _times_in(path: Path) -> _Times:
    table = read(path, SCHEMA)
    problems, rows = distinct_problems(table)
    times_ms: _Times = {}
    columns = rows.tolist(), table["variant"].to_pylist(), times(table)[0].tolist()
    for row, variant, time_ms in zip(*columns, strict=True):
        if not math.isnan(time_ms):
            times_ms.setdefault(problems[row], {})[variant] = time_ms
    return times_ms


if __name__ == "__main__":
    sys.exit(main())
