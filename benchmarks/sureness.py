"""How sure the shipped tree is of layers of networks that it was never trained on, and how often it is right.

The first table has its answers by the confidence that each is given: how many there are, how sure they are in the mean,
how many take at most 5 % longer than the fastest variant that was measured, and what all cost. The second has what is
left where not the first variant of each ranking is taken, but the fastest of the first few, as `conv-advisor convolve
--top` does: in the same measurements that judge it, which flatters it by their noise. Needs no GPU; half a minute.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.measured import ALL_COLUMNS, load
from benchmarks.plots.pages import number, percent, table
from conv_advisor.data.errors import NotEnoughData
from conv_advisor.data.networks import HELD_OUT, held_out_layers
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.shipped import TIMINGS
from conv_advisor.models.advisor import Advisor
from conv_advisor.models.costs import Costs, layer_of
from conv_advisor.models.registry import SHIPPED
from conv_advisor.models.tree_file import read
from conv_advisor.models.trust import WITHIN

BANDS: Final = (1.0, 0.95, 0.9, 0.8, 0.0)
"""Confidences between which answers are counted together, from certainty down."""
TOPS: Final = (1, 2, 3, 5)
"""How many of the first are measured."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What advice on one layer said of itself, and what it cost.

    Parameters
    ----------
    problem : ConvProblem
    confidence : float or None
        None where the tree abstained.
    slowdowns : tuple of float
        Against the fastest variant: of the fastest of so many of the ranking's first as `TOPS` has, or of the next one
        that runs.
    """

    problem: ConvProblem
    confidence: float | None
    slowdowns: tuple[float, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, and print the tables; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sureness", description=__doc__)
    parser.add_argument("--device", default="nvidia-h200")
    parser.add_argument("--timings", type=Path, default=TIMINGS, help="holds <device>.safetensors")
    parser.add_argument("--trained", type=Path, default=SHIPPED, help="holds <device>/card.json")
    chosen = parser.parse_args(arguments)
    found = answers(chosen.timings / chosen.device, chosen.trained / chosen.device)
    if not found:
        print(f"nothing was measured of the networks {HELD_OUT}", file=sys.stderr)
        return 1
    print("\n\n".join(tables(found).values()))
    return 0


def tables(found: Sequence[Answer]) -> dict[str, str]:
    """Both, by the names of their marks in docs/advice.md."""
    return {"how sure": sure_table(found), "top": top_table(found)}


def answers(timings: Path, trained: Path) -> list[Answer]:
    """Of the tree in one folder on what the files of another have of the layers that teach no tree.

    Raises
    ------
    ModelRejected
    """
    model, never, found = read(trained), held_out_layers(), []
    for column in ALL_COLUMNS:
        try:
            costs = load(timings, model.device.id, column, HELD_OUT)
        except NotEnoughData:
            continue
        found += answers_on(costs.where(lambda problem: layer_of(problem) in never), Advisor(model))
    return found


def answers_on(costs: Costs, advisor: Advisor) -> list[Answer]:
    """Of one advisor on some problems; variants that were never tried there are passed over."""
    place = {name: column for column, name in enumerate(costs.variants)}
    found = []
    for row, problem in enumerate(costs.problems):
        advice = advisor.advise(problem)
        columns = [place[choice.variant] for choice in advice.ranking if choice.variant in place]
        times = costs.time_ms[row, [column for column in columns if costs.is_known[row, column]]]
        runs = np.flatnonzero(np.isfinite(times))
        fastest_ms = [np.nanmin(times[: max(top, runs[0] + 1)]) for top in TOPS]
        found.append(
            Answer(problem, advice.trust.confidence, tuple(float(ms / costs.best_ms[row]) for ms in fastest_ms))
        )
    return found


def sure_table(found: Sequence[Answer]) -> str:
    """A row a band of confidence, those that abstain, and all; in Markdown."""
    sure = [(answer.confidence, answer) for answer in found if answer.confidence is not None]
    rows = [
        (_band(low, high), [answer for said, answer in sure if low <= said and (said < high or high == BANDS[0])])
        for high, low in pairwise(BANDS)
    ]
    rows += [("abstains", [answer for answer in found if answer.confidence is None]), ("all", list(found))]
    right = f"at most {percent(WITHIN)} off"
    head = ("how sure", "answers", "sure in the mean", right, "mean · 95th percentile · worst")
    return table(head, [(name, *_row(part, len(found))) for name, part in rows if part])


def top_table(found: Sequence[Answer]) -> str:
    """A row a dtype and layout, and all; a column how many of the first are measured."""
    parts = [
        (f"{dtype} {layout.upper()}", [a for a in found if (a.problem.dtype, a.problem.layout) == (dtype, layout)])
        for dtype, layout in ALL_COLUMNS
    ]
    head = ("", "problems", *("the first" if top == 1 else f"the best of the first {top}" for top in TOPS))
    named = [(name, part) for name, part in [*parts, ("all", list(found))] if part]
    return table(head, [(name, f"{len(part):,}", *_of_each_top(part)) for name, part in named])


def _band(low: float, high: float) -> str:
    if high == BANDS[0]:
        return f"{percent(low)} and more"
    return f"below {percent(high)}" if low == BANDS[-1] else f"{percent(low)} to {percent(high)}"


def _row(part: Sequence[Answer], n_all: int) -> Iterable[str]:
    slowdowns = [answer.slowdowns[0] for answer in part]
    said = [answer.confidence for answer in part if answer.confidence is not None]
    yield f"{len(part):,} ({percent(len(part) / n_all)})"
    yield percent(float(np.mean(said))) if said else "-"
    yield percent(float(np.mean(np.array(slowdowns) <= 1 + WITHIN)))
    yield _three(slowdowns)


def _of_each_top(part: Sequence[Answer]) -> list[str]:
    return [_three([answer.slowdowns[place] for answer in part]) for place in range(len(TOPS))]


def _three(slowdowns: Sequence[float]) -> str:
    three = np.exp(np.log(slowdowns).mean()), np.quantile(slowdowns, 0.95), np.max(slowdowns)
    return " · ".join(number(float(value), digits) for value, digits in zip(three, (3, 2, 1), strict=True))


if __name__ == "__main__":
    sys.exit(main())
