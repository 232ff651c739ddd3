"""The confidence of the shipped tree on layers of networks it was never trained on, and how often it is right.

The first table has its answers by the confidence that each is given: how many there are, how sure they are in the mean,
how many take at most 5 % longer than the fastest variant that was measured, and what all cost. The second has what is
left where not the first variant of each ranking is taken, but the fastest of the first few, as `conv-advisor convolve
--top` does: in the same measurements that judge it, which flatters it by their noise. The third has what that costs
where it is done below a confidence alone, and after how many calls it has paid: `models.advice.unsure` is chosen by it.
Needs no GPU; half a minute.
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

from benchmarks.measured import ALL_COLUMNS, attempts_of
from benchmarks.plots.pages import number, percent, table
from conv_advisor.data.errors import NotEnoughData
from conv_advisor.data.networks import HELD_OUT, held_out_layers
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.shipped import SUFFIX, TIMINGS, ShippedTable
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import Costs, from_table
from conv_advisor.models.evaluation.judging import even_weights, quantile
from conv_advisor.models.ranking.trust import WITHIN
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.tree.file import TreeModel, read

BANDS: Final = (1.0, 0.95, 0.9, 0.8, 0.0)
"""Confidences between which answers are counted together, from certainty down."""
TOPS: Final = (1, 2, 3, 5)
"""How many of a ranking's first variants are measured."""
THRESHOLDS: Final = (0.8, 0.85, 0.9, 0.95)
"""Confidences below which those are measured."""
INTERRUPTED_S: Final = 60
"""A longer time between two attempts of a sweep is an interruption."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What advice on one layer said of itself, and what it cost.

    Parameters
    ----------
    problem : ConvProblem
    confidence : float or None
        None where the tree abstained.
    best_ms : float
        Of the fastest variant.
    slowdowns : tuple of float
        Against the fastest variant, for each of `TOPS`: of the fastest of so many of the ranking's first, or of the
        next one that runs.
    """

    problem: ConvProblem
    confidence: float | None
    best_ms: float
    slowdowns: tuple[float, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, and print the tables; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sureness", description=__doc__)
    parser.add_argument("--device", default="nvidia-h200")
    parser.add_argument("--timings", type=Path, default=TIMINGS, help="holds <device>.safetensors")
    parser.add_argument("--trained", type=Path, default=SHIPPED, help="holds <device>/card.json")
    chosen = parser.parse_args(arguments)
    try:
        timings = chosen.timings / chosen.device
        answered = answers(timings, read(chosen.trained / chosen.device))
    except NotEnoughData as error:
        print(error, file=sys.stderr)
        return 1
    print("\n\n".join(tables(answered, attempt_ms(timings)).values()))
    return 0


def tables(answered: Sequence[Answer], measuring_ms: float) -> dict[str, str]:
    """All three tables, by the names of their marks in docs/advice.md; measuring one variant takes so long."""
    took = f"Measuring one variant took {measuring_ms:.0f} ms in the middle one of the sweeps."
    unsure = f"{unsure_table(answered, measuring_ms)}\n\n{took}"
    return {"how sure": sure_table(answered), "top": top_table(answered), "unsure": unsure}


def attempt_ms(timings: Path) -> float:
    """Mean ms that the middle sweep of a table took for a variant that was timed (`middle_ms`)."""
    table = ShippedTable(timings.with_name(timings.name + SUFFIX))
    blocks = list(table.blocks())
    run, at_s, n_samples = (np.concatenate([getattr(b, name) for b in blocks]) for name in ("run", "at_s", "n_samples"))
    return middle_ms(run, at_s, n_samples > 1)


def middle_ms(run: np.ndarray, at_s: np.ndarray, is_timed: np.ndarray) -> float:
    """Mean ms of a sweep for each variant that was timed, with compiling, checking and refusals.

    It is that of the middle one, by variants timed: several sweeps at once on a GPU take turns, and each waits for the
    others. A time between two attempts in which a run was interrupted does not count.
    """
    order = np.lexsort((at_s, run))
    gaps_s = np.diff(at_s[order])
    counts = (np.diff(run[order]) == 0) & (gaps_s < INTERRUPTED_S)
    n_timed = np.bincount(run, is_timed)
    took_s = np.bincount(run[order][1:][counts], gaps_s[counts], len(n_timed))
    means_ms, n_timed = 1e3 * took_s[n_timed > 0] / n_timed[n_timed > 0], n_timed[n_timed > 0]
    shortest_first = np.argsort(means_ms)
    middle = np.searchsorted(np.cumsum(n_timed[shortest_first]), n_timed.sum() / 2)
    return float(means_ms[shortest_first[middle]])


def answers(timings: Path, model: TreeModel) -> list[Answer]:
    """Ask a tree about those layers in the files of a folder that teach no tree.

    Raises
    ------
    NotEnoughData
        The files have nothing of those layers.
    """
    never = held_out_layers()
    attempts = attempts_of(timings)
    costs = from_table(attempts, model.device.id).where(lambda p: p.layer in never) if len(attempts) else None
    if not costs or not costs.problems:
        raise NotEnoughData(f"nothing was measured of the networks {HELD_OUT}")
    return answers_on(costs, Advisor(model))


def answers_on(costs: Costs, advisor: Advisor) -> list[Answer]:
    """Ask one advisor about some problems; variants that were never tried there are passed over.

    A problem is left out where the first variant that runs was given up on after its first launch, which is no time.
    """
    place = {name: column for column, name in enumerate(costs.variants)}
    best_ms = costs.best_ms
    answered = []
    for row, problem in enumerate(costs.problems):
        advice = advisor.advise(problem)
        columns = [place[choice.variant] for choice in advice.ranking if choice.variant in place]
        columns = [column for column in columns if costs.is_known[row, column]]
        first = int(np.flatnonzero(np.isfinite(costs.time_ms[row, columns]))[0])
        if costs.is_pruned[row, columns[first]]:
            continue
        times = np.where(costs.is_pruned[row, columns], np.nan, costs.time_ms[row, columns])
        fastest_ms = [np.nanmin(times[: max(top, first + 1)]) for top in TOPS]
        answered.append(
            Answer(
                problem,
                advice.trust.confidence,
                float(best_ms[row]),
                tuple(float(ms / best_ms[row]) for ms in fastest_ms),
            )
        )
    return answered


def sure_table(answered: Sequence[Answer]) -> str:
    """A row a band of confidence, those that abstain, and all; in Markdown. Every dtype and layout counts the same."""
    counted = list(zip(answered, even_weights([answer.problem for answer in answered]).tolist(), strict=True))
    sure = [(answer.confidence, (answer, weight)) for answer, weight in counted if answer.confidence is not None]
    rows = [
        (_band(low, high), [pair for level, pair in sure if low <= level and (level < high or high == BANDS[0])])
        for high, low in pairwise(BANDS)
    ]
    rows += [("abstains", [pair for pair in counted if pair[0].confidence is None]), ("all", counted)]
    right = f"within {percent(WITHIN)} of the fastest"
    head = ("confidence", "answers", "mean confidence", right, "slowdown: mean · 95th percentile · worst")
    return table(head, [(name, *_row(part, len(answered))) for name, part in rows if part])


def top_table(answered: Sequence[Answer]) -> str:
    """A row a dtype and layout, and all; a column how many of the first are measured."""
    parts = [
        (f"{dtype} {layout.upper()}", [a for a in answered if (a.problem.dtype, a.problem.layout) == (dtype, layout)])
        for dtype, layout in ALL_COLUMNS
    ]
    head = ("", "problems", *("first choice" if top == 1 else f"best of first {top}" for top in TOPS))
    named = [(name, part) for name, part in [*parts, ("all", list(answered))] if part]
    return table(head, [(name, f"{len(part):,}", *_of_each_top(part)) for name, part in named])


def unsure_table(answered: Sequence[Answer], measuring_ms: float) -> str:
    """A row a threshold, and one for all: the share measured, and what is left and the break-even of each of `TOPS`."""
    weights = even_weights([answer.problem for answer in answered])
    slowdowns, best_ms = (
        np.array([answer.slowdowns for answer in answered]),
        np.array([answer.best_ms for answer in answered]),
    )
    sure = np.array([-1.0 if answer.confidence is None else answer.confidence for answer in answered])
    rows = []
    for name, is_asked in [
        *((f"below {percent(threshold)}", sure < threshold) for threshold in THRESHOLDS),
        ("all", np.ones(len(answered), bool)),
    ]:
        cells = []
        for place, top in list(enumerate(TOPS))[1:]:
            left = np.where(is_asked, slowdowns[:, place], slowdowns[:, 0])
            gains_ms = (slowdowns[:, 0] - slowdowns[:, place]) * best_ms
            gain_ms = float(np.average(gains_ms, weights=weights * is_asked)) if is_asked.any() else 0.0
            calls = f"{top * measuring_ms / gain_ms:,.0f}" if gain_ms else "-"
            cells += [_three(left.tolist(), weights), calls]
        rows.append((name, percent(float(np.average(is_asked, weights=weights))), *cells))
    head = (
        "measured where confidence is",
        "layers",
        *(c for top in TOPS[1:] for c in (f"first {top}", "pays after calls")),
    )
    return table(head, rows)


def _band(low: float, high: float) -> str:
    if high == BANDS[0]:
        return f"{percent(low)} and more"
    return f"below {percent(high)}" if low == BANDS[-1] else f"{percent(low)} to {percent(high)}"


def _row(part: Sequence[tuple[Answer, float]], n_all: int) -> Iterable[str]:
    slowdowns, weights = [answer.slowdowns[0] for answer, _ in part], np.array([weight for _, weight in part])
    sure = np.where([answer.confidence is None for answer, _ in part], 0.0, weights)
    confidences = [answer.confidence or 0.0 for answer, _ in part]
    yield f"{len(part):,} ({percent(len(part) / n_all)})"
    yield percent(float(np.average(confidences, weights=sure))) if sure.any() else "-"
    yield percent(float(np.average(np.array(slowdowns) <= 1 + WITHIN, weights=weights)))
    yield _three(slowdowns, weights)


def _of_each_top(part: Sequence[Answer]) -> list[str]:
    weights = even_weights([answer.problem for answer in part])
    return [_three([answer.slowdowns[place] for answer in part], weights) for place in range(len(TOPS))]


def _three(slowdowns: Sequence[float], weights: np.ndarray) -> str:
    mean = float(np.exp(np.average(np.log(slowdowns), weights=weights)))
    three = mean, quantile(slowdowns, 0.95, weights), max(slowdowns)
    return " · ".join(number(value, digits) for value, digits in zip(three, (3, 2, 1), strict=True))


if __name__ == "__main__":
    sys.exit(main())
