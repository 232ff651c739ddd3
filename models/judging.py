"""What a rule's choices cost on measured problems: slowdown against the oracle, ties, errors of predicted times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.advisor import Advisor
from conv_advisor.models.costs import Costs, is_tied
from conv_advisor.models.teacher import CAP

TREE: Final = "tree"
TEACHER: Final = "teacher"
"""The ensemble that the tree learned from, which is not kept."""
SINGLE_BEST: Final = "single best"
ORACLE: Final = "oracle"

Ranker = Callable[[ConvProblem], Iterable[str] | None]
"""The variants that a rule would run on a problem, best first; None where it says nothing."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one rule's choice cost on one problem.

    Parameters
    ----------
    problem : ConvProblem
    slowdown : float
        Time of the choice against the oracle's; of a refused choice, that of the next one.
    is_tied : bool
        Whether choice and oracle are closer than the noise.
    is_refused : bool
        Whether the device refused the first choice.
    is_oracle : bool
        Whether the choice is the very variant that was fastest.
    variant : str
        The choice that counts; empty where the rule does not say.
    """

    problem: ConvProblem
    slowdown: float
    is_tied: bool
    is_refused: bool
    is_oracle: bool
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """What the choices of one rule cost: slowdown against the oracle over so many problems."""

    n_problems: int
    geometric_mean: float
    p95: float
    worst: float
    share_tied: float
    share_refused: float
    accuracy: float
    worst_problem: str

    @classmethod
    def of(cls, results: Sequence[Result]) -> Score:
        """Summarise; at least one result."""
        slowdowns = np.array([result.slowdown for result in results])
        return cls(
            n_problems=len(results),
            geometric_mean=float(np.exp(np.log(slowdowns).mean())),
            p95=float(np.quantile(slowdowns, 0.95)),
            worst=float(slowdowns.max()),
            share_tied=float(np.mean([result.is_tied for result in results])),
            share_refused=float(np.mean([result.is_refused for result in results])),
            accuracy=float(np.mean([result.is_oracle for result in results])),
            worst_problem=results[int(slowdowns.argmax())].problem.key,
        )


@dataclass(frozen=True, slots=True)
class TimeError:
    """|predicted / measured - 1| of the time of what was chosen, over the problems where that runs."""

    n_problems: int
    median: float
    p90: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> TimeError:
        """Summarise; at least one error."""
        return cls(len(errors), float(np.median(errors)), float(np.quantile(errors, 0.9)))


def precision_of(problem: ConvProblem) -> str:
    """Its dtype and layout, by which scores are told apart."""
    return f"{problem.dtype}/{problem.layout}"


def judge(costs: Costs, ranker: Ranker, against: Mapping[ConvProblem, str] | None = None) -> list[Result]:
    """What a rule's choices cost where it makes any.

    A choice that was never tried is passed over. Where the device refuses every choice, the slowest variant counts.

    Parameters
    ----------
    costs : Costs
    ranker : Ranker
    against : mapping of ConvProblem to str, optional
        The variant that stands for the oracle of each problem, which has a time there; by default the fastest.
    """
    column = {name: place for place, name in enumerate(costs.variants)}
    fastest = _fastest(costs) if against is None else against
    return [
        _judge_row(costs, row, [column[name] for name in ranked if name in column], column[fastest[problem]])
        for row, problem in enumerate(costs.problems)
        if (ranked := ranker(problem)) is not None
    ]


def single_best_order(costs: Costs) -> list[str]:
    """The variants by geometric-mean slowdown, refusals counting as far behind; and last those seldom tried."""
    slowdown = np.where(costs.is_known, np.nan_to_num(costs.log_slowdown(CAP), nan=CAP), 0.0)
    n_tried = costs.is_known.sum(axis=0)
    means = np.where(n_tried >= len(slowdown) / 2, slowdown.sum(axis=0) / np.maximum(n_tried, 1), CAP)
    return [costs.variants[place] for place in np.argsort(means, kind="stable")]


def _judge_row(costs: Costs, row: int, ranked: Sequence[int], fastest: int) -> Result:
    times = costs.time_ms[row]
    tried = [place for place in ranked if costs.is_known[row, place]]
    chosen = next((place for place in tried if np.isfinite(times[place])), int(np.nanargmax(times)))
    noise = costs.noise[row]
    return Result(
        problem=costs.problems[row],
        slowdown=float(times[chosen] / times[fastest]),
        is_tied=is_tied(times[chosen], noise[chosen], times[fastest], noise[fastest]),
        is_refused=not tried or tried[0] != chosen,
        is_oracle=chosen == fastest,
        variant=costs.variants[chosen],
    )


def time_errors(costs: Costs, advisor: Advisor) -> list[float]:
    """How far the predicted time of each first choice is off; nothing where that was not timed in full."""
    column = {name: place for place, name in enumerate(costs.variants)}
    errors = []
    for row, problem in enumerate(costs.problems):
        found = advisor.predict(problem)
        place = column.get(found[0]) if found else None
        if found is None or place is None or costs.is_pruned[row, place]:
            continue
        measured_ms = costs.time_ms[row, place]
        if np.isfinite(measured_ms):
            errors.append(abs(found[1] / float(measured_ms) - 1))
    return errors


def always(order: Sequence[str], _problem: ConvProblem) -> Sequence[str]:
    """The same order whatever the problem."""
    return order


def first_then(chosen: Mapping[ConvProblem, str], order: Sequence[str]) -> Ranker:
    """A rule that gives one choice; where that is refused, the single best stands in."""
    return lambda problem: [chosen[problem], *order] if problem in chosen else None


def oracle(costs: Costs) -> Ranker:
    """What was fastest, of the variants that were timed in full."""
    fastest = _fastest(costs)
    return lambda problem: [fastest[problem]]


def _fastest(costs: Costs) -> dict[ConvProblem, str]:
    times = np.where(costs.is_pruned | np.isnan(costs.time_ms), np.inf, costs.time_ms)
    return dict(zip(costs.problems, (costs.variants[place] for place in times.argmin(axis=1)), strict=True))
