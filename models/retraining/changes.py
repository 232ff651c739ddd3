"""How a retrained tree differs from the one before: the layers that got better, and those that got worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from conv_advisor.models.evaluation.judging import Result

MOST_SHOWN: Final = 20
"""Most problems of each kind, those that changed most first."""
LEAST_CHANGE: Final = 0.01
"""A slowdown that changes by a smaller share changed by noise alone."""


@dataclass(frozen=True, slots=True)
class Change:
    """One problem for which the new tree chooses another variant, with another slowdown.

    Parameters
    ----------
    problem : str
        Its key.
    before, after : str
        The variants chosen.
    slowdown_before, slowdown_after : float
        Against the oracle.
    """

    problem: str
    before: str
    after: str
    slowdown_before: float
    slowdown_after: float

    @property
    def ratio(self) -> float:
        """Time after over time before."""
        return self.slowdown_after / self.slowdown_before


@dataclass(frozen=True)
class Changes:
    """A tree compared with the one before it, on layers that neither was trained on.

    Parameters
    ----------
    n_problems : int
        Problems judged.
    n_other : int
        Problems for which another variant is chosen.
    n_better, n_worse : int
        How many of these become faster and slower by more than `LEAST_CHANGE`.
    better, worse : tuple of Change
        At most `MOST_SHOWN` of each, those that changed most first.
    """

    n_problems: int
    n_other: int
    n_better: int
    n_worse: int
    better: tuple[Change, ...]
    worse: tuple[Change, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self) | {name: [asdict(change) for change in getattr(self, name)] for name in ("better", "worse")}


def changes_between(before: Sequence[Result], after: Sequence[Result]) -> Changes:
    """Compare two rules' results.

    Parameters
    ----------
    before, after : sequence of Result
        Results of the same problems, in whatever order; a problem without a slowdown in one of them is left out.
    """
    earlier = {result.problem: result for result in before if result.is_timed}
    pairs = [(earlier[result.problem], result) for result in after if result.is_timed and result.problem in earlier]
    changed = [
        Change(new.problem.key, old.variant, new.variant, old.slowdown, new.slowdown)
        for old, new in pairs
        if old.variant != new.variant
    ]
    better = sorted((change for change in changed if change.ratio < 1 - LEAST_CHANGE), key=lambda change: change.ratio)
    worse = sorted((change for change in changed if change.ratio > 1 + LEAST_CHANGE), key=lambda change: -change.ratio)
    return Changes(
        n_problems=len(pairs),
        n_other=len(changed),
        n_better=len(better),
        n_worse=len(worse),
        better=tuple(better[:MOST_SHOWN]),
        worse=tuple(worse[:MOST_SHOWN]),
    )
