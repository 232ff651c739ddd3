"""What a bound on errors costs: the fastest variant within it, against the fastest of all, on measured problems.

    python -m benchmarks.accuracy [--device nvidia-h200]

The bound is as many times the error of what cuDNN's heuristic A chooses, which PyTorch's default runs, as
``conv_advisor.torch`` takes for ``max_error_ratio``. Nothing is run: the measurements that ship have every error.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from math import inf
from statistics import geometric_mean

from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.shipped import SUFFIX, TIMINGS, ShippedTable
from conv_advisor.data.summary import Attempt
from conv_advisor.models.advice.habits import HEURISTIC
from conv_advisor.models.ranking.accuracy import allowed_error

RATIOS = (1.0, 2.0, 4.0, 8.0, 16.0)


def slowdowns(problem: ConvProblem, attempts: list[Attempt], own: str) -> list[float] | None:
    """By how much each bound slows the fastest variant of one problem down; last what the heuristic's choice takes.

    None where the error of that choice is unknown.
    """
    timed = {attempt.variant: attempt for attempt in attempts if attempt.time_ms and attempt.max_error is not None}
    if own not in timed or not timed[own].max_error:
        return None
    times = [(attempt.max_error or 0.0, attempt.time_ms or inf) for attempt in timed.values()]
    own_error, own_ms = timed[own].max_error or 0.0, timed[own].time_ms or inf
    fastest_ms = min(time_ms for _, time_ms in times)
    within_ms = [
        min([own_ms, *(time_ms for error, time_ms in times if error <= allowed_error(problem, own_error, ratio))])
        for ratio in RATIOS
    ]
    return [time_ms / fastest_ms for time_ms in (*within_ms, own_ms)]


def table(shipped: ShippedTable) -> list[str]:
    """The rows of the table: means by precision and layout."""
    by_kind: dict[str, list[list[float]]] = defaultdict(list)
    for key, problem in zip(shipped.keys, shipped.problems(), strict=True):
        own = shipped.picked(key).get(HEURISTIC)
        ratios = slowdowns(problem, shipped.attempts(key), own) if own else None
        if ratios:
            by_kind[f"{problem.dtype} {problem.layout.upper()}"].append(ratios)
    return [_row(f"{kind}, {len(rows):,} problems", rows) for kind, rows in sorted(by_kind.items())]


def _row(title: str, rows: list[list[float]]) -> str:
    return " | ".join([f"| {title}", *(f"{geometric_mean(column):.3f}" for column in zip(*rows, strict=True))]) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="nvidia-h200")
    print(" | ".join(["| `max_error_ratio`", *(f"{ratio:g}" for ratio in RATIOS), "heuristic A's choice |"]))
    print("|---" * (len(RATIOS) + 2) + "|")
    print(*table(ShippedTable(TIMINGS / f"{parser.parse_args().device}{SUFFIX}")), sep="\n")


if __name__ == "__main__":
    main()
