"""Depth against filters on tensor cores: the study's four numbers beside all pairs of layers that were measured."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.guidelines.growth import STUDIED, Growth, Varied, growth_of
from benchmarks.plots.pages import number, table
from conv_advisor.models.costs import Costs

FILTER_SIZE: Final = 3
"""Where the study compared depth and filters."""
_COLOURS: Final = {Varied.DEPTH: "#0072b2", Varied.FILTERS: "#d55e00"}


def growth(costs: Costs) -> Figure | None:
    """How much longer a layer takes that is deeper, or has more filters; a panel a variant, one deviation shaded.

    Parameters
    ----------
    costs : Costs
        In float16 and NCHW.
    """
    if not any(len(_measured(costs, variant, varied).factors) for variant in STUDIED for varied in Varied):
        return None
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    panels = figure.subplots(1, len(STUDIED), sharey=True)
    for panel, (variant, studied) in zip(panels, STUDIED.items(), strict=True):
        for varied in Varied:
            _draw(panel, _measured(costs, variant, varied), varied)
            panel.plot(studied[varied].factors, studied[varied].ratios, "*", color=_COLOURS[varied], markersize=10)
        _axes(panel, variant)
    panels[0].set_ylabel("time of the larger / of the smaller")
    panels[0].plot([], [], "*", color="#606060", markersize=10, label="the study's main kernel, V100")
    panels[0].legend(frameon=False, loc="upper left")
    figure.suptitle(
        f"float16 nchw, {FILTER_SIZE}x{FILTER_SIZE}: pairs of layers alike but for one size", x=0.01, ha="left"
    )
    return figure


def growth_table(costs: Costs) -> str:
    """How much longer twice the depth and twice the filters take, by the study and here, and which takes more."""
    rows = [[f"`{variant}`", *_cells(costs, variant)] for variant in STUDIED]
    head = ["float16 NCHW, 3×3", "twice the depth, V100", "here", "twice the filters, V100", "here", "pairs"]
    deeper, wider = (
        _mean([_measured(costs, variant, varied).a_doubling for variant in STUDIED])
        for varied in (Varied.DEPTH, Varied.FILTERS)
    )
    degree = "more" if deeper > wider else "less"
    text = (
        f"Over both, a doubling of the depth takes {number(deeper)} times as long and one of the filters"
        f" {number(wider)} times: on this device the depth matters {degree} than the filters."
    )
    return f"{table(head, rows)}\n\n{text}" if math.isfinite(deeper * wider) else table(head, rows)


def _measured(costs: Costs, variant: str, varied: Varied) -> Growth:
    return growth_of(costs, variant, varied, FILTER_SIZE)


def _cells(costs: Costs, variant: str) -> list[str]:
    here = {varied: _measured(costs, variant, varied) for varied in Varied}
    doublings = [
        number(pairs.a_doubling)
        for varied in (Varied.DEPTH, Varied.FILTERS)
        for pairs in (STUDIED[variant][varied], here[varied])
    ]
    return [*doublings, " and ".join(str(len(here[varied].factors)) for varied in (Varied.DEPTH, Varied.FILTERS))]


def _mean(values: list[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values))


def _draw(panel: Axes, all_pairs: Growth, varied: Varied) -> None:
    """Draw every pair as a dot, and the geometric mean of the pairs of a factor with one deviation to each side."""
    colour = _COLOURS[varied]
    panel.plot(all_pairs.factors, all_pairs.ratios, ".", color=colour, alpha=0.25, markersize=4, linewidth=0)
    logs = np.log2(all_pairs.ratios)
    groups = [(factor, logs[all_pairs.factors == factor]) for factor in sorted(set(all_pairs.factors.tolist()))]
    groups = [(factor, group) for factor, group in groups if len(group) > 1]
    x = [factor for factor, _ in groups]
    middle, reach = (np.array([function(group) for _, group in groups]) for function in (np.mean, np.std))
    panel.plot(x, 2**middle, "-", color=colour, linewidth=1.4, label=f"{varied}, measured here")
    panel.fill_between(x, 2 ** (middle - reach), 2 ** (middle + reach), color=colour, alpha=0.15, linewidth=0)


def _axes(panel: Axes, title: str) -> None:
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.set_xticks([2, 4, 8, 16], ["2", "4", "8", "16"])
    panel.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    panel.minorticks_off()
    panel.set_title(title, loc="left")
    panel.set_xlabel("how many times as deep, or as many filters")
    panel.axhline(1, color="black", linewidth=0.6)
    panel.grid(color="#e0e0e0", linewidth=0.5)
    panel.set_axisbelow(True)
