"""A leaf of a tree as advice reads it: which variants are worth trying, in which order, and what they take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Rule, Variant, left_to_ask, no_workspace
from conv_advisor.models.ranking.accuracy import laws_of
from conv_advisor.models.ranking.ties import levels
from conv_advisor.models.ranking.words import chance
from conv_advisor.models.tree.arrays import RANKING_ARRAYS
from conv_advisor.models.tree.file import TreeModel

MIN_SUPPORT: Final = 0.5
"""A variant less likely to run than this is not advised, unless it was measured or its backend's rules are complete."""

_SURELY_ABOVE: Final = 1.25
"""A workspace predicted this many times above the limit of measurements is above it; below that, whether the variant is
likely to run decides, which was learned under that limit."""

UNLEARNED: Final = "the model does not know it"

_ANY_PROBLEM: Final = ConvProblem(1, 1, 1, 1, 1, 1, 1)


@dataclass(frozen=True, slots=True)
class Try:
    """A variant, and the rules to ask about each problem before it is advised; the device's own are settled."""

    variant: Variant
    rules: tuple[Rule, ...]
    has_workspace: bool


Level = tuple[tuple[str, ...], Try | None, float]
"""Variants of one predicted time that are likely to run; what to ask where there is only one; their slowdown."""


@dataclass(frozen=True, slots=True)
class Row:
    """A leaf of the tree, whatever the problem: what the advisor reads from its arrays, once."""

    column: Mapping[str, int]
    order: tuple[Level, ...]
    log_slowdown: list[float]
    workspace: list[float]
    support: list[float]
    roofline: tuple[float, float, float]
    best: float
    spread: float


@dataclass(slots=True)  # not frozen, which takes twice as long to make
class Leaf:
    """What the tree says of one problem."""

    row: Row
    best_ms: float
    n_bytes: int

    def time_ms(self, variant: str) -> float:
        """The predicted time."""
        return self.best_ms * math.exp(self.row.log_slowdown[self.row.column[variant]])

    def workspace_bytes(self, variant: str) -> int | None:
        """The predicted workspace; a little above the limit of measurements, where predictions may err, that limit."""
        column = self.row.column.get(variant)
        if column is None:
            return None
        predicted, limit = round(self.row.workspace[column] * self.n_bytes), DEFAULT_WORKSPACE_LIMIT_BYTES
        return limit if limit < predicted <= _SURELY_ABOVE * limit else predicted


class Rows(dict[int, Row]):
    """The leaves of a model by their node, each read when it is first asked for.

    Parameters
    ----------
    model : TreeModel
    pool : mapping of str to Variant
        What may be advised.
    device : Device
        Whose rules count.
    """

    def __init__(self, model: TreeModel, pool: Mapping[str, Variant], device: Device) -> None:
        super().__init__()
        self._model, self._pool = model, pool
        self._tries = {name: attempt for name, variant in pool.items() if (attempt := _try_of(variant, device, model))}
        self._column = {name: column for column, name in enumerate(model.variants)}

    def __missing__(self, node: int) -> Row:
        model = self._model
        ranking = model.arrays["next"][node]
        log_slowdown, support, workspace = (model.ranked(name, ranking).tolist() for name in RANKING_ARRAYS)
        spread = float(model.arrays["spread"][ranking])
        expected: dict[float, list[str]] = {}
        levelled = log_slowdown.copy()
        for column, leader in levels(log_slowdown, spread):
            levelled[column] = leader
            name = model.variants[column]
            if name in self._tries and is_expected(self._pool[name], support[column]):
                expected.setdefault(leader, []).append(name)
        row = self[node] = Row(
            column=self._column,
            order=tuple(
                [
                    (tuple(names), self._tries[names[0]] if len(names) == 1 else None, math.exp(leader))
                    for leader, names in expected.items()
                ]
            ),
            log_slowdown=levelled,
            workspace=workspace,
            support=support,
            roofline=tuple(model.roofline(node).tolist()),
            best=math.exp(model.arrays["value"][node]),
            spread=spread,
        )
        return row


def _try_of(variant: Variant, device: Device, model: TreeModel) -> Try | None:
    """What to ask before a variant is advised; None where it applies to nothing on this device."""
    rules = left_to_ask(variant.why_not, _ANY_PROBLEM, device)
    if rules is None:
        return None
    learned = learned_by(model, variant)
    if len(learned) < len(DType):
        rules = (*rules, lambda problem, _device: None if problem.dtype in learned else UNLEARNED)
    return Try(variant, rules, variant.workspace_bytes is not no_workspace)


def learned_by(model: TreeModel, variant: Variant) -> frozenset[DType]:
    """The precisions in which a model saw a variant run, as its law of errors tells; of others it knows no time.

    All dtypes where the rules of the backend are not complete: only a variant with complete rules can accept another
    dtype after the training without the model being asked.
    """
    laws = laws_of(model).get(variant.id) if variant.backend.has_complete_rules else None
    return frozenset(dtype for dtype in DType if laws is None or dtype.value in laws)


@lru_cache(maxsize=4096)
def is_expected(variant: Variant, support: float) -> bool:
    """Whether a variant whose rule allows a problem is expected to run, given how often it ran nearby."""
    return support >= MIN_SUPPORT or variant.backend.has_complete_rules


@lru_cache(maxsize=4096)
def too_seldom(support: float) -> str:
    """Why a variant is out that ran so seldom nearby."""
    return f"predicted as not supported: it is {chance(support)} likely to run"


def least_ms(row: Row, flops: float, n_bytes: int) -> float:
    """`models.costs.roofline_ms`, from flops and bytes that are computed already."""
    flops_per_ms, bytes_per_ms, longest_ms = row.roofline
    # Two comparisons take half the time of `max`.
    if (computing_ms := flops / flops_per_ms) > longest_ms:
        longest_ms = computing_ms
    if (moving_ms := n_bytes / bytes_per_ms) > longest_ms:
        longest_ms = moving_ms
    return longest_ms
