"""What a rule's choices cost on measured problems: slowdown against the oracle, ties, errors of predicted times."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import Costs, is_tied
from conv_advisor.models.training.teacher import CAP

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
        Time of the choice over the oracle's; where the choice was refused, the next one's. NaN where only its first
        launch was timed, which includes the host's time and gives no score.
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

    @property
    def is_timed(self) -> bool:
        """Whether the choice was timed to the end, so that it has a slowdown."""
        return math.isfinite(self.slowdown)


@dataclass(frozen=True, slots=True)
class Score:
    """What the choices of one rule cost: slowdown against the oracle over `n_problems` problems."""

    n_problems: int
    geometric_mean: float
    p95: float
    worst: float
    share_tied: float
    share_refused: float
    accuracy: float
    worst_problem: str

    @classmethod
    def of(cls, results: Sequence[Result], weights: np.ndarray | None = None) -> Score:
        """Summarise; at least one result, each with a slowdown.

        Parameters
        ----------
        results : sequence of Result
        weights : float64 array of shape (len(results),), optional
            Weight of each result; by default all the same.

        Raises
        ------
        ValueError
            Only a first launch is known of one choice: `comparable` leaves such problems out.
        """
        slowdowns = np.array([result.slowdown for result in results])
        if not np.isfinite(slowdowns).all():
            raise ValueError("a score cannot rest on a first launch")
        means = {
            name: float(np.average([getattr(result, name) for result in results], weights=weights))
            for name in ("is_tied", "is_refused", "is_oracle")
        }
        return cls(
            n_problems=len(results),
            geometric_mean=float(np.exp(np.average(np.log(slowdowns), weights=weights))),
            p95=quantile(slowdowns, 0.95, weights),
            worst=float(slowdowns.max()),
            share_tied=means["is_tied"],
            share_refused=means["is_refused"],
            accuracy=means["is_oracle"],
            worst_problem=results[int(slowdowns.argmax())].problem.key,
        )


@dataclass(frozen=True, slots=True)
class TimeError:
    """|predicted / measured - 1| of the time of what was chosen, over the problems where that runs."""

    n_problems: int
    median: float
    p90: float

    @classmethod
    def of(cls, errors: Sequence[float], weights: np.ndarray | None = None) -> TimeError:
        """Summarise; at least one error."""
        return cls(len(errors), quantile(errors, 0.5, weights), quantile(errors, 0.9, weights))


def precision_of(problem: ConvProblem) -> str:
    """Its dtype and layout, by which scores are told apart."""
    return f"{problem.dtype}/{problem.layout}"


def even_weights(problems: Sequence[ConvProblem]) -> np.ndarray:
    """Weights by which every dtype and layout counts the same, however many problems it has; they sum to 1."""
    precisions = [precision_of(problem) for problem in problems]
    counts = Counter(precisions)
    return np.array([1 / (len(counts) * counts[precision]) for precision in precisions])


def quantile(values: Sequence[float] | np.ndarray, share: float, weights: np.ndarray | None = None) -> float:
    """A quantile of weighted values, linear in between; with equal weights what `numpy.quantile` gives."""
    values = np.asarray(values, dtype=np.float64)
    weights = np.ones(len(values)) if weights is None else weights
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    # Place k of n is at k for equal weights: half-way between two values lies half of what both count.
    places = np.arange(len(values)) * weights + (len(values) - 1) * (np.cumsum(weights) - weights)
    return float(np.interp(share * places[-1], places, values))


def judge(costs: Costs, ranker: Ranker, against: Mapping[ConvProblem, str] | None = None) -> list[Result]:
    """What a rule's choices cost on the problems where it makes one.

    A choice that was never tried is passed over. Where the device refuses every choice, the slowest that was timed
    counts. A choice that was given up on after its first launch has no slowdown.

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


def comparable(judged: Mapping[str, Sequence[Result]]) -> dict[str, list[Result]]:
    """The results of each rule on the problems where every rule has a choice that was timed to the end.

    A problem where one rule has no score leaves the comparison for all, so that all are held to the same problems.
    """
    timed = [{result.problem for result in results if result.is_timed} for results in judged.values()]
    shared = set.intersection(*timed) if timed else set()
    return {rule: [result for result in results if result.problem in shared] for rule, results in judged.items()}


def single_best_order(costs: Costs) -> list[str]:
    """The variants by geometric-mean slowdown, refusals counting as far behind; and last those seldom tried."""
    slowdown = np.where(costs.is_known, np.nan_to_num(costs.log_slowdown(CAP), nan=CAP), 0.0)
    n_tried = costs.is_known.sum(axis=0)
    means = np.where(n_tried >= len(slowdown) / 2, slowdown.sum(axis=0) / np.maximum(n_tried, 1), CAP)
    return [costs.variants[place] for place in np.argsort(means, kind="stable")]


def _judge_row(costs: Costs, row: int, ranked: Sequence[int], fastest: int) -> Result:
    times = costs.time_ms[row]
    tried = [place for place in ranked if costs.is_known[row, place]]
    chosen = next((place for place in tried if np.isfinite(times[place])), None)
    if chosen is None:
        chosen = int(np.nanargmax(np.where(costs.is_pruned[row], np.nan, times)))
    noise = costs.noise[row]
    return Result(
        problem=costs.problems[row],
        slowdown=math.nan if costs.is_pruned[row, chosen] else float(times[chosen] / times[fastest]),
        is_tied=is_tied(times[chosen], noise[chosen], times[fastest], noise[fastest]),
        is_refused=not tried or tried[0] != chosen,
        is_oracle=chosen == fastest,
        variant=costs.variants[chosen],
    )


def time_errors(costs: Costs, advisor: Advisor) -> list[tuple[ConvProblem, float]]:
    """Error of the predicted time of each first choice; nothing where that was not timed in full."""
    column = {name: place for place, name in enumerate(costs.variants)}
    errors = []
    for row, problem in enumerate(costs.problems):
        prediction = advisor.predict(problem)
        place = column.get(prediction[0]) if prediction else None
        if prediction is None or place is None or costs.is_pruned[row, place]:
            continue
        measured_ms = costs.time_ms[row, place]
        if np.isfinite(measured_ms):
            errors.append((problem, abs(prediction[1] / float(measured_ms) - 1)))
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
