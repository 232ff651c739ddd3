"""A figure of values over the 602 configurations, in the papers' order: a panel a filter size, lines over batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.measured import FILTERS, Column, layer_of
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.costs import Costs

MOST_NORMALISED: Final = 10.0
"""Where the axis of normalised times ends; lines leave the panel there."""
NORMALISED: Final = (0.86, MOST_NORMALISED)
"""The axis of normalised times."""
_RIBBON: Final = (0.89, 0.96)
"""The ribbon below the line of the fastest, in the colour of the fastest."""

_BAND_ALPHA: Final = 0.3

Style = Literal["-", ":"]


@dataclass(frozen=True)
class Line:
    """One line of a figure: a value for every problem, NaN where there is none.

    Parameters
    ----------
    label : str
    values : float64 array of shape (P,)
    colour : str
    style : str
    width : float
    deviation : float64 array of shape (P,), optional
        Relative standard deviation of the values: a band of one to each side is shaded where it is known.
    """

    label: str
    values: np.ndarray
    colour: str
    style: Style = "-"
    width: float = 0.9
    deviation: np.ndarray | None = None


def over_configurations(
    costs: Costs, column: Column, lines: Iterable[Line], title: str, unit: str, limits: tuple[float, float]
) -> Figure | None:
    """A panel a filter size; x is the batch and, within one, the layers by size, filters and depth."""
    drawn = [line for line in lines if not np.isnan(line.values).all()]
    if not drawn:
        return None
    batches = sorted({problem.n for problem in costs.problems})
    figure = Figure(figsize=(9.5, 7.4), layout="constrained")
    panels = figure.subplots(len(FILTERS), squeeze=False)[:, 0]
    for panel, filter_size in zip(panels, FILTERS, strict=True):
        layers = sorted({layer_of(problem) for problem in costs.problems if problem.r == filter_size})
        if layers:
            points = [_points(costs.problems, line.values, filter_size, layers, batches) for line in drawn]
            for line, (x, y) in zip(drawn, points, strict=True):
                panel.plot(x, y, line.style, color=line.colour, linewidth=line.width)
                if line.deviation is not None:
                    _, reach = _points(costs.problems, line.values * line.deviation, filter_size, layers, batches)
                    panel.fill_between(x, y - reach, y + reach, color=line.colour, alpha=_BAND_ALPHA, linewidth=0)
            if limits == NORMALISED:
                _ribbon(panel, points, [line.colour for line in drawn])
        _axes(panel, f"{filter_size}x{filter_size}, {len(layers)} layers", unit, limits)
        _ticks(panel, [size for size, _, _ in layers], batches)
    panels[-1].set_xlabel("batch; within one, layers by size (small figures, at the first), filters, depth")
    handles = [Line2D([], [], color=x.colour, linestyle=x.style, linewidth=1.6, label=x.label) for x in drawn]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(f"{' '.join(column)}: {title}", x=0.01, ha="left")
    return figure


def _points(
    problems: Sequence[ConvProblem],
    values: np.ndarray,
    filter_size: int,
    layers: Sequence[tuple[int, int, int]],
    batches: Sequence[int],
) -> tuple[np.ndarray, np.ndarray]:
    """Where a line goes, with a gap between batches."""
    x = np.array([n + _place(place, len(layers)) for n in range(len(batches)) for place in range(len(layers) + 1)])
    y = np.full(len(x), np.nan)
    for problem, value in zip(problems, values, strict=True):
        if problem.r == filter_size:
            y[batches.index(problem.n) * (len(layers) + 1) + layers.index(layer_of(problem))] = value
    return x, y


def _ribbon(panel: Axes, points: Sequence[tuple[np.ndarray, np.ndarray]], colours: Sequence[str]) -> None:
    """A ribbon in the colour of the fastest line; neighbours of one colour are one piece."""
    x, values = points[0][0], np.array([y for _, y in points])
    there = ~np.isnan(values).all(axis=0)
    fastest = np.where(there, np.where(np.isnan(values), np.inf, values).argmin(axis=0), -1)
    starts = np.flatnonzero(np.diff(fastest, prepend=-2))
    ends = np.append(starts[1:], len(fastest)) - 1
    step = 2 * x[0]
    bottom, top = _RIBBON
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if fastest[start] >= 0:
            where = [(x[start] - step / 2, x[end] - x[start] + step)]
            panel.broken_barh(where, (bottom, top - bottom), color=colours[fastest[start]], linewidth=0)


def _place(place: float, n_layers: int) -> float:
    """Where a layer stands in the interval of its batch, from 0 to 1; between two layers it is halfway."""
    return (place + 0.5) / n_layers


def _axes(panel: Axes, title: str, unit: str, limits: tuple[float, float]) -> None:
    panel.set_yscale("log", base=2 if limits[0] * limits[1] == 1 else 10)
    panel.set_ylim(*limits)
    if limits[1] == MOST_NORMALISED:
        panel.set_yticks([1, 1.5, 2, 3, 5, 10], ["1", "1.5", "2", "3", "5", "10"])
    else:
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.minorticks_off()
    if unit != "MiB":
        panel.axhline(1, color="black", linewidth=0.6)
    panel.set_title(title, loc="left")
    panel.set_ylabel(unit)
    panel.grid(axis="y", color="#e0e0e0", linewidth=0.5)
    panel.set_axisbelow(True)


def _ticks(panel: Axes, sizes: Sequence[int], batches: Sequence[int]) -> None:
    """Batches below the axis; a line wherever the size of the layers changes, and the sizes at the first batch."""
    starts = [place for place, size in enumerate(sizes) if place == 0 or sizes[place - 1] != size]
    changes = [n + _place(place - 0.5, len(sizes)) for n in range(len(batches)) for place in starts if place]
    across = panel.get_xaxis_transform()
    panel.vlines(changes, 0, 1, transform=across, color="#e4e4e4", linewidth=0.5, zorder=0)
    panel.vlines(range(1, len(batches)), 0, 1, transform=across, color="#909090", linewidth=0.6)
    labels = [str(sizes[place]) for place in starts]
    panel.set_xticks([_place(place, len(sizes)) for place in starts], labels, minor=True, fontsize=4.5)
    panel.tick_params(axis="x", which="minor", length=0, pad=1, rotation=90)
    panel.set_xlim(0, max(1, len(batches)))
    panel.set_xticks(np.arange(len(batches)) + 0.5, [str(n) for n in batches])
    panel.tick_params(axis="x", which="major", length=0, pad=9)
