"""The variants that may be run for a problem: their times and workspaces, why one is out, and their order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec

from conv_advisor.data.measurement import Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.variant import Variant
from conv_advisor.models.costs import is_tied
from conv_advisor.models.leaf import MIN_SUPPORT, Leaf, unlikely

if TYPE_CHECKING:
    from conv_advisor.data.summary import Summary

_NO_REFUSAL: Final = (
    *(Outcome.MEASURED, Outcome.PRUNED, Outcome.UNSTEADY, Outcome.NOT_APPLICABLE, Outcome.WORKSPACE_EXCEEDED),
)
"""Outcomes that leave it to the rule, the workspace and the model whether the variant can run."""

_COMPARABLE_LOG_SLOWDOWN: Final = 1.0
"""Predictions of variants further behind are too rough to scale the others by."""


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


@dataclass(slots=True)
class Candidate:
    """A variant that may be run, and what is known of it so far."""

    variant: Variant
    workspace_bytes: int | None
    timed: Summary | None
    time_ms: float
    uncertainty: float


_UNKNOWN: Final = "not measured on this layer, and the model does not know it"


def predicted(
    variant: Variant, problem: ConvProblem, leaf: Leaf, max_workspace_bytes: int, is_deterministic: bool
) -> Candidate | str:
    """A variant that applies and was not measured, with its predicted time, or why it is out."""
    workspace = variant.workspace_bytes(problem)
    if workspace is None:
        workspace = leaf.workspace_bytes(variant.id)
    if (is_deterministic and not variant.is_deterministic) or (workspace or 0) > max_workspace_bytes:
        return over_limits(variant, workspace, max_workspace_bytes, is_deterministic) or ""
    return likely(variant, workspace, leaf)


def likely(variant: Variant, workspace_bytes: int | None, leaf: Leaf) -> Candidate | str:
    """A variant with its predicted time, or why it will not run."""
    row = leaf.row
    column = row.column.get(variant.id)
    if column is None:
        return _UNKNOWN
    if row.support[column] < MIN_SUPPORT:
        return unlikely(row.support[column])
    time_ms = leaf.best_ms * math.exp(row.log_slowdown[column])
    return Candidate(variant, workspace_bytes, None, time_ms, row.spread)


def workspace_of(variant: Variant, problem: ConvProblem, leaf: Leaf | None, summary: Summary | None) -> int | None:
    """As measured, else as the variant computes it, else the most that the model expects."""
    if summary and summary.workspace_bytes is not None:
        return summary.workspace_bytes
    exact = variant.workspace_bytes(problem)
    return exact if exact is not None or leaf is None else leaf.workspace_bytes(variant.id)


def over_limits(
    variant: Variant, workspace_bytes: int | None, max_workspace_bytes: int, is_deterministic: bool
) -> str | None:
    """Why a variant is beyond the limits that were asked for; None where it is within."""
    if is_deterministic and not variant.is_deterministic:
        return "not deterministic"
    if workspace_bytes is not None and workspace_bytes > max_workspace_bytes:
        return f"workspace is {workspace_bytes} bytes, above the limit of {max_workspace_bytes}"
    return None


def refusal(summary: Summary | None) -> str | None:
    """Why a variant that was tried did not run; None where it was not tried, or nothing speaks against it."""
    if summary is None or summary.outcome in _NO_REFUSAL:
        return None
    return f"{summary.outcome}: {summary.detail}" if summary.detail else str(summary.outcome)


def scale(candidates: list[Candidate], leaf: Leaf) -> None:
    """Bring the predicted times to the level of the measured ones."""
    row = leaf.row
    known = [each for each in candidates if each.timed and each.variant.id in row.column]
    if not known:
        return
    near = [each for each in known if row.log_slowdown[row.column[each.variant.id]] < _COMPARABLE_LOG_SLOWDOWN]
    factor = median(each.time_ms / leaf.time_ms(each.variant.id) for each in near or known)
    best_ms = min((each.time_ms for each in candidates if each.timed), default=0.0)
    for each in candidates:
        if each.timed is None:
            each.time_ms *= factor
            if each.time_ms < best_ms <= each.time_ms * math.exp(each.uncertainty):
                each.time_ms = best_ms


def ranking(candidates: list[Candidate], spread: float) -> tuple[Choice, ...]:
    """The candidates in order; those without a time of their own have this uncertainty."""
    candidates.sort(key=order)
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


def order(each: Candidate) -> tuple[float, bool, float, bool, str]:
    """What ranks candidates: time, measured before predicted, less workspace, deterministic, name."""
    variant, workspace = each.variant, each.workspace_bytes
    least_last = math.inf if workspace is None else workspace
    return each.time_ms, each.timed is None, least_last, not variant.is_deterministic, variant.id


def _is_tied(each: Candidate, best: Candidate) -> bool:
    """Of two that were measured."""
    assert each.timed  # noqa: S101 - or there is nothing to compare
    if each is not best and each.timed.outcome is Outcome.PRUNED:  # its one sample says only that it is far behind
        return False
    return is_tied(each.time_ms, each.uncertainty, best.time_ms, best.uncertainty)
