"""What a faster variant costs: time against workspace, error and determinism, and what the other layout would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, inf
from typing import TYPE_CHECKING, Final

import msgspec

from conv_advisor.data.errors import ConvAdvisorError, NoAdvice
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.models.advice.advice import Advice, Exclusion
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import TIE_STANDARD_ERRORS
from conv_advisor.models.ranking.accuracy import ErrorSource, error_of, laws_of
from conv_advisor.models.ranking.candidates import Choice, Source
from conv_advisor.models.ranking.ties import level_ms
from conv_advisor.models.ranking.words import above
from conv_advisor.models.tree.features import features
from conv_advisor.models.tree.file import walk

if TYPE_CHECKING:
    from conv_advisor.data.summary import Summary

SAME_ERROR: Final = 2.0
"""Errors closer than this factor are level: one variant's own errors scatter about its law by a factor of 1.2 (standard
deviation of log2: 0.3), so that two variants of equal accuracy differ by up to 1.8."""


class Point(msgspec.Struct, frozen=True):
    """One variant that may be run, with everything that it costs.

    Parameters
    ----------
    variant : str
    time_ms : float
    source : Source
        Where the time comes from.
    slowdown : float
        Time over that of the fastest within the limits.
    uncertainty : float
        As in `Choice`.
    workspace_bytes : int or None
        None where unknown.
    max_error : float
        max |y - y64| / max |y64|.
    error_source : ErrorSource
    is_deterministic : bool
    is_on_front : bool
        No other variant is at least as good in everything and better in something, beyond what can be told apart. The
        advised variant always is on the front.
    """

    variant: str
    time_ms: float
    source: Source
    slowdown: float
    uncertainty: float
    workspace_bytes: int | None
    max_error: float
    error_source: ErrorSource
    is_deterministic: bool
    is_on_front: bool = False


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a variant's costs beside those of the advice.

    Parameters
    ----------
    max_error : float or None
    max_slowdown : float or None
        Time over that of the fastest that keeps every other limit; at least 1.
    """

    max_error: float | None = None
    max_slowdown: float | None = None


NO_BOUNDS: Final = Bounds()


class OtherLayout(msgspec.Struct, frozen=True):
    """The best variant on the same layer in the other layout.

    Parameters
    ----------
    layout : Layout
    variant : str
    time_ms : float
    source : Source
    speedup : float
        Time in the layout that was asked for over this one, operands already converted; above 1 this one is faster.
    least_conversion_ms : float or None
        Least time to convert x before and y after: each read and written once, at the most bytes a ms that any variant
        reached on the device. The weight counts as converted beforehand. None without a model.
    speedup_converted : float or None
        As speedup, with that conversion added to this layout's time: an upper bound.
    """

    layout: Layout
    variant: str
    time_ms: float
    source: Source
    speedup: float
    least_conversion_ms: float | None
    speedup_converted: float | None


@dataclass(frozen=True, slots=True)
class Pareto:
    """The trade-offs of one problem's variants.

    Parameters
    ----------
    advice : Advice
    points : tuple of Point
        Fastest first.
    excluded : tuple of Exclusion
        As in the advice, then those whose error is above the limit, then those that are too slow.
    """

    advice: Advice
    points: tuple[Point, ...]
    excluded: tuple[Exclusion, ...]

    @property
    def front(self) -> tuple[Point, ...]:
        """The points on the front."""
        return tuple(point for point in self.points if point.is_on_front)


def weigh(
    advisor: Advisor,
    advice: Advice,
    *,
    measured: Mapping[str, Summary] | None = None,
    bounds: Bounds = NO_BOUNDS,
) -> Pareto:
    """Set everything that the variants of an advice cost beside their times.

    Parameters
    ----------
    advisor : Advisor
    advice : Advice
        Its limits of workspace and determinism hold here too.
    measured : mapping of variant to Summary
        Measurements that the advice was made from.
    bounds : Bounds
        Variants that err more, or are slower, are excluded.

    Raises
    ------
    NoAdvice
        No variant is left.
    """
    laws = laws_of(advisor.model)
    points, excluded = [], list(advice.excluded)
    for choice in advice.ranking:
        error, source = error_of(laws, choice.variant, advice.problem, (measured or {}).get(choice.variant))
        if bounds.max_error is not None and error > bounds.max_error:
            shown, allowed = above(error, bounds.max_error)
            reason = f"error is up to {shown} ({source}), above the limit of {allowed}"
            excluded.append(Exclusion(choice.variant, reason))
        else:
            points.append(_point(choice, error, source))
    if not points:
        named = f"{advice.problem.key} on {advice.device_id}"
        raise NoAdvice(f"no variant of {named} has an error of at most {bounds.max_error}")
    if bounds.max_slowdown is not None:
        points, slow = _fast_enough(points, bounds.max_slowdown)
        excluded += slow
    return Pareto(advice, _marked(points, counted_ms(advice.ranking)), tuple(excluded))


def counted_ms(choices: Sequence[Choice | Point]) -> dict[str, float]:
    """The time that each variant counts as, by its id: equal where two are tied, as in a ranking."""
    is_measured = [choice.source is Source.MEASURED for choice in choices]
    times = [
        (choice.time_ms, choice.uncertainty if own else None) for choice, own in zip(choices, is_measured, strict=True)
    ]
    return dict(zip([choice.variant for choice in choices], level_ms(times), strict=True))


def dominates(one: Point, other: Point, time_ms: Mapping[str, float]) -> bool:
    """Whether one is at least as good in everything and better in something, beyond what can be told apart.

    Parameters
    ----------
    one, other : Point
    time_ms : mapping of variant to float
        As `counted_ms` gives it. Of two variants that count as equally fast a guess is never as good as a measured one:
        so nothing dominates what a ranking puts first.
    """
    workspace, others = (inf if point.workspace_bytes is None else point.workspace_bytes for point in (one, other))
    if workspace > others or one.is_deterministic < other.is_deterministic:
        return False
    time, other_time = time_ms[one.variant], time_ms[other.variant]
    if time > other_time or (time == other_time and _is_guess(one) > _is_guess(other)):
        return False
    if one.max_error > SAME_ERROR * other.max_error:
        return False
    is_better = workspace < others or one.is_deterministic > other.is_deterministic
    is_better = is_better or other.max_error > SAME_ERROR * one.max_error
    return is_better or (time < other_time and _is_faster(one, other))


def other_layout(
    advisor: Advisor,
    advice: Advice,
    *,
    max_workspace_bytes: int,
    is_deterministic: bool,
    measured: Mapping[str, Summary] | None = None,
    alone: Mapping[str, Summary] | None = None,
) -> OtherLayout | None:
    """The best on the same layer in the other layout within the same limits; None where nothing is known of it.

    Parameters
    ----------
    advisor : Advisor
    advice : Advice
        Advice in the layout that was asked for.
    max_workspace_bytes : int
    is_deterministic : bool
    measured : mapping of variant to Summary
        Measurements of the layer in the other layout.
    alone : mapping of variant to Summary
        Measurements in the other layout without the epilogue, where the layer has one.
    """
    problem = in_other_layout(advice.problem)
    try:
        best = advisor.advise(
            problem,
            max_workspace_bytes=max_workspace_bytes,
            is_deterministic=is_deterministic,
            measured=measured,
            alone=alone,
        ).best
    except ConvAdvisorError:
        return None
    conversion_ms = _least_conversion_ms(advisor, advice.problem)
    here_ms = advice.best.time_ms
    return OtherLayout(
        layout=problem.layout,
        variant=best.variant,
        time_ms=best.time_ms,
        source=best.source,
        speedup=here_ms / best.time_ms,
        least_conversion_ms=conversion_ms,
        speedup_converted=None if conversion_ms is None else here_ms / (best.time_ms + conversion_ms),
    )


def in_other_layout(problem: ConvProblem) -> ConvProblem:
    """The same layer in the other layout."""
    return replace(problem, layout=Layout.NHWC if problem.layout is Layout.NCHW else Layout.NCHW)


def _least_conversion_ms(advisor: Advisor, problem: ConvProblem) -> float | None:
    if advisor.model is None:
        return None
    _, bytes_per_ms, least_ms = advisor.model.roofline(walk(advisor.model, features(problem))).tolist()
    bytes_per_ms *= advisor.bandwidth_ratio
    return float(sum(max(2 * moved / bytes_per_ms, least_ms) for moved in (problem.x_bytes, problem.y_bytes)))


def _point(choice: Choice, error: float, source: ErrorSource) -> Point:
    return Point(
        variant=choice.variant,
        time_ms=choice.time_ms,
        source=choice.source,
        slowdown=choice.slowdown,
        uncertainty=choice.uncertainty,
        workspace_bytes=choice.workspace_bytes,
        max_error=error,
        error_source=source,
        is_deterministic=choice.is_deterministic,
    )


def _fast_enough(points: Sequence[Point], max_slowdown: float) -> tuple[list[Point], list[Exclusion]]:
    best_ms = min(point.time_ms for point in points)
    slow = {point.variant: ratio for point in points if (ratio := point.time_ms / best_ms) > max_slowdown}
    texts = {name: above(ratio, max_slowdown) for name, ratio in slow.items()}
    excluded = [
        Exclusion(name, f"takes {shown} times the fastest's time, above the limit of {allowed}")
        for name, (shown, allowed) in texts.items()
    ]
    return [point for point in points if point.variant not in slow], excluded


def _marked(points: Sequence[Point], time_ms: Mapping[str, float]) -> tuple[Point, ...]:
    """The points by time, with those on the front marked, and slowdowns relative to the fastest of them."""
    best_ms = min(point.time_ms for point in points)
    return tuple(
        msgspec.structs.replace(
            point,
            slowdown=point.time_ms / best_ms,
            is_on_front=not any(dominates(other, point, time_ms) for other in points),
        )
        for point in sorted(points, key=lambda point: point.time_ms)
    )


def _is_guess(point: Point) -> bool:
    return point.source is Source.PREDICTED


def _is_faster(one: Point, other: Point) -> bool:
    """Whether one is faster by more than the noise of measurements, or than the error of a prediction."""
    spreads = [_spread(point) for point in (one, other)]
    predicted = [spread for spread, point in zip(spreads, (one, other), strict=True) if _is_guess(point)]
    reach = max(predicted) if predicted else TIE_STANDARD_ERRORS * hypot(*spreads)
    return one.time_ms * exp(reach) < other.time_ms


def _spread(point: Point) -> float:
    """The relative standard error; none for a single launch, which was not repeated because it was far behind."""
    return 0.0 if point.source is Source.MEASURED and point.uncertainty >= 1 else point.uncertainty
