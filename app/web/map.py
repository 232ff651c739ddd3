"""The view of a map: which variant wins over two sizes of a layer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from conv_advisor.app.advice.insight import LandscapeParameters, model_of, survey_of
from conv_advisor.app.service.service import Service
from conv_advisor.app.web import text
from conv_advisor.app.web.forms import LIMITS, LayerForm, member
from conv_advisor.data.errors import InvalidProblem
from conv_advisor.models.advice.landscape import Axis, Landscape
from conv_advisor.models.tree.explain import favourites
from conv_advisor.models.tree.loan import Loan

COLOURS: Final = 10
"""Variants that have a colour of their own; the others share one."""


@dataclass(frozen=True)
class LegendEntry:
    """One variant that wins somewhere."""

    variant: str
    colour: int
    letter: str
    share: float


@dataclass(frozen=True)
class MapView:
    """A landscape with its legend, a table for those who do not see colours, and the values that are drawn."""

    landscape: Landscape
    legend: Sequence[LegendEntry]
    own: str | None
    n_empty: int
    data: str
    loan: Loan | None = None

    def letter(self, place: int | None) -> str:
        """The letter that the legend has for the winner of a cell."""
        return text.NONE if place is None else self.legend[place].letter


def map_view(service: Service, form: LayerForm, x: str, y: str) -> MapView:
    """Which variant wins over two axes, around the layer of a form.

    Raises
    ------
    InvalidInput, NoAdvice, UnknownDevice, ModelRejected
    """
    parameters = form.parameters(LandscapeParameters, x=member(Axis, "x", x), y=member(Axis, "y", y))
    landscape, advisor = survey_of(service, parameters)
    problem = landscape.problem
    ranked = favourites(model_of(advisor), problem.dtype, problem.layout)[:COLOURS]
    cells = [place for row in landscape.winners for place in row if place is not None]
    legend = [
        LegendEntry(name, _colour(name, ranked), _letter(place), cells.count(place) / max(len(cells), 1))
        for place, name in enumerate(landscape.variants)
    ]
    row = landscape.winners[landscape.y_values.index(landscape.y.of(problem))]
    own = row[landscape.x_values.index(landscape.x.of(problem))]
    n_empty = sum(place is None for row in landscape.winners for place in row)
    own_name = None if own is None else landscape.variants[own]
    query = {"dtype": problem.dtype, "layout": problem.layout, "device": advisor.device.id} | form.kept(*LIMITS)
    return MapView(landscape, legend, own_name, n_empty, _map_data(landscape, legend, query), advisor.loan)


def _map_data(landscape: Landscape, legend: Sequence[LegendEntry], query: Mapping[str, str]) -> str:
    """The drawing's data as JSON: the winner and the layer of each cell, and the query for advice on that layer."""
    problem = landscape.problem
    return json.dumps(
        {
            "x": {"name": landscape.x, "values": landscape.x_values, "at": landscape.x.of(problem)},
            "y": {"name": landscape.y, "values": landscape.y_values, "at": landscape.y.of(problem)},
            "variants": [{"name": entry.variant, "colour": entry.colour, "letter": entry.letter} for entry in legend],
            "winners": landscape.winners,
            "layers": [[_layer_at(landscape, x, y) for x in landscape.x_values] for y in landscape.y_values],
            "query": query,
        }
    )


def _layer_at(landscape: Landscape, x: int, y: int) -> str | None:
    """The brief name of the layer of a cell; None where there is no such layer."""
    try:
        return landscape.y.put(landscape.x.put(landscape.problem, x), y).brief
    except InvalidProblem:
        return None


def _colour(variant: str, ranked: Sequence[str]) -> int:
    return ranked.index(variant) + 1 if variant in ranked else 0


def _letter(place: int) -> str:
    """A, B, ..., Z, A1, B1, ..."""
    round_, letter = divmod(place, 26)
    return chr(ord("A") + letter) + (str(round_) if round_ else "")
