"""The variants that may be run for a problem: their times and workspaces, why one is out, and their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec

from conv_advisor.data.measurement import Device, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.variant import Variant
from conv_advisor.models.ranking.leaf import Leaf, is_expected, too_seldom
from conv_advisor.models.ranking.ties import level_ms

if TYPE_CHECKING:
    from conv_advisor.data.summary import Summary

_NO_REFUSAL: Final = (
    *(Outcome.MEASURED, Outcome.PRUNED, Outcome.UNSTEADY, Outcome.NOT_APPLICABLE, Outcome.WORKSPACE_EXCEEDED),
)
"""Outcomes that leave it to the rule, the workspace and the model whether the variant can run."""

_COMPARABLE: Final = math.e
"""Predictions of variants that are more times behind are too rough to scale the others by."""


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
        Time against that of the fastest choice.
    uncertainty : float
        Standard error of a measured time, relative; of a predicted one that of its slowdown, on layers never trained
        on.
    is_tied : bool
        Its time counts as the best one's (`models.ties`): something else decided between them.
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


def consider(
    variant: Variant,
    problem: ConvProblem,
    device: Device,
    leaf: Leaf | None,
    summary: Summary | None,
    max_workspace_bytes: int,
    is_deterministic: bool,
) -> Candidate | str | None:
    """A variant whose rule allows a problem, with its time and workspace; why it is out; or None: its time is unknown.

    That it does not run counts before the workspace it would take, which the model makes up where it never ran.
    """
    if is_deterministic and not variant.is_deterministic:
        return "not deterministic"
    reason = doubt(variant, leaf, summary)
    if reason:
        return reason
    workspace = summary.workspace_bytes if summary else None
    if workspace is None:
        workspace = variant.workspace_bytes(problem, device)
    is_predicted = workspace is None
    if workspace is None and leaf:
        workspace = leaf.workspace_bytes(variant.id)
    if workspace is not None and workspace > max_workspace_bytes:
        said = "predicted as " if is_predicted else ""
        return f"workspace is {said}{workspace} bytes, above the limit of {max_workspace_bytes}"
    if summary and summary.time_ms is not None:
        return Candidate(variant, workspace, summary, summary.time_ms, summary.noise or 0.0)
    if leaf is None or variant.id not in leaf.row.column:
        return None
    return Candidate(variant, workspace, None, leaf.time_ms(variant.id), leaf.row.spread)


def doubt(variant: Variant, leaf: Leaf | None, summary: Summary | None) -> str | None:
    """Why a variant will not run that its rule allows: the device refused it on this layer, or it seldom ran nearby."""
    if summary and summary.outcome is not Outcome.NOT_APPLICABLE:
        return refusal(summary)
    column = leaf.row.column.get(variant.id) if leaf else None
    if leaf is None or column is None or is_expected(variant, leaf.row.support[column]):
        return None
    return too_seldom(leaf.row.support[column])


def refusal(summary: Summary) -> str | None:
    """Why a variant that was tried did not run; None where nothing speaks against it."""
    if summary.outcome in _NO_REFUSAL:
        return None
    said = summary.outcome.replace("_", " ")
    return f"{said}: {summary.detail}" if summary.detail else said


def scale(candidates: list[Candidate], predicted_ms: Mapping[str, float], best_ms: float) -> None:
    """Bring the predicted times to the level of the measured ones.

    Parameters
    ----------
    candidates : list of Candidate
    predicted_ms : mapping of variant to float
        What is predicted of those that were measured; without those that nothing is predicted of.
    best_ms : float
        What is predicted of the fastest there is.
    """
    known = [each for each in candidates if each.timed and each.variant.id in predicted_ms]
    if not known:
        return
    near = [each for each in known if predicted_ms[each.variant.id] < _COMPARABLE * best_ms]
    factor = median(each.time_ms / predicted_ms[each.variant.id] for each in near or known)
    least_ms = min(each.time_ms for each in candidates if each.timed)
    for each in candidates:
        if each.timed is None:
            each.time_ms *= factor
            if each.time_ms < least_ms <= each.time_ms * math.exp(each.uncertainty):
                each.time_ms = least_ms


def ranking(candidates: Sequence[Candidate], error_of: Callable[[str], float]) -> tuple[Choice, ...]:
    """The candidates in order: by the time that each counts as, then as `rank` says.

    Parameters
    ----------
    candidates : sequence of Candidate
        At least one.
    error_of : callable (variant) -> float
        How far the y of the variant of this id is from float64.
    """
    levels = level_ms([(each.time_ms, each.uncertainty if each.timed else None) for each in candidates])
    ranked = sorted(zip(levels, candidates, strict=True), key=lambda pair: (pair[0], *rank(pair[1], error_of)))
    least_ms = ranked[0][0]
    return tuple(
        [
            Choice(
                each.variant.id,
                each.time_ms,
                Source.MEASURED if each.timed else Source.PREDICTED,
                each.time_ms / least_ms,
                each.uncertainty,
                level == least_ms,
                each.workspace_bytes,
                each.variant.is_deterministic,
                each.timed.plan if each.timed else None,
            )
            for level, each in ranked
        ]
    )


def rank(each: Candidate, error_of: Callable[[str], float]) -> tuple[bool, float, bool, float, str]:
    """What ranks candidates of one time: measured before predicted, less workspace, deterministic, accuracy, name."""
    variant, workspace = each.variant, each.workspace_bytes
    least_last = math.inf if workspace is None else workspace
    return each.timed is None, least_last, not variant.is_deterministic, error_of(variant.id), variant.id
