"""How often each method is the fastest, over the 602 configurations, by filter size, dtype and layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.contest.choice import CUDNN, LIBRARIES, OURS
from benchmarks.measured import FILTERS, LEGACY, Known, is_where, times_of
from benchmarks.plots.algorithms import method_of
from benchmarks.plots.style import METHOD_COLOURS
from conv_advisor.models.costs import Costs

POOLS: Final = {"of cuDNN's legacy algorithms": LEGACY, "of everything": (*CUDNN, *OURS, *LIBRARIES)}
_HATCH: Final = {"ours": "////", "cuDNN": "", "cuBLAS": "\\\\"}

Method = tuple[str, str]
"""Whose it is, and the method."""


def shares(known: Known) -> Figure:
    """A bar a dtype, layout and filter size, of the share of its configurations that each method wins."""
    rows = [(column, size) for column in known for size in FILTERS]
    figure = Figure(figsize=(9.5, 0.6 + 0.22 * len(rows) + 1.0), layout="constrained")
    panels = figure.subplots(1, len(POOLS), sharey=True, squeeze=False)[0]
    drawn: dict[Method, None] = {}
    for panel, (title, pool) in zip(panels, POOLS.items(), strict=True):
        for y, (column, size) in enumerate(rows):
            drawn |= dict.fromkeys(_bar(panel, y, wins(known[column], size, pool)))
        panel.set_title(f"the fastest {title}", loc="left")
        panel.set_xlim(0, 100)
        panel.set_xlabel("% of configurations")
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
    labels = [f"{' '.join(column)}  {size}x{size}" for column, size in rows]
    panels[0].set_yticks(range(len(rows)), labels, fontsize=7)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    handles = [_patch(method) for method in sorted(drawn)]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle("How often each method is the fastest, of the configurations of a filter size", x=0.01, ha="left")
    return figure


def wins(costs: Costs, filter_size: int, pool: Sequence[str]) -> dict[Method, float]:
    """The share of the configurations of a filter size that each method wins, the largest first."""
    times = times_of(costs, pool)[is_where(costs, filters=[filter_size])]
    fastest = times.argmin(axis=1)[np.isfinite(times.min(axis=1))] if times.size else np.array([], dtype=int)
    counts = Counter((whose(pool[place]), method_of(pool[place])) for place in fastest.tolist())
    return {method: count / len(fastest) for method, count in counts.most_common()}


def whose(variant: str) -> str:
    """Whose a variant is: ours, cuDNN's, or that of the library behind ours."""
    return "cuBLAS" if variant in LIBRARIES else "ours" if variant in OURS else "cuDNN"


def _bar(panel: Axes, y: int, won: dict[Method, float]) -> list[Method]:
    left = 0.0
    ordered = sorted(won)
    for method in ordered:
        patch = _patch(method)
        panel.barh(
            y,
            100 * won[method],
            left=left,
            height=0.8,
            color=patch.get_facecolor(),
            hatch=patch.get_hatch(),
            edgecolor="white",
            linewidth=0.4,
        )
        left += 100 * won[method]
    return ordered


def _patch(method: Method) -> Patch:
    owner, name = method
    return Patch(
        facecolor=METHOD_COLOURS[name], edgecolor="white", linewidth=0.4, hatch=_HATCH[owner], label=f"{owner}, {name}"
    )
