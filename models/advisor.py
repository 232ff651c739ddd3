"""From a problem to advice: every variant that applies, ranked by its time, and why the others are out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec

from data.errors import NoAdvice
from data.measurement import Device, Outcome
from data.problem import ConvProblem
from kernels.catalog import VARIANTS
from kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Variant
from models.costs import is_tied
from models.features import describe
from models.leaf import MIN_SUPPORT, Leaf, Row, least_ms, try_of, unlikely
from models.rules import Rules
from models.ties import levels
from models.tree_file import Step, TreeModel, path, walk
from models.trust import Trust, trust_in

if TYPE_CHECKING:
    from data.store import Summary

_NO_REFUSAL: Final = (
    *(Outcome.MEASURED, Outcome.PRUNED, Outcome.UNSTEADY, Outcome.NOT_APPLICABLE, Outcome.WORKSPACE_EXCEEDED),
)
"""Outcomes that leave it to the rule, the workspace and the model whether the variant can run."""

_COMPARABLE_LOG_SLOWDOWN: Final = 1.0
"""Predictions of variants further behind are too rough to scale the others by."""


Prediction = tuple[str, float]
"""A variant, and its time in ms."""


class Source(StrEnum):
    """Where a time comes from."""

    MEASURED = "measured"
    PREDICTED = "predicted"


class Choice(msgspec.Struct, frozen=True, gc=False):
    """One variant that may be run.

    Attributes
    ----------
    variant : str
    time_ms : float
    source : Source
    slowdown : float
        Time against that of the best choice.
    uncertainty : float
        Standard error of a measured time, relative; of a predicted one that of its slowdown, on layers never trained
        on.
    is_tied : bool
        Closer to the best than they can be told apart.
    workspace_bytes : int or None
        None where unknown.
    is_deterministic : bool
    plan : dict or None
        What rebuilds the plan that was measured.
    """

    variant: str
    time_ms: float
    source: Source
    slowdown: float
    uncertainty: float
    is_tied: bool
    workspace_bytes: int | None
    is_deterministic: bool
    plan: dict[str, Any] | None = None


class Exclusion(msgspec.Struct, frozen=True, gc=False):
    """One variant that is out, and why."""

    variant: str
    reason: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What to run for a problem.

    Parameters
    ----------
    problem : ConvProblem
    device_id : str
    model_id : str or None
        None where no model took part.
    ranking : tuple of Choice
        By time; of equal times the measured first, then the one with less workspace, then a deterministic one.
        Predicted times that cannot be told apart are equal (`models.ties`).
    excluded : tuple of Exclusion
        In the order of the catalogue.
    path : tuple of Step
        The comparisons that led to the predictions.
    trust : Trust
    """

    problem: ConvProblem
    device_id: str
    model_id: str | None
    ranking: tuple[Choice, ...]
    excluded: tuple[Exclusion, ...]
    path: tuple[Step, ...]
    trust: Trust

    @property
    def best(self) -> Choice:
        """The first of the ranking."""
        return self.ranking[0]

    @property
    def variant(self) -> str:
        """The id of the best."""
        return self.ranking[0].variant


@dataclass(slots=True)
class _Candidate:
    variant: Variant
    workspace_bytes: int | None
    timed: Summary | None
    time_ms: float
    uncertainty: float


_UNKNOWN: Final = "not measured on this layer, and the model does not know it"


class Advisor:
    """Advice for one device, from its model, from measurements, or from both.

    Parameters
    ----------
    model : TreeModel or None
        Without one only measured variants are advised.
    device : Device, optional
        By default the one that the model was trained on; it decides which variants apply.
    variants : mapping of str to Variant
        The catalogue.

    Raises
    ------
    NoAdvice
        There is neither a model nor a device.
    """

    def __init__(
        self, model: TreeModel | None, device: Device | None = None, *, variants: Mapping[str, Variant] = VARIANTS
    ) -> None:
        found = device or (model.device if model else None)
        if found is None:
            raise NoAdvice("neither a model nor a device is given")
        self.model = model
        self.device = found
        self._pool = {variant.id: variant for variant in variants.values() if variant.backend.device_kind == found.kind}
        self._rules = Rules(tuple(self._pool.values()), found)
        self._tries = {name: each for name, variant in self._pool.items() if (each := try_of(variant, found))}
        self._column = {name: column for column, name in enumerate(model.variants)} if model else {}
        self._rows: dict[int, Row] = {}

    def advise(
        self,
        problem: ConvProblem,
        *,
        max_workspace_bytes: int = DEFAULT_WORKSPACE_LIMIT_BYTES,
        is_deterministic: bool = False,
        measured: Mapping[str, Summary] | None = None,
    ) -> Advice:
        """Rank every variant that applies within the limits.

        Parameters
        ----------
        problem : ConvProblem
        max_workspace_bytes : int
        is_deterministic : bool
            Whether only deterministic variants will do.
        measured : mapping of variant to Summary
            What is known of this problem on this device. A measured time stands in for the predicted one, a measured
            refusal excludes. The measured times also scale the predicted ones, and a prediction that is ahead of the
            best measured time by less than its own uncertainty is put level with it.

        Raises
        ------
        NoAdvice
            Nothing is left.
        """
        values, flops, n_bytes = describe(problem)
        leaf = self._leaf(values, flops, n_bytes)
        limits = max_workspace_bytes, is_deterministic
        candidates: list[_Candidate] = []
        excluded: list[Exclusion] = []
        for variant, reason in zip(self._pool.values(), self._rules.reasons(problem), strict=False):
            if reason is not None:
                excluded.append(Exclusion(variant.id, reason))
                continue
            summary = measured.get(variant.id) if measured else None
            if summary is None and leaf:
                found = _predicted(variant, problem, leaf, *limits)
            else:
                found = self._known(variant, problem, leaf, summary, *limits)
            if isinstance(found, str):
                excluded.append(Exclusion(variant.id, found))
            else:
                candidates.append(found)
        if not candidates:
            raise _nothing_left(problem, self.device, {each.variant: each.reason for each in excluded})
        if leaf:
            _scale(candidates, leaf)
        ranking = _ranking(candidates, leaf.row.spread if leaf else 0.0)
        return Advice(
            problem=problem,
            device_id=self.device.id,
            model_id=self.model.id if self.model else None,
            ranking=ranking,
            excluded=tuple(excluded),
            path=tuple(path(self.model, values)) if self.model else (),
            trust=trust_in(self.model, problem, ranking),
        )

    def choose(
        self,
        problem: ConvProblem,
        *,
        max_workspace_bytes: int = DEFAULT_WORKSPACE_LIMIT_BYTES,
        is_deterministic: bool = False,
    ) -> str:
        """The variant that `advise` would put first without measurements, and nothing else: for many problems.

        Raises
        ------
        NoAdvice
        """
        found = self.predict(problem, max_workspace_bytes=max_workspace_bytes, is_deterministic=is_deterministic)
        if found is None:
            raise _nothing_left(problem, self.device)
        return found[0]

    def predict_order(
        self,
        problem: ConvProblem,
        *,
        max_workspace_bytes: int = DEFAULT_WORKSPACE_LIMIT_BYTES,
        is_deterministic: bool = False,
    ) -> Iterator[str]:
        """The variants that apply, by predicted time alone, each looked at only when asked for."""
        leaf = self._leaf(*describe(problem))
        if leaf is None:
            return
        for names, _, _ in leaf.row.order:
            tied = self._tied(names, problem, leaf, max_workspace_bytes, is_deterministic)
            yield from (candidate.variant.id for candidate in tied)

    def predict(
        self,
        problem: ConvProblem,
        *,
        max_workspace_bytes: int = DEFAULT_WORKSPACE_LIMIT_BYTES,
        is_deterministic: bool = False,
    ) -> Prediction | None:
        """What `advise` would put first without measurements, and its time; None where that is nothing.

        Many times as fast as `advise`, since variants behind the first one that applies are not looked at.
        """
        if self.model is None:
            return None
        values, flops, n_bytes = describe(problem)
        place = walk(self.model, values)
        row = self._rows.get(place) or self._row(place)
        return self.first(problem, place, least_ms(row, flops, n_bytes), n_bytes, max_workspace_bytes, is_deterministic)

    def first(
        self,
        problem: ConvProblem,
        place: int,
        roofline_ms: float,
        n_bytes: int,
        max_workspace_bytes: int,
        is_deterministic: bool,
    ) -> Prediction | None:
        """What `predict` gives, where the leaf is known already.

        Parameters
        ----------
        problem : ConvProblem
        place : int
            Of the leaf that the problem leads to.
        roofline_ms : float
            Of the problem, by that leaf.
        n_bytes : int
            Of the problem.
        max_workspace_bytes : int
        is_deterministic : bool
        """
        row = self._rows.get(place) or self._row(place)
        device, best_ms = self.device, roofline_ms * row.best
        for names, attempt, slowdown in row.order:
            if attempt is None:
                leaf = Leaf(row, best_ms, n_bytes)
                if tied := self._tied(names, problem, leaf, max_workspace_bytes, is_deterministic):
                    return tied[0].variant.id, tied[0].time_ms
                continue
            for rule in attempt.rules:
                if rule(problem, device):
                    break
            else:
                variant = attempt.variant
                if is_deterministic and not variant.is_deterministic:
                    continue
                if not attempt.has_workspace and max_workspace_bytes >= 0:
                    return names[0], best_ms * slowdown
                workspace = variant.needed_bytes(problem, max_workspace_bytes)
                if workspace is None:
                    workspace = Leaf(row, best_ms, n_bytes).workspace_bytes(variant.id)
                if workspace is None or workspace <= max_workspace_bytes:
                    return names[0], best_ms * slowdown
        return None

    def _tied(
        self,
        names: Sequence[str],
        problem: ConvProblem,
        leaf: Leaf,
        max_workspace_bytes: int,
        is_deterministic: bool,
    ) -> list[_Candidate]:
        """Of variants of one predicted time those that apply, in the order of a ranking."""
        variants = [variant for name in names if not (variant := self._pool[name]).why_not(problem, self.device)]
        limits = max_workspace_bytes, is_deterministic
        found = [_predicted(variant, problem, leaf, *limits) for variant in variants]
        return sorted((each for each in found if not isinstance(each, str)), key=_order)

    def _leaf(self, values: Sequence[float], flops: int, n_bytes: int) -> Leaf | None:
        if self.model is None:
            return None
        place = walk(self.model, values)
        row = self._rows.get(place) or self._row(place)
        return Leaf(row, least_ms(row, flops, n_bytes) * row.best, n_bytes)

    def _row(self, place: int) -> Row:
        model = self.model
        assert model is not None  # noqa: S101 - or there is no leaf
        log_slowdown, support, workspace, roofline = (
            model.arrays[name][place].tolist() for name in ("log_slowdown", "support", "workspace", "roofline")
        )
        spread = float(model.arrays["spread"][place])
        found: dict[float, list[str]] = {}
        levelled = log_slowdown.copy()
        for column, each in levels(log_slowdown, spread):
            levelled[column] = each
            name = model.variants[column]
            if support[column] >= MIN_SUPPORT and name in self._tries:
                found.setdefault(each, []).append(name)
        row = self._rows[place] = Row(
            column=self._column,
            order=tuple(
                [
                    (tuple(names), self._tries[names[0]] if len(names) == 1 else None, math.exp(each))
                    for each, names in found.items()
                ]
            ),
            log_slowdown=levelled,
            workspace=workspace,
            support=support,
            roofline=tuple(roofline),
            best=math.exp(model.arrays["log_best"][place]),
            spread=spread,
        )
        return row

    def _known(
        self,
        variant: Variant,
        problem: ConvProblem,
        leaf: Leaf | None,
        summary: Summary | None,
        max_workspace_bytes: int,
        is_deterministic: bool,
    ) -> _Candidate | str:
        """A variant of which something was measured, or nothing is predicted, with its time, or why it is out."""
        workspace = _workspace_bytes(variant, problem, leaf, summary)
        reason = _over_limits(variant, workspace, max_workspace_bytes, is_deterministic)
        if reason:
            return reason
        if summary and summary.time_ms is not None:
            return _Candidate(variant, workspace, summary, summary.time_ms, summary.noise or 0.0)
        if leaf is None:
            return _refusal(summary) or f"not measured on this layer, and there is no model of {self.device.id}"
        return _refusal(summary) or _likely(variant, workspace, leaf)


def _predicted(
    variant: Variant, problem: ConvProblem, leaf: Leaf, max_workspace_bytes: int, is_deterministic: bool
) -> _Candidate | str:
    """A variant that applies and was not measured, with its predicted time, or why it is out."""
    workspace = variant.workspace_bytes(problem)
    if workspace is None:
        workspace = leaf.workspace_bytes(variant.id)
    if (is_deterministic and not variant.is_deterministic) or (workspace or 0) > max_workspace_bytes:
        return _over_limits(variant, workspace, max_workspace_bytes, is_deterministic) or ""
    return _likely(variant, workspace, leaf)


def _likely(variant: Variant, workspace_bytes: int | None, leaf: Leaf) -> _Candidate | str:
    """A variant with its predicted time, or why it will not run."""
    row = leaf.row
    column = row.column.get(variant.id)
    if column is None:
        return _UNKNOWN
    if row.support[column] < MIN_SUPPORT:
        return unlikely(row.support[column])
    time_ms = leaf.best_ms * math.exp(row.log_slowdown[column])
    return _Candidate(variant, workspace_bytes, None, time_ms, row.spread)


def _workspace_bytes(variant: Variant, problem: ConvProblem, leaf: Leaf | None, summary: Summary | None) -> int | None:
    """As measured, else as the variant computes it, else the most that the model expects."""
    if summary and summary.workspace_bytes is not None:
        return summary.workspace_bytes
    exact = variant.workspace_bytes(problem)
    return exact if exact is not None or leaf is None else leaf.workspace_bytes(variant.id)


def _over_limits(
    variant: Variant, workspace_bytes: int | None, max_workspace_bytes: int, is_deterministic: bool
) -> str | None:
    if is_deterministic and not variant.is_deterministic:
        return "not deterministic"
    if workspace_bytes is not None and workspace_bytes > max_workspace_bytes:
        return f"workspace is {workspace_bytes} bytes, above the limit of {max_workspace_bytes}"
    return None


def _refusal(summary: Summary | None) -> str | None:
    if summary is None or summary.outcome in _NO_REFUSAL:
        return None
    return f"{summary.outcome}: {summary.detail}" if summary.detail else str(summary.outcome)


def _scale(candidates: list[_Candidate], leaf: Leaf) -> None:
    """Bring the predicted times to the level of the measured ones."""
    row = leaf.row
    known = [each for each in candidates if each.timed and each.variant.id in row.column]
    if not known:
        return
    near = [each for each in known if row.log_slowdown[row.column[each.variant.id]] < _COMPARABLE_LOG_SLOWDOWN]
    scale = median(each.time_ms / leaf.time_ms(each.variant.id) for each in near or known)
    best_ms = min((each.time_ms for each in candidates if each.timed), default=0.0)
    for each in candidates:
        if each.timed is None:
            each.time_ms *= scale
            if each.time_ms < best_ms <= each.time_ms * math.exp(each.uncertainty):
                each.time_ms = best_ms


def _ranking(candidates: list[_Candidate], spread: float) -> tuple[Choice, ...]:
    """The candidates in order; those without a time of their own have this uncertainty."""
    candidates.sort(key=_order)
    best = candidates[0]
    best_ms, reach_ms = best.time_ms, best.time_ms * math.exp(spread)
    return tuple(
        [
            Choice(
                each.variant.id,
                each.time_ms,
                Source.MEASURED if each.timed else Source.PREDICTED,
                each.time_ms / best_ms,
                each.uncertainty,
                _is_tied(each, best) if each.timed and best.timed else each.time_ms <= reach_ms,
                each.workspace_bytes,
                each.variant.is_deterministic,
                each.timed.plan if each.timed else None,
            )
            for each in candidates
        ]
    )


def _order(each: _Candidate) -> tuple[float, bool, float, bool, str]:
    variant, workspace = each.variant, each.workspace_bytes
    least_last = math.inf if workspace is None else workspace
    return each.time_ms, each.timed is None, least_last, not variant.is_deterministic, variant.id


def _is_tied(each: _Candidate, best: _Candidate) -> bool:
    """Of two that were measured."""
    assert each.timed  # noqa: S101 - or there is nothing to compare
    if each is not best and each.timed.outcome is Outcome.PRUNED:  # its one sample says only that it is far behind
        return False
    return is_tied(each.time_ms, each.uncertainty, best.time_ms, best.uncertainty)


def _nothing_left(problem: ConvProblem, device: Device, reasons: Mapping[str, str] | None = None) -> NoAdvice:
    return NoAdvice(f"no variant is known to run {problem.key} on {device.id} within the limits", reasons)
