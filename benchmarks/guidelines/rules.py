"""Our own guidelines: the few rules that cost least on what was measured, found as a small tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from benchmarks.guidelines.following import CLOSE
from benchmarks.measured import Known
from conv_advisor.data.networks import GROUPS, layers
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.models.costs import Costs
from conv_advisor.models.evaluation.judging import Result, judge
from conv_advisor.models.training.teacher import CAP

N_RULES: Final = 8
"""As many as a person remembers."""
NOT_RUN: Final = 0.5
"""The log slowdown of a variant that does not run, since something else is run then. Of 0.5, 1, 1.5 and 2 it gave the
rules that fared best on the networks held out, which are the shipped ones: to that extent it is tuned to them."""
LEAST_PROBLEMS: Final = 20
"""A rule speaks of at least so many configurations."""

_LEAST_SAVED: Final = 1e-9
"""Summed log slowdown below which two choices differ by rounding."""
_HALVES: Final = (DType.FLOAT16, DType.BFLOAT16)


@dataclass(frozen=True)
class Question:
    """Something that a person sees in a layer: yes, or no.

    Parameters
    ----------
    yes, no : str
        In words.
    ask : callable
    subject : str
        What it looks at.
    bound : int
        The largest size that it answers with yes; 0 where it does not look at a size.
    """

    yes: str
    no: str
    ask: Callable[[ConvProblem], bool]
    subject: str
    bound: int = 0


def _at_most(subject: str, bound: int, value: Callable[[ConvProblem], int]) -> Question:
    yes = f"{subject} 1" if bound == 1 else f"{subject} ≤ {bound}"
    return Question(yes, f"{subject} > {bound}", lambda p: value(p) <= bound, subject, bound)


_ABOVE_1X1: Final = "above 1×1"
_UP_TO_3X3: Final = "up to 3×3"

QUESTIONS: Final = (
    Question("NHWC", "NCHW", lambda p: p.layout is Layout.NHWC, "layout"),
    Question("16 bit", "32 bit", lambda p: p.dtype in _HALVES, "bits"),
    Question("float32", "tensor cores", lambda p: p.dtype is DType.FLOAT32, "precision"),
    Question("1×1", _ABOVE_1X1, lambda p: p.r == 1, "filter"),
    Question(_UP_TO_3X3, "above 3×3", lambda p: p.r <= 3, "filter"),
    *(_at_most("batch", n, lambda p: p.n) for n in (1, 8, 16, 32, 64, 128)),
    *(_at_most("size", h, lambda p: p.h) for h in (7, 14, 28, 56)),
    *(_at_most("filters", k, lambda p: p.k) for k in (16, 32, 64, 128, 256, 512)),
    *(_at_most("depth", c, lambda p: p.c) for c in (3, 16, 32, 64, 128, 256, 512)),
)
"""The questions that rules ask."""


@dataclass(frozen=True)
class Table:
    """Slowdowns of every dtype and layout together.

    Parameters
    ----------
    problems : tuple of ConvProblem
    variants : tuple of str
    log_slowdown : float64 array of shape (P, V)
        What does not run, or was not measured, counts as `NOT_RUN`.
    answers : bool array of shape (P, Q)
        Answers to `QUESTIONS`.
    """

    problems: tuple[ConvProblem, ...]
    variants: tuple[str, ...]
    log_slowdown: np.ndarray
    answers: np.ndarray

    def take(self, rows: np.ndarray) -> Table:
        """Only these rows, in this order."""
        problems = tuple(self.problems[row] for row in rows.tolist())
        return replace(self, problems=problems, log_slowdown=self.log_slowdown[rows], answers=self.answers[rows])


def gather(known: Known) -> Table:
    """The slowdowns of all that is known."""
    variants = tuple(sorted({variant for costs in known.values() for variant in costs.variants}))
    logs = np.concatenate([_log_slowdown(costs, variants) for costs in known.values()])
    problems = tuple(problem for costs in known.values() for problem in costs.problems)
    answers = np.array([[question.ask(p) for question in QUESTIONS] for p in problems], dtype=bool)
    return Table(problems, variants, logs, answers)


def _log_slowdown(costs: Costs, variants: Sequence[str]) -> np.ndarray:
    logs = np.full((len(costs.problems), len(variants)), NOT_RUN)
    known = np.where(np.isfinite(costs.time_ms), costs.log_slowdown(CAP), NOT_RUN)
    logs[:, [variants.index(variant) for variant in costs.variants]] = known
    return logs


Condition = tuple[Question, bool]
"""A question, and the answer that a rule requires."""


@dataclass(frozen=True)
class Rule:
    """Where all conditions hold, run the first of these variants that runs.

    Parameters
    ----------
    conditions : tuple of Condition
    order : tuple of str
        The best first, then the others by geometric-mean slowdown on the problems that the rule was grown on.
    """

    conditions: tuple[Condition, ...]
    order: tuple[str, ...]

    def speaks_of(self, problem: ConvProblem) -> bool:
        """Whether this is the rule for a problem; exactly one rule of a list is."""
        return all(question.ask(problem) is answer for question, answer in self.conditions)

    @property
    def words(self) -> str:
        """The conditions in words, those that others imply left out."""
        tightest = [
            term for term in self.conditions if not any(_implies(o, term) for o in self.conditions if o != term)
        ]
        parts = [question.yes if answer else question.no for question, answer in tightest]
        if _ABOVE_1X1 in parts and _UP_TO_3X3 in parts:
            parts = ["3×3" if part == _ABOVE_1X1 else part for part in parts if part != _UP_TO_3X3]
        return ", ".join(parts) or "always"


def _implies(one: Condition, other: Condition) -> bool:
    """Whether the first condition makes the second superfluous."""
    (question, answer), (known, known_answer) = one, other
    if known.subject == "bits" and question.subject == "precision":
        return answer and not known_answer
    if known.subject == "precision" and question.subject == "bits":
        return answer and not known_answer
    if question.subject != known.subject or answer is not known_answer:
        return False
    if question.subject == "filter":
        return answer is (question.yes == "1×1")
    return question.bound < known.bound if answer else question.bound > known.bound


@dataclass(frozen=True)
class _Leaf:
    rows: np.ndarray
    conditions: tuple[Condition, ...]
    cost: float


def grow(table: Table, n_rules: int) -> list[Rule]:
    """Grow rules that cost little: one rule after another is split into two, the split that saves most first.

    A longer list does not begin with the rules of a shorter one, but with its splits: the lists are nested.
    """
    leaves = [_Leaf(np.arange(len(table.problems)), (), _cost(table.log_slowdown))]
    splits = [_split(table, leaf) for leaf in leaves]
    while len(leaves) < n_rules:
        saved = [split.saved if split else 0.0 for split in splits]
        place = saved.index(max(saved))
        best = splits[place]
        if best is None:
            break
        leaves[place : place + 1] = [best.yes, best.no]
        splits[place : place + 1] = [_split(table, best.yes), _split(table, best.no)]
    return [Rule(leaf.conditions, _order(table, leaf.rows)) for leaf in leaves]


@dataclass(frozen=True)
class _Split:
    yes: _Leaf
    no: _Leaf
    saved: float


def _split(table: Table, leaf: _Leaf) -> _Split | None:
    """The question that saves most in a leaf; None where none saves anything."""
    logs, answers = table.log_slowdown[leaf.rows], table.answers[leaf.rows]
    yes = answers.T.astype(np.float64) @ logs
    no = logs.sum(axis=0) - yes
    counts = answers.sum(axis=0)
    saved = leaf.cost - yes.min(axis=1) - no.min(axis=1)
    saved[np.minimum(counts, len(answers) - counts) < LEAST_PROBLEMS] = -np.inf
    place = int(saved.argmax())
    if not saved[place] > _LEAST_SAVED:
        return None
    question, is_yes = QUESTIONS[place], answers[:, place]
    return _Split(
        _Leaf(leaf.rows[is_yes], (*leaf.conditions, (question, True)), float(yes[place].min())),
        _Leaf(leaf.rows[~is_yes], (*leaf.conditions, (question, False)), float(no[place].min())),
        float(saved[place]),
    )


def _cost(logs: np.ndarray) -> float:
    return float(logs.sum(axis=0).min())


def _order(table: Table, rows: np.ndarray) -> tuple[str, ...]:
    """The variant that costs least, then the others, where one that does not run counts as `CAP`: it is no way out."""
    logs = table.log_slowdown[rows]
    first = int(logs.sum(axis=0).argmin())
    others = np.argsort(np.where(logs == NOT_RUN, CAP, logs).mean(axis=0), kind="stable").tolist()
    return tuple(table.variants[place] for place in (first, *(place for place in others if place != first)))


def order_of(rules: Sequence[Rule], problem: ConvProblem) -> tuple[str, ...]:
    """What the rules would run on a problem, best first."""
    return next(rule.order for rule in rules if rule.speaks_of(problem))


@dataclass(frozen=True)
class Fared:
    """How choices fared: geometric mean and 95th percentile of the slowdown, and the share close to the best.

    A choice that was given up on after its first launch is not close, and has no slowdown.
    """

    n_problems: int
    slowdown: float
    p95: float
    share_close: float

    @classmethod
    def of(cls, results: Sequence[Result]) -> Fared:
        """Summarise; at least one result that has a slowdown."""
        slowdowns = np.array([result.slowdown for result in results if result.is_timed])
        mean, p95 = float(np.exp(np.log(slowdowns).mean())), float(np.quantile(slowdowns, 0.95))
        return cls(len(results), mean, p95, int((slowdowns <= CLOSE).sum()) / len(results))


def followed(known: Known, rules: Sequence[Rule]) -> dict[Rule, list[Result]]:
    """What each rule's choices cost where it speaks."""
    by_rule: dict[Rule, list[Result]] = {rule: [] for rule in rules}
    for costs in known.values():
        for rule in rules:
            mine = [row for row, problem in enumerate(costs.problems) if rule.speaks_of(problem)]
            by_rule[rule] += judged(costs.take(mine), [rule])
    return by_rule


def held_out(known: Known, n_rules: Sequence[int]) -> dict[int, list[tuple[str, Result]]]:
    """What rules grown without a network cost on its layers, for each of the seeds' networks in turn.

    As `models.evaluation.evaluate.evaluate` does for the tree, so that the two compare.

    Returns
    -------
    dict of number of rules to list of (``dtype/layout``, Result)
    """
    table = gather(known)
    table_layers = [problem.layer for problem in table.problems]
    known_layers = {column: [problem.layer for problem in costs.problems] for column, costs in known.items()}
    by_count: dict[int, list[tuple[str, Result]]] = {count: [] for count in n_rules}
    for network in GROUPS["seeds"]:
        unseen = {layer.problem.layer for layer in layers(network)}
        rest = table.take(np.flatnonzero([layer not in unseen for layer in table_layers]))
        mine = {
            "/".join(column): costs.take(np.flatnonzero([layer in unseen for layer in known_layers[column]]))
            for column, costs in known.items()
        }
        for count in n_rules:
            rules = grow(rest, count)
            for name, costs in mine.items():
                by_count[count] += [(name, result) for result in judged(costs, rules)]
    return by_count


def judged(costs: Costs, rules: Sequence[Rule]) -> list[Result]:
    """What the choices of a list of rules cost."""
    return judge(costs, lambda problem: order_of(rules, problem))
