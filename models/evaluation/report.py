"""What an evaluation says: scores of every rule on the same problems, over all, by dtype and layout, by network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.evaluation.judging import (
    TEACHER,
    TREE,
    Result,
    Score,
    TimeError,
    comparable,
    even_weights,
    precision_of,
)
from conv_advisor.models.evaluation.tuning import Worth

OVERALL: Final = "overall"
"""All dtypes and layouts, each of which counts the same."""


@dataclass(frozen=True)
class Part:
    """Scores of every rule on the same problems: over all, by dtype and layout, and by network.

    The overall scores weigh dtypes and layouts equally, however many problems of each were measured.

    Parameters
    ----------
    overall : dict of rule to Score
        The tree, the ensemble that it learned from, each source of picks, the single best of the dtype and layout, and
        the oracle.
    by_precision : dict of ``dtype/layout`` to dict of rule to Score
    by_network : dict of network to dict of rule to Score
    trees : dict of ``overall`` or ``dtype/layout`` to dict of rule to Score
        The tree and its ensemble alone, on the problems that the comparison leaves out too.
    n_left_out : dict of rule to int
        Problems that no rule is scored on, since this one chooses a variant given up after its first launch.
    n_silent : dict of rule to int
        Problems that no rule is scored on, since this one makes no choice there.
    time_error : dict of ``overall`` or ``dtype/layout`` to TimeError
        Error of the time that the tree predicts of its choice.
    in_common : dict of ``overall`` or ``dtype/layout`` to dict of rule to Score
        Only over problems that other libraries were timed on too, against one oracle: the variant that was
        fastest in the run that timed them. Empty without such a run.
    """

    overall: dict[str, Score]
    by_precision: dict[str, dict[str, Score]]
    by_network: dict[str, dict[str, Score]]
    trees: dict[str, dict[str, Score]]
    n_left_out: dict[str, int]
    n_silent: dict[str, int]
    time_error: dict[str, TimeError]
    in_common: dict[str, dict[str, Score]] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class Report(Part):
    """Scores over networks left out one at a time, and over networks that nothing was ever trained on.

    Parameters
    ----------
    device_id : str
    never_trained : Part or None
        None where no layer of these was measured.
    tuning : dict of ``overall`` or ``dtype/layout`` to Worth
        When PyTorch's tuning pays against the advice that was timed beside it, on the problems that are judged.
    tuning_trees : tuple of str
        The trees whose advice that was.
    """

    device_id: str
    never_trained: Part | None = None
    tuning: dict[str, Worth] = field(default_factory=dict)
    tuning_trees: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


Judged = Mapping[str, Sequence[Result]]
"""Results by rule."""


@dataclass
class Found:
    """Results of every rule and errors of predicted times, of all folds of a part."""

    folds: list[tuple[Mapping[str, Collection[ConvProblem]], Judged]] = field(default_factory=list)
    """For each fold its layers by network, and the results by rule."""
    common: list[tuple[str, Result]] = field(default_factory=list)
    """By rule, on the problems that other libraries were timed on too, against one oracle."""
    errors: list[tuple[ConvProblem, float]] = field(default_factory=list)

    @property
    def problems(self) -> set[ConvProblem]:
        """All problems that some rule was asked about."""
        return {result.problem for _, judged in self.folds for results in judged.values() for result in results}

    def part(self) -> Part:
        """The scores of all these results."""
        rules = dict.fromkeys(rule for _, judged in self.folds for rule, results in judged.items() if results)
        everyone = [(names, {rule: judged.get(rule, ()) for rule in rules}) for names, judged in self.folds]
        compared = [(names, comparable(judged)) for names, judged in everyone]
        trees = [
            comparable({rule: judged[rule] for rule in (TREE, TEACHER) if rule in judged}) for _, judged in everyone
        ]
        by_precision = _by_precision_and_all([row for _, judged in compared for row in _rows(judged)])
        return Part(
            overall=by_precision.pop(OVERALL, {}),
            by_precision=by_precision,
            by_network=_by_network(compared),
            trees=_by_precision_and_all([row for judged in trees for row in _rows(judged)]),
            **_counts([judged for _, judged in everyone]),
            in_common=_by_precision_and_all(self.common),
            time_error=_time_errors(self.errors),
        )


def _rows(judged: Judged) -> list[tuple[str, Result]]:
    return [(rule, result) for rule, results in judged.items() for result in results]


def _counts(folds: Iterable[Judged]) -> dict[str, dict[str, int]]:
    """How many problems each rule takes out of the comparison, and why."""
    left_out, silent = Counter[str](), Counter[str]()
    for judged in folds:
        n_asked = len({result.problem for results in judged.values() for result in results})
        for rule, results in judged.items():
            left_out[rule] += sum(not result.is_timed for result in results)
            silent[rule] += n_asked - len(results)
    return {"n_left_out": dict(+left_out), "n_silent": dict(+silent)}


def _by_network(
    compared: Iterable[tuple[Mapping[str, Collection[ConvProblem]], Judged]],
) -> dict[str, dict[str, Score]]:
    rows_of: dict[str, list[tuple[str, Result]]] = {}
    for networks, judged in compared:
        for name, layers in networks.items():
            rows_of.setdefault(name, []).extend(row for row in _rows(judged) if row[1].problem.layer in layers)
    return {name: _scores(rows) for name, rows in rows_of.items() if rows}


def _by_precision_and_all(rows: Sequence[tuple[str, Result]]) -> dict[str, dict[str, Score]]:
    precisions = sorted({precision_of(result.problem) for _, result in rows})
    overall = {OVERALL: _scores(rows)} if rows else {}
    return overall | {
        precision: _scores([row for row in rows if precision_of(row[1].problem) == precision])
        for precision in precisions
    }


def _scores(rows: Iterable[tuple[str, Result]]) -> dict[str, Score]:
    by_rule: dict[str, list[Result]] = {}
    for rule, result in rows:
        by_rule.setdefault(rule, []).append(result)
    return {
        rule: Score.of(results, even_weights([result.problem for result in results]))
        for rule, results in by_rule.items()
    }


def _time_errors(errors: Sequence[tuple[ConvProblem, float]]) -> dict[str, TimeError]:
    parts = {OVERALL: list(errors)} if errors else {}
    for problem, error in errors:
        parts.setdefault(precision_of(problem), []).append((problem, error))
    return {
        name: TimeError.of([error for _, error in part], even_weights([problem for problem, _ in part]))
        for name, part in parts.items()
    }


def scores_of(report: Report) -> dict[str, Any]:
    """What a card says of a report: the tree's scores over all and by dtype and layout, of both parts."""
    parts: dict[str, Part | None] = {"leave_one_network_out": report, "never_trained": report.never_trained}
    return {name: _tree_scores(part) for name, part in parts.items() if part and part.trees}


def _tree_scores(part: Part) -> dict[str, dict[str, float]]:
    shown = ("geometric_mean", "p95", "worst", "share_tied", "share_refused")
    return {
        name: {score: round(getattr(scores[TREE], score), 4) for score in shown}
        | ({"median_time_error": round(part.time_error[name].median, 4)} if name in part.time_error else {})
        for name, scores in part.trees.items()
    }
