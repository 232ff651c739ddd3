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
"""Variants predicted more than this many times behind are too rough to scale the others by."""


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
        Relative standard error of a measured time; of a predicted one, that of its slowdown on layers never trained
        on.
    is_tied : bool
        Its time counts as the best one's (`models.ranking.ties`): something else decided between them.
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
    """The candidate for a variant whose rule allows a problem; or why it is out; or None where its time is unknown.

    A reason not to run counts before the workspace, which the model makes up where the variant never ran.
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
        prefix = "predicted as " if is_predicted else ""
        return f"workspace is {prefix}{workspace} bytes, above the limit of {max_workspace_bytes}"
    if summary and summary.time_ms is not None:
        return Candidate(variant, workspace, summary, summary.time_ms, summary.noise or 0.0)
    if leaf is None or variant.id not in leaf.row.column:
        return None
    return Candidate(variant, workspace, None, leaf.time_ms(variant.id), leaf.row.spread)


def doubt(variant: Variant, leaf: Leaf | None, summary: Summary | None) -> str | None:
    """Why a variant that its rule allows will not run: the device refused it on this layer, or it seldom ran nearby."""
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
    outcome = summary.outcome.replace("_", " ")
    return f"{outcome}: {summary.detail}" if summary.detail else outcome


def scale(candidates: list[Candidate], predicted_ms: Mapping[str, float], best_ms: float) -> None:
    """Bring the predicted times to the level of the measured ones.

    Parameters
    ----------
    candidates : list of Candidate
    predicted_ms : mapping of variant to float
        Predicted times of the measured variants, where there is a prediction.
    best_ms : float
        Predicted time of the fastest variant.
    """
    known = [candidate for candidate in candidates if candidate.timed and candidate.variant.id in predicted_ms]
    if not known:
        return
    near = [candidate for candidate in known if predicted_ms[candidate.variant.id] < _COMPARABLE * best_ms]
    factor = median(candidate.time_ms / predicted_ms[candidate.variant.id] for candidate in near or known)
    least_ms = min(candidate.time_ms for candidate in candidates if candidate.timed)
    for candidate in candidates:
        if candidate.timed is None:
            candidate.time_ms *= factor
            if candidate.time_ms < least_ms <= candidate.time_ms * math.exp(candidate.uncertainty):
                candidate.time_ms = least_ms


def ranking(candidates: Sequence[Candidate], error_of: Callable[[str], float]) -> tuple[Choice, ...]:
    """The candidates in order: by the time that each counts as (`models.ranking.ties`), then by `rank`.

    Parameters
    ----------
    candidates : sequence of Candidate
        At least one.
    error_of : callable (variant) -> float
        How far the y of the variant of this id is from float64.
    """
    levels = level_ms(
        [(candidate.time_ms, candidate.uncertainty if candidate.timed else None) for candidate in candidates]
    )
    ranked = sorted(zip(levels, candidates, strict=True), key=lambda pair: (pair[0], *rank(pair[1], error_of)))
    least_ms = ranked[0][0]
    return tuple(
        [
            Choice(
                candidate.variant.id,
                candidate.time_ms,
                Source.MEASURED if candidate.timed else Source.PREDICTED,
                candidate.time_ms / least_ms,
                candidate.uncertainty,
                level == least_ms,
                candidate.workspace_bytes,
                candidate.variant.is_deterministic,
                candidate.timed.plan if candidate.timed else None,
            )
            for level, candidate in ranked
        ]
    )


def rank(candidate: Candidate, error_of: Callable[[str], float]) -> tuple[bool, float, bool, float, str]:
    """Sort key of candidates of one time: measured before predicted, less workspace, deterministic, accuracy, name."""
    variant, workspace = candidate.variant, candidate.workspace_bytes
    least_last = math.inf if workspace is None else workspace
    return candidate.timed is None, least_last, not variant.is_deterministic, error_of(variant.id), variant.id
