"""The views beside advice: tradeoffs, the nearest measured layers, and the program that runs the variant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from conv_advisor.app.advice.details import ParetoParameters, SnippetParameters, neighbours_of, snippet_for, weighed
from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.service.service import Service
from conv_advisor.app.snippets.writer import Snippet
from conv_advisor.app.web import text
from conv_advisor.app.web.charts import MARGIN, Axis, Label, axis_of, place_labels
from conv_advisor.app.web.forms import LayerForm
from conv_advisor.app.wire.errors import problem_of
from conv_advisor.data.errors import ConvAdvisorError, NoAdvice
from conv_advisor.models.advice.advice import Advice
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.advice.neighbours import Neighbour
from conv_advisor.models.advice.pareto import Bounds, OtherLayout, Pareto, Point
from conv_advisor.models.ranking.candidates import Source

NEIGHBOURS: Final = 5
SHOWN: Final = 8
"""Points off the front that are shown at once."""

_TICKS: Final = 6
"""Values along an axis, at most: as many as fit on a phone."""

_NONE_AT: Final = 100 - MARGIN
_LEAST_AT: Final = 82.0
"""Height of variants without workspace, in percent from the top, and of the least workspace: zero has no logarithm."""


@dataclass(frozen=True)
class Dot:
    """One point of the drawing, in percent from its left and from its top."""

    x: float
    y: float
    place: int
    point: Point


@dataclass(frozen=True)
class Drawing:
    """Time from left to right, workspace from bottom to top, both logarithmic.

    Parameters
    ----------
    dots : sequence of Dot
    labels : sequence of Label
        Places of the points on the front; none overlaps another.
    times, spaces : sequence of (str, float)
        The ticks of the axes, and where they lie in percent.
    n_unknown : int
        Variants of unknown workspace; they are in the tables alone.
    """

    dots: Sequence[Dot]
    labels: Sequence[Label]
    times: Sequence[tuple[str, float]]
    spaces: Sequence[tuple[str, float]]
    n_unknown: int


@dataclass(frozen=True)
class TradeoffsView:
    """The tradeoffs between variants.

    Parameters
    ----------
    pareto : Pareto
    other : OtherLayout or None
    front, rest : sequence of (int, Point)
        With their places by time, from 1.
    drawing : Drawing or None
        None where there is only one point to draw, or none.
    """

    pareto: Pareto
    other: OtherLayout | None
    front: Sequence[tuple[int, Point]]
    rest: Sequence[tuple[int, Point]]
    drawing: Drawing | None


@dataclass(frozen=True)
class DetailsView:
    """The parts shown beside advice; each is there, or the reason why not.

    Parameters
    ----------
    tradeoffs : TradeoffsView or None
    tradeoffs_problem : dict or None
        The problem document that says why there are none.
    neighbours : sequence of Neighbour or None
        None where everything was measured: they are there to back predictions.
    snippet : Snippet or None
    snippet_problem : dict or None
    """

    tradeoffs: TradeoffsView | None
    tradeoffs_problem: dict[str, object] | None
    neighbours: Sequence[Neighbour] | None
    snippet: Snippet | None
    snippet_problem: dict[str, object] | None


def details_view(service: Service, form: LayerForm, advisor: Advisor, advice: Advice) -> DetailsView:
    """The parts that go with an advice of an advisor; the form names the device.

    Raises
    ------
    InvalidInput, StoreError
    """
    parameters = form.parameters(ParetoParameters, **form.kept("max_error", "max_slowdown"))
    limits = Limits.of(parameters, service)
    tradeoffs, tradeoffs_problem = _tradeoffs(service, advisor, advice, limits, parameters.bounds)
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
        drawing=_drawing(placed),
    ), None


def _snippet(form: LayerForm, advice: Advice, limits: Limits) -> tuple[Snippet | None, dict[str, object] | None]:
    try:
        parameters = form.parameters(SnippetParameters, **form.kept("variant", "language"))
        return snippet_for(advice, parameters.variant, limits.max_workspace_bytes, parameters.language), None
    except ConvAdvisorError as error:
        return None, problem_of(error)


def _drawing(placed: Sequence[tuple[int, Point]]) -> Drawing | None:
    known = [(place, point, point.workspace_bytes) for place, point in placed if point.workspace_bytes is not None]
    if len(known) < 2:
        return None
    times = axis_of([point.time_ms for _, point, _ in known])
    sizes = [size for _, _, size in known if size]
    spaces = axis_of(sizes) if sizes else None
    dots = [Dot(times.at(point.time_ms), _down(spaces, size), place, point) for place, point, size in known]
    on, off = ([dot for dot in dots if dot.point.is_on_front is is_on] for is_on in (True, False))
    ticks = [(text.size(size), _down(spaces, size)) for size in spaces.binary_ticks(_TICKS - 1)] if spaces else []
    none = [(text.size(0), _NONE_AT)] if len(sizes) < len(known) else []
    return Drawing(
        dots=[*off, *on],
        labels=place_labels([(dot.x, dot.y, str(dot.place)) for dot in on], [(dot.x, dot.y) for dot in off]),
        times=[(text.time(ms), times.at(ms)) for ms in times.ticks(_TICKS)],
        spaces=[*none, *ticks],
        n_unknown=len(placed) - len(known),
    )


def _down(spaces: Axis | None, size: float) -> float:
    """Height of a workspace in the drawing, in percent from the top."""
    return round(_LEAST_AT * (1 - spaces.at(size) / 100), 2) if spaces and size else _NONE_AT
