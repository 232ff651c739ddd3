"""How good a device's trees are: their scores over retrainings, and the live regret of the active one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Final

from conv_advisor.app.service.regret import Regretted, live_regret
from conv_advisor.app.service.service import Service
from conv_advisor.app.web.charts import Axis
from conv_advisor.app.web.models import ModelRow
from conv_advisor.data.errors import ConvAdvisorError

_LEAST_TOP: Final = 1.02
"""Least top of a drawing's axis, in multiples of the fastest time: a nearly perfect tree then looks so."""

_TICKS: Final = 4


@dataclass(frozen=True)
class Spot:
    """One dot: its position in percent from the left and from the top, and a line that says what it stands for."""

    x: float
    y: float
    title: str
    is_marked: bool = False


@dataclass(frozen=True)
class Curve:
    """Dots of one kind, in their order."""

    name: str
    spots: Sequence[Spot]

    @property
    def segments(self) -> list[tuple[Spot, Spot]]:
        """Neighbouring dots, which a line joins."""
        return list(zip(self.spots, self.spots[1:], strict=False))


@dataclass(frozen=True)
class Chart:
    """A drawing of slowdowns over time, from perfect at the bottom up."""

    curves: Sequence[Curve]
    ticks: Sequence[tuple[str, float]]
    first: str
    last: str


@dataclass(frozen=True)
class RegretView:
    """What following the active tree costs on the layers measured here."""

    rows: Sequence[Regretted]
    mean: float
    worst: float
    share_best: float
    chart: Chart


@dataclass(frozen=True)
class LearningView:
    """Both drawings of a device; None where there is nothing to draw yet."""

    scores: Chart | None
    regret: RegretView | None


def learning_views(service: Service, models: Mapping[str, Sequence[ModelRow]]) -> dict[str, LearningView]:
    """The drawings of each device that has trees."""
    return {device: LearningView(scores_chart(rows), _regret(service, device)) for device, rows in models.items()}


def scores_chart(rows: Sequence[ModelRow]) -> Chart | None:
    """The geometric mean of every usable tree on layers it was not trained on, in the order they were trained.

    None where fewer than two trees have scores: one dot makes no curve.
    """
    trained = sorted((row for row in rows if row.judged and row.created), key=lambda row: row.created)
    if len(trained) < 2:
        return None
    titles = list(dict.fromkeys(part.title for row in trained for part in row.judged))
    means = {(row.entry.id, part.title): part.overall.geometric_mean for row in trained for part in row.judged}
    axis = _axis(list(means.values()))
    curves = [
        Curve(
            title,
            [
                Spot(
                    _across(place, len(trained)),
                    _down(axis, means[row.entry.id, title]),
                    f"{row.entry.id}, {row.created[:10]}: {means[row.entry.id, title]:.3f}×",
                    row.entry.is_active,
                )
                for place, row in enumerate(trained)
                if (row.entry.id, title) in means
            ],
        )
        for title in titles
    ]
    return Chart(curves, _ticks(axis), trained[0].created[:10], trained[-1].created[:10])


def regret_view(rows: Sequence[Regretted]) -> RegretView | None:
    """The live regret, drawn; None where no layer was measured."""
    if not rows:
        return None
    slowdowns = [row.slowdown for row in rows]
    axis = _axis(slowdowns)
    means = [exp(sum(map(log, slowdowns[: place + 1])) / (place + 1)) for place in range(len(rows))]
    places = [_across(place, len(rows)) for place in range(len(rows))]
    problems = Curve(
        "one layer",
        [
            Spot(x, _down(axis, row.slowdown), f"{row.problem.key}: {row.slowdown:.2f}×, {row.advised}")
            for x, row in zip(places, rows, strict=True)
        ],
    )
    course = Curve(
        "geometric mean so far",
        [Spot(x, _down(axis, mean), f"{mean:.3f}×") for x, mean in zip(places, means, strict=True)],
    )
    days = (f"{row.measured_at:%Y-%m-%d}" for row in (rows[0], rows[-1]))
    return RegretView(
        rows=rows,
        mean=means[-1],
        worst=max(slowdowns),
        share_best=sum(row.advised == row.fastest for row in rows) / len(rows),
        chart=Chart((problems, course), _ticks(axis), *days),
    )


def _regret(service: Service, device_id: str) -> RegretView | None:
    try:
        return regret_view(live_regret(service, device_id))
    except ConvAdvisorError:  # its tree cannot be used; the list of trees says so
        return None


def _axis(slowdowns: Sequence[float]) -> Axis:
    return Axis(1.0, max(_LEAST_TOP, *slowdowns))


def _across(place: int, count: int) -> float:
    return round(3 + 94 * place / max(count - 1, 1), 2) if count > 1 else 50.0


def _down(axis: Axis, slowdown: float) -> float:
    return round(100 - axis.at(max(slowdown, 1.0)), 2)


def _ticks(axis: Axis) -> list[tuple[str, float]]:
    """Ticks at 1×, at the top, and evenly between."""
    values = [exp(log(axis.high) * step / (_TICKS - 1)) for step in range(_TICKS)]
    digits = 3 if axis.high < 1.1 else 2 if axis.high < 3 else 1
    return [(f"{value:.{digits}f}×", _down(axis, value)) for value in values]
