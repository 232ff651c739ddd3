"""Whether a retrained tree may replace the one in use: no worse in all, and much worse nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from conv_advisor.models.judging import Score, precision_of

if TYPE_CHECKING:
    from conv_advisor.models.judging import Result

MOST_WORSE: Final = 0.02
"""Share by which the geometric mean of one dtype and layout may get worse: less is what a few other layers in the
training do to one part of eight, more is a part that collapses while the mean over all hides it."""
LEAST_PROBLEMS: Final = 50
"""Of a dtype and layout that has fewer, one layer decides, and the mean over all alone counts."""
MOST_WORSE_P95: Final = 0.05
"""Share by which the 95th percentile over all may get worse, where there are `LEAST_PROBLEMS`."""


def objections(before: Sequence[Result], after: Sequence[Result]) -> tuple[str, ...]:
    """What speaks against the new tree.

    Parameters
    ----------
    before, after : sequence of Result
        What either tree's choices cost on layers that neither was trained on. Problems that only one has are left out.

    Returns
    -------
    tuple of str
        Empty where nothing does.
    """
    shared = {result.problem for result in before} & {result.problem for result in after}
    if not shared:
        return ()
    old, new = ([result for result in results if result.problem in shared] for results in (before, after))
    found = [_of_mean("the geometric mean", old, new, 0.0)]
    if len(shared) >= LEAST_PROBLEMS:
        found.append(_said("the 95th percentile", Score.of(old).p95, Score.of(new).p95, MOST_WORSE_P95))
    for precision in sorted({precision_of(problem) for problem in shared}):
        was, now = ([each for each in results if precision_of(each.problem) == precision] for results in (old, new))
        if len(was) >= LEAST_PROBLEMS:
            found.append(_of_mean(f"the geometric mean of {precision}", was, now, MOST_WORSE))
    return tuple(reason for reason in found if reason)


def _of_mean(name: str, old: Sequence[Result], new: Sequence[Result], tolerance: float) -> str | None:
    return _said(name, Score.of(old).geometric_mean, Score.of(new).geometric_mean, tolerance)


def _said(name: str, was: float, now: float, tolerance: float) -> str | None:
    if not now > was * (1 + tolerance):
        return None
    allowed = f"at most {tolerance:.0%} more" if tolerance else "no more"
    return f"{name} of the slowdown went from {was:.4f} to {now:.4f}; allowed: {allowed}"
