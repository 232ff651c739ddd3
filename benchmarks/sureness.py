"""How sure the shipped tree is of layers of networks that it was never trained on, and how often it is right.

Printed are its answers by the confidence that each is given: how many there are, how sure they are in the mean, how
many take at most 5 % longer than the fastest variant that was measured, and what all cost. Needs no GPU; a minute.
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

from app.shipped import TIMINGS
from benchmarks.measured import ALL_COLUMNS, load
from benchmarks.plots.pages import number, percent, table
from data.errors import NotEnoughData
from data.networks import HELD_OUT, held_out_layers
from models.advisor import Advisor
from models.costs import Costs, layer_of
from models.judging import judge
from models.registry import SHIPPED
from models.tree_file import read
from models.trust import WITHIN

BANDS: Final = (1.0, 0.95, 0.9, 0.8, 0.0)
"""Confidences between which answers are counted together, from certainty down."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What advice on one layer said of itself, and what it cost.

    Parameters
    ----------
    confidence : float or None
        None where the tree abstained.
    slowdown : float
        Against the fastest variant.
    """

    confidence: float | None
    slowdown: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, and print the table; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sureness", description=__doc__)
    parser.add_argument("--device", default="nvidia-h200")
    parser.add_argument("--timings", type=Path, default=TIMINGS, help="holds <device>/*.parquet")
    parser.add_argument("--trained", type=Path, default=SHIPPED, help="holds <device>/card.json")
    chosen = parser.parse_args(arguments)
    found = answers(chosen.timings / chosen.device, chosen.trained / chosen.device)
    if not found:
        print(f"nothing was measured of the networks {HELD_OUT}", file=sys.stderr)
        return 1
    print(sure_table(found))
    return 0


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
    """Of one advisor on some problems."""
    results = judge(costs, advisor.predict_order)
    return [Answer(advisor.advise(result.problem).trust.confidence, result.slowdown) for result in results]


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


def _band(low: float, high: float) -> str:
    if high == BANDS[0]:
        return f"{percent(low)} and more"
    return f"below {percent(high)}" if low == BANDS[-1] else f"{percent(low)} to {percent(high)}"


def _row(part: Sequence[Answer], n_all: int) -> Iterable[str]:
    slowdowns = np.array([answer.slowdown for answer in part])
    said = [answer.confidence for answer in part if answer.confidence is not None]
    three = np.exp(np.log(slowdowns).mean()), np.quantile(slowdowns, 0.95), slowdowns.max()
    yield f"{len(part):,} ({percent(len(part) / n_all)})"
    yield percent(float(np.mean(said))) if said else "-"
    yield percent(float((slowdowns <= 1 + WITHIN).mean()))
    yield " · ".join(number(float(value), digits) for value, digits in zip(three, (3, 2, 1), strict=True))


if __name__ == "__main__":
    sys.exit(main())
