"""What one variant adds to all the others, by kind of layer, from the measurements that ship.

    python -m benchmarks.added cuda.implicit_gemm_tma_packed

Counted are the problems on which it was timed, and another variant too. Needs no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from benchmarks.measured import ALL_COLUMNS, best_of, mean_ratio
from benchmarks.options import existing
from benchmarks.plots.pages import number, percent, table
from conv_advisor.data.errors import ConvAdvisorError, NotEnoughData
from conv_advisor.data.packing import attempts_in
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.shipped import TIMINGS
from conv_advisor.kernels import catalog
from conv_advisor.models.costs import Costs, from_table

WIN: Final = 1.03
"""A win is so many times as fast as the fastest of the others."""

KINDS: Final[Mapping[str, Callable[[ConvProblem], bool]]] = {
    "grouped": lambda problem: problem.groups > 1,
    "one dimension": lambda problem: 1 in (problem.h, problem.w) and max(problem.r, problem.s) > 1,
    "1×1": lambda problem: problem.r == problem.s == 1,
    "dilated": lambda problem: max(problem.dilation_h, problem.dilation_w) > 1,
    "strided": lambda problem: max(problem.stride_h, problem.stride_w) > 1,
    "rectangular": lambda problem: problem.r != problem.s,
    "3×3": lambda problem: problem.r == 3,
    "5×5": lambda problem: problem.r == 5,
    "other": lambda _problem: True,
}
"""A layer is of the first kind that takes it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table a dtype and layout; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.added", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("variant", help="its id")
    parser.add_argument("--device", default="nvidia-h200", help="whose measurements (default nvidia-h200)")
    parser.add_argument("--timings", type=existing, help="measurements (default what ships)")
    chosen = parser.parse_args(arguments)
    try:
        variant = catalog.get(chosen.variant).id
        costs = from_table(attempts_in(chosen.timings or TIMINGS / chosen.device), chosen.device)
        if variant not in costs.variants:
            raise NotEnoughData(f"{variant} was not measured on {chosen.device}")
    except ConvAdvisorError as error:
        print(error, file=sys.stderr)
        return 2
    print(report(costs, variant))
    return 0


def report(costs: Costs, variant: str) -> str:
    """How often the variant wins, and what the fastest of the others takes over the fastest of all."""
    _, own_ms, _ = best_of(costs, [variant])
    _, others_ms, _ = best_of(costs, [name for name in costs.variants if name != variant])
    is_timed = np.isfinite(own_ms) & np.isfinite(others_ms)
    kinds = np.array([next(name for name, takes in KINDS.items() if takes(problem)) for problem in costs.problems])
    columns = np.array([" ".join((problem.dtype, problem.layout)) for problem in costs.problems])
    rows = []
    for column in map(" ".join, ALL_COLUMNS):
        for kind in ("all", *KINDS):
            of = np.flatnonzero(is_timed & (columns == column) & ((kinds == kind) | (kind == "all")))
            if of.size:
                gain = others_ms[of] / own_ms[of]
                with_it_ms = np.minimum(own_ms[of], others_ms[of])
                cells = (percent(float((gain > WIN).mean())), number(mean_ratio(others_ms[of], with_it_ms)))
                rows.append((column, kind, str(of.size), *cells, number(float(gain.max()))))
    return table(("", "layers", "how many", "over 3 % faster", "the others over all", "most"), rows)


if __name__ == "__main__":
    sys.exit(main())
