"""What rows say of the costs of epilogues, and how good advice is that counts them so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from benchmarks.endings.rows import CHOSEN, CUDNN, EAGER, EAGER_PLAIN, OURS, PLAIN, Row
from conv_advisor.data.errors import NoAdvice
from conv_advisor.data.measurement import Device, Outcome
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.summary import Summary
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Ending
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.ranking import endings
from conv_advisor.models.ranking.endings import Endings, eager_work, kind_of, work_of
from conv_advisor.models.training.ending_fit import Pair, errors, fit, pair_of
from conv_advisor.models.tree.file import TreeModel

NEAR: Final = 3.0
"""A variant more than this many times slower alone than the fastest of its layer teaches nothing: nobody runs it."""

Known = Mapping[str, Mapping[str, Summary]]
"""What was measured of convolutions alone, by the problem's key, then by variant."""

COUNTED, TREE, IGNORED = "plain times measured", "tree alone", "epilogue ignored"
RULES: Final = (COUNTED, TREE, IGNORED)
"""Advice that counts the epilogue, from the measured time of each convolution or from the tree's; and advice that does
not count it."""


@dataclass
class Score:
    """How good a rule is on some rows.

    Parameters
    ----------
    slowdowns : list of float
        Time of the advised variant over that of the fastest that was tried, with the epilogue.
    n_untimed : int
        Rows where the advised variant has no time: it was far behind, or failed.
    """

    slowdowns: list[float] = field(default_factory=list)
    n_untimed: int = 0


def tried_ms(row: Row) -> dict[str, float]:
    """The time of each variant with the epilogue; rows written before all were kept have those that were chosen."""
    chosen = {row.timed[side].variant: ms for side in CHOSEN if (ms := row.time_ms(side)) is not None}
    return dict(row.tried_ms) or chosen


def pairs_of(row: Row, alone: Mapping[str, Summary]) -> Iterator[Pair]:
    """What a row teaches of costs.

    Parameters
    ----------
    row : Row
    alone : mapping of variant to Summary
        What was measured of its convolution alone, in other runs.
    """
    problem, times_ms = row.problem, tried_ms(row)
    least_ms = min((ms for known in alone.values() if (ms := _measured(known)) is not None), default=inf)
    in_turns = row.timed[OURS].variant if OURS in row.timed and PLAIN in row.timed else ""
    for name, time_ms in times_ms.items():
        times = (row.time_ms(PLAIN), row.time_ms(OURS)) if name == in_turns else (_measured(alone.get(name)), time_ms)
        alone_ms, ended_ms = times
        if VARIANTS[name].ending is Ending.LIBRARY:
            yield Pair(kind_of(Ending.LIBRARY, problem), work_of(Ending.LIBRARY, problem), None, time_ms)
        elif alone_ms is not None and ended_ms is not None and alone_ms <= NEAR * least_ms:
            yield from _pair(name, problem, alone_ms, ended_ms)
    for name in row.refused:
        alone_ms = _measured(alone.get(name))
        if alone_ms is not None:
            yield from _pair(name, problem, alone_ms, None)
    cudnn = [ms for name, known in alone.items() if name.startswith("cudnn.") and (ms := _measured(known)) is not None]
    if cudnn and CUDNN in row.timed:
        kind, work = kind_of(Ending.LIBRARY, problem), work_of(Ending.LIBRARY, problem)
        yield Pair(kind, work, min(cudnn), row.time_ms(CUDNN))
    plain_ms, eager_ms = _captured_ms(row, EAGER_PLAIN), _captured_ms(row, EAGER)
    if plain_ms is not None and eager_ms is not None:
        yield Pair(endings.EAGER, eager_work(problem), plain_ms, eager_ms)


def _captured_ms(row: Row, side: str) -> float | None:
    """The time of a side whose calls ran as replayed graphs, else None: other times may include the host's."""
    return row.time_ms(side) if side in row.timed and row.timed[side].is_captured else None


def _pair(name: str, problem: ConvProblem, alone_ms: float, ended_ms: float | None) -> Iterator[Pair]:
    pair = pair_of(name, problem, alone_ms, ended_ms)
    if pair is not None:
        yield pair


def _measured(summary: Summary | None) -> float | None:
    return summary.time_ms if summary and summary.outcome is Outcome.MEASURED else None


def fitted(rows: Iterable[Row], known: Known, device_id: str) -> Endings:
    """The costs that rows of one device teach."""
    rows = list(rows)
    pairs = [pair for row in rows for pair in pairs_of(row, known.get(row.problem.plain.key, {}))]
    software = "; ".join(sorted({row.software for row in rows} - {""}))
    return Endings(endings.FORMAT, device_id, software, len({row.problem for row in rows}), fit(pairs))


def halves(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Two halves of the rows, all of one layer, whatever its batch, precision, layout and epilogue, in one of them."""
    layers = {layer: place for place, layer in enumerate(sorted({_layer(row.problem) for row in rows}))}
    parts: tuple[list[Row], list[Row]] = ([], [])
    for row in rows:
        parts[layers[_layer(row.problem)] % 2].append(row)
    return parts


def _layer(problem: ConvProblem) -> str:
    return replace(problem.plain, n=1, dtype=DType.FLOAT32, layout=Layout.NCHW).key


def held_out(rows: Sequence[Row], known: Known, device_id: str) -> list[tuple[Row, Endings]]:
    """Each row with the costs that the other half teaches."""
    first, second = halves(rows)
    return [
        (row, costs)
        for part, teachers in ((first, second), (second, first))
        for costs in [fitted(teachers, known, device_id)]
        for row in part
    ]


def prediction_errors(taught: Iterable[tuple[Row, Endings]], known: Known) -> dict[str, list[float]]:
    """log(predicted / measured) of the time with the epilogue, by the way it ends, from measured times alone."""
    by_ending: dict[str, list[float]] = {}
    for row, costs in taught:
        for kind, off in errors(pairs_of(row, known.get(row.problem.plain.key, {})), costs.costs).items():
            by_ending.setdefault(kind, []).extend(off)
    return by_ending


def scores(
    taught: Iterable[tuple[Row, Endings]], known: Known, model: TreeModel, device: Device
) -> dict[str, dict[str, Score]]:
    """How good each of `RULES` is on a device by its tree or one that it borrows, by epilogue."""
    by_epilogue: dict[str, dict[str, Score]] = {}
    for row, costs in taught:
        advised = _advised(row.problem, known.get(row.problem.plain.key, {}), Advisor(model, device, endings=costs))
        times_ms = tried_ms(row)
        for rule, variant in advised.items():
            score = by_epilogue.setdefault(str(row.problem.epilogue), {}).setdefault(rule, Score())
            if variant in times_ms:
                score.slowdowns.append(times_ms[variant] / min(times_ms.values(), default=inf))
            else:
                score.n_untimed += 1
    return by_epilogue


def _advised(problem: ConvProblem, alone: Mapping[str, Summary], advisor: Advisor) -> dict[str, str]:
    """The variant that each rule would run, without those that have none."""
    rules: dict[str, Callable[[], str]] = {
        COUNTED: lambda: advisor.advise(problem, alone=alone).variant,
        TREE: lambda: advisor.advise(problem).variant,
        IGNORED: lambda: advisor.advise(problem.plain, measured=alone).variant,
    }
    variants = {}
    for rule, choose in rules.items():
        try:
            variants[rule] = choose()
        except NoAdvice:
            continue
    return variants
