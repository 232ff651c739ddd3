"""The gate for retrained trees: one may replace the active tree if it is no worse overall, and nowhere much worse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from conv_advisor.models.evaluation.judging import Score, comparable, precision_of

if TYPE_CHECKING:
    from conv_advisor.models.evaluation.judging import Result

MOST_WORSE: Final = 0.02
"""Share by which the geometric mean of one dtype and layout may get worse: a few other layers in the training move one
part of eight by less; a larger share is a part that collapses while the mean over all hides it."""
LEAST_PROBLEMS: Final = 50
"""Fewer problems of a dtype and layout decide nothing by themselves: only the mean over all counts."""
MOST_WORSE_P95: Final = 0.05
"""Share by which the 95th percentile over all may get worse, where there are `LEAST_PROBLEMS`."""
MOST_GIVEN_UP: Final = 0.001
"""Share of the problems by which choices given up after their first launch may increase: those have no slowdown, but
each was over five times behind when it was given up."""


def objections(before: Sequence[Result], after: Sequence[Result]) -> tuple[str, ...]:
    """What speaks against the new tree.

    Parameters
    ----------
    before, after : sequence of Result
        What either tree's choices cost on layers that neither was trained on. Problems that only one has are left out,
        and those where either chooses a variant given up after its first launch.

    Returns
    -------
    tuple of str
        Empty where nothing speaks against it.
    """
    old, new = comparable({"before": before, "after": after}).values()
    reasons = [_of_given_up(before, after)]
    if not old:
        return tuple(reason for reason in reasons if reason)
    shared = {result.problem for result in old}
    reasons.append(_of_mean("the geometric mean", old, new, 0.0))
    if len(shared) >= LEAST_PROBLEMS:
        reasons.append(_said("the 95th percentile", Score.of(old).p95, Score.of(new).p95, MOST_WORSE_P95))
    for precision in sorted({precision_of(problem) for problem in shared}):
        was, now = (
            [result for result in results if precision_of(result.problem) == precision] for results in (old, new)
        )
        if len(was) >= LEAST_PROBLEMS:
            reasons.append(_of_mean(f"the geometric mean of {precision}", was, now, MOST_WORSE))
    return tuple(reason for reason in reasons if reason)


def _of_given_up(before: Sequence[Result], after: Sequence[Result]) -> str | None:
    both = {result.problem for result in before} & {result.problem for result in after}
    was, now = (sum(not result.is_timed for result in results if result.problem in both) for results in (before, after))
    most = was + int(MOST_GIVEN_UP * len(both))
    if now <= most:
        return None
    return f"choices that were given up on after their first launch went from {was} to {now}; allowed: at most {most}"


def _of_mean(name: str, old: Sequence[Result], new: Sequence[Result], tolerance: float) -> str | None:
    return _said(name, Score.of(old).geometric_mean, Score.of(new).geometric_mean, tolerance)


def _said(name: str, was: float, now: float, tolerance: float) -> str | None:
    if not now > was * (1 + tolerance):
        return None
    allowed = f"at most {tolerance:.0%} more" if tolerance else "no more"
    return f"{name} of the slowdown went from {was:.4f} to {now:.4f}; allowed: {allowed}"
