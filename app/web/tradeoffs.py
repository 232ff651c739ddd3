"""What the page shows beside advice: what to weigh, the nearest measured layers, and the program that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Final

from conv_advisor.app.advice.details import ParetoParameters, SnippetParameters, neighbours_of, snippet_for, weighed
from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.service.service import Service
from conv_advisor.app.snippets.writer import Snippet
from conv_advisor.app.web.forms import LayerForm
from conv_advisor.app.wire.errors import problem_of
from conv_advisor.data.errors import ConvAdvisorError, NoAdvice
from conv_advisor.models.advisor import Advice, Advisor
from conv_advisor.models.candidates import Source
from conv_advisor.models.neighbours import Neighbour
from conv_advisor.models.pareto import Bounds, OtherLayout, Pareto, Point

NEIGHBOURS: Final = 5
SHOWN: Final = 8
"""Points off the front that are shown at once."""

_MARGIN: Final = 7.0
"""Percent of the drawing that its outermost points keep from its edges."""


@dataclass(frozen=True)
class Dot:
    """One point of the drawing, in percent from its left and from its top."""

    x: float
    y: float
    place: int
    point: Point


@dataclass(frozen=True)
class TradeoffsView:
    """What to weigh.

    Parameters
    ----------
    pareto : Pareto
    other : OtherLayout or None
    front, rest : sequence of (int, Point)
        With their places by time, from 1.
    dots : sequence of Dot
        Time from left to right and workspace from bottom to top, both by their logarithms.
    """

    pareto: Pareto
    other: OtherLayout | None
    front: Sequence[tuple[int, Point]]
    rest: Sequence[tuple[int, Point]]
    dots: Sequence[Dot]


@dataclass(frozen=True)
class DetailsView:
    """What is shown beside advice; of each part what there is, or why there is none.

    Parameters
    ----------
    tradeoffs : TradeoffsView or None
    tradeoffs_problem : dict or None
        The problem document that says why there are none.
    neighbours : sequence of Neighbour or None
        None where everything was measured: nothing is predicted that they would back.
    snippet : Snippet or None
    snippet_problem : dict or None
    """

    tradeoffs: TradeoffsView | None
    tradeoffs_problem: dict[str, object] | None
    neighbours: Sequence[Neighbour] | None
    snippet: Snippet | None
    snippet_problem: dict[str, object] | None


def details_view(service: Service, form: LayerForm, advisor: Advisor, advice: Advice) -> DetailsView:
    """What goes with an advice of an advisor; the form names the device.

    Raises
    ------
    InvalidInput, StoreError
    """
    asked = form.parameters(ParetoParameters, **form.kept("max_error", "max_slowdown"))
    limits = Limits.of(asked, service)
    tradeoffs, tradeoffs_problem = _tradeoffs(service, advisor, advice, limits, asked.bounds)
    is_guessed = any(choice.source is Source.PREDICTED for choice in advice.ranking)
    snippet, snippet_problem = _snippet(form, advice, limits)
    return DetailsView(
        tradeoffs=tradeoffs,
        tradeoffs_problem=tradeoffs_problem,
        neighbours=neighbours_of(service, advice, NEIGHBOURS) if is_guessed else None,
        snippet=snippet,
        snippet_problem=snippet_problem,
    )


def _tradeoffs(
    service: Service, advisor: Advisor, advice: Advice, limits: Limits, bounds: Bounds
) -> tuple[TradeoffsView | None, dict[str, object] | None]:
    try:
        pareto, other = weighed(service.recall, advisor, advice, limits, bounds)
    except NoAdvice as error:
        return None, problem_of(error)
    placed = list(enumerate(pareto.points, 1))
    return TradeoffsView(
        pareto=pareto,
        other=other,
        front=[pair for pair in placed if pair[1].is_on_front],
        rest=[pair for pair in placed if not pair[1].is_on_front],
        dots=_dots(placed),
    ), None


def _snippet(form: LayerForm, advice: Advice, limits: Limits) -> tuple[Snippet | None, dict[str, object] | None]:
    try:
        asked = form.parameters(SnippetParameters, **form.kept("variant", "language"))
        return snippet_for(advice, asked.variant, limits.max_workspace_bytes, asked.language), None
    except ConvAdvisorError as error:
        return None, problem_of(error)


def _dots(placed: Sequence[tuple[int, Point]]) -> Sequence[Dot]:
    """Where the points lie; those whose workspace nobody knows, and those that are off the front and slow, do not."""
    drawn = [(place, point) for place, point in placed if point.workspace_bytes is not None]
    if not drawn:
        return []
    times = [log(point.time_ms) for _, point in drawn]
    spaces = [log(1 + (point.workspace_bytes or 0)) for _, point in drawn]
    return [
        Dot(_at(time, times), 100 - _at(space, spaces), place, point)
        for (place, point), time, space in zip(drawn, times, spaces, strict=True)
    ]


def _at(value: float, values: Sequence[float]) -> float:
    low, high = min(values), max(values)
    share = (value - low) / (high - low) if high > low else 0.0
    return round(_MARGIN + (100 - 2 * _MARGIN) * share, 2)
