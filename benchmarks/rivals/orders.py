"""Which layers are measured, and what each rule that needs no device would run for them."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

import pyarrow as pa

from benchmarks.contest.choice import from_timings
from benchmarks.rivals.layer import POOL, Order
from benchmarks.rivals.rows import ADVICE, SINGLE_BEST
from benchmarks.turns.layer import Choice
from conv_advisor.data import networks
from conv_advisor.data.errors import NoAdvice
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import from_table
from conv_advisor.models.evaluation.judging import single_best_order
from conv_advisor.models.tree.file import TreeModel

MOST_STAND_INS: Final = 5
"""Choices of advice that are tried where the first does not run."""

Column = tuple[DType, Layout]
Named = dict[ConvProblem, str]
"""Problems, each with the names of the networks that have its layer."""


@dataclass(frozen=True)
class Near:
    """What else the oracle is chosen among: variants within a factor of the best measured, at most so many."""

    factor: float = 1.3
    most: int = 6


def of_networks(
    names: Iterable[str], batches: Sequence[int] | None, dtypes: Sequence[DType], layouts: Sequence[Layout]
) -> Named:
    """The layers of these networks and groups.

    Raises
    ------
    UnknownNetwork
    """
    by_problem: dict[ConvProblem, list[str]] = {}
    for name in names:
        for member in networks.GROUPS.get(name, (name,)):
            for problem in networks.problems(member, batches=batches, dtypes=dtypes, layouts=layouts):
                by_problem.setdefault(problem, []).append(member)
    return {problem: " ".join(dict.fromkeys(members)) for problem, members in by_problem.items()}


def shuffled(problems: Iterable[ConvProblem], seed: int) -> list[ConvProblem]:
    """The problems in an order that takes dtypes and layouts in turns, and leaves a fair sample wherever it ends.

    Each dtype and layout has an order of its own: a run that ends early has seen more layers than one order would show.
    """
    columns: dict[Column, list[ConvProblem]] = {}
    for problem in sorted(problems, key=lambda problem: problem.key):
        columns.setdefault((problem.dtype, problem.layout), []).append(problem)
    for (dtype, layout), of_column in columns.items():
        random.Random(f"{seed} {dtype} {layout}").shuffle(of_column)  # noqa: S311 - an order, no secret
    return [problem for row in zip_longest(*columns.values()) for problem in row if problem is not None]


def orders(
    named: Mapping[ConvProblem, str],
    model: TreeModel,
    attempts: pa.Table,
    *,
    near: Near | None = None,
    is_fresh: bool = False,
    rule: StopRule | None = None,
) -> Iterator[Order]:
    """What is to be done for each of these problems, in their order.

    Parameters
    ----------
    named : mapping of ConvProblem to str
        With the names of the networks that have its layer.
    model : TreeModel
        Gives the advice, by the tree alone: it does not see the timings.
    attempts : pyarrow.Table
        What is known of the problems, in `data.parquet.ATTEMPTS`.
    near : Near
    is_fresh : bool
        Whether every variant is tried on every layer; else only on those that the timings do not know.
    rule : StopRule
    """
    near = near or Near()
    advisor = Advisor(model)
    known = {} if is_fresh else from_timings(attempts, named, POOL)
    singles = single_best(attempts, model.device.id, named)
    for problem, names in named.items():
        advised, predicted_ms, abstains = _advised(advisor, problem)
        single = singles.get((problem.dtype, problem.layout), ())
        yield Order(
            problem,
            {ADVICE: advised, SINGLE_BEST: tuple(map(Choice, single))},
            predicted_ms,
            abstains,
            _near(known.get(problem, {}), near),
            problem not in known,
            rule or StopRule(),
            networks=names,
            tree=model.id,
        )


def single_best(attempts: pa.Table, device_id: str, left_out: Collection[ConvProblem]) -> dict[Column, list[str]]:
    """For each dtype and layout the variants by geometric-mean slowdown, over layers that are not measured here."""
    if not attempts.num_rows:
        return {}
    costs = from_table(attempts, device_id)
    layers = {problem.layer for problem in left_out}
    others = [row for row, problem in enumerate(costs.problems) if problem.layer not in layers]
    columns: dict[Column, list[int]] = {}
    for row in others or range(len(costs.problems)):
        problem = costs.problems[row]
        columns.setdefault((problem.dtype, problem.layout), []).append(row)
    return {
        column: [variant for variant in single_best_order(costs.take(rows)) if variant in POOL]
        for column, rows in columns.items()
    }


def _advised(advisor: Advisor, problem: ConvProblem) -> tuple[tuple[Choice, ...], float | None, bool | None]:
    try:
        advice = advisor.advise(problem)
    except NoAdvice:
        return (), None, None
    ranking = advice.ranking[:MOST_STAND_INS]
    return tuple(Choice(choice.variant) for choice in ranking), ranking[0].time_ms, advice.trust.abstains


def _near(chosen_ms: Mapping[Choice, float], near: Near) -> tuple[Choice, ...]:
    ranked = sorted(chosen_ms, key=chosen_ms.__getitem__)[: near.most]
    return tuple(Choice(choice.variant) for choice in ranked if chosen_ms[choice] <= near.factor * chosen_ms[ranked[0]])
