"""The figures of the course's experiments (Univ. of Oregon 2019), of what was measured on the GPU: ms, log axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.contest.choice import CUDNN, OURS
from benchmarks.measured import fastest_ms
from benchmarks.plots.algorithms import method_of
from benchmarks.plots.style import METHOD_COLOURS
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.costs import Costs

Experiment = tuple[Callable[[ConvProblem], bool], Callable[[ConvProblem], int], str]
"""Which layers, what is on the x axis, and what it is called."""


def _input_layers(filter_size: int) -> Experiment:
    return lambda p: p.c == 3 and p.r == filter_size, lambda p: p.h, "size"


EXPERIMENTS: Final[dict[str, Experiment]] = {
    **{f"input layers, depth 3, {r}x{r}": _input_layers(r) for r in (3, 5, 7)},
    "feature layers, 16x16, 3x3": (lambda p: p.h == 16 and p.r == 3, lambda p: p.c, "depth"),
    "one plane of 512x512, one filter": (lambda p: p.h == 512 and p.c == p.k == 1, lambda p: p.r, "filter size"),
}
METHODS: Final = ("direct", "FFT", "Winograd", "implicit GEMM")


def course(costs: Costs) -> Figure:
    """Time of our kernels by method, and of the best of cuDNN, over what each experiment varies."""
    figure = Figure(figsize=(9.5, 5.6), layout="constrained")
    lines = {name: fastest_ms(costs, [v for v in OURS if method_of(v) == name]) for name in METHODS}
    for panel, experiment in panels_of(figure):
        _experiment(panel, costs, experiment, lines)
    handles = [Line2D([], [], color=METHOD_COLOURS[name], marker=".", label=f"ours, {name}") for name in METHODS]
    handles.append(Line2D([], [], color="black", marker=".", linestyle="--", label="best of cuDNN"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle("float32 nchw: the course's experiments, batch 1", x=0.01, ha="left")
    return figure


def panels_of(figure: Figure) -> Iterator[tuple[Axes, Experiment]]:
    """A panel for each experiment, in ms over what it varies."""
    grid = figure.add_gridspec(2, 6)
    cells = [grid[0, 0:2], grid[0, 2:4], grid[0, 4:6], grid[1, 0:3], grid[1, 3:6]]
    for cell, (title, experiment) in zip(cells, EXPERIMENTS.items(), strict=True):
        panel = figure.add_subplot(cell)
        panel.set_title(title, loc="left")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlabel(experiment[2])
        panel.set_ylabel("ms")
        panel.grid(axis="y", color="#e0e0e0", linewidth=0.5)
        yield panel, experiment
        panel.minorticks_off()


def _experiment(panel: Axes, costs: Costs, experiment: Experiment, lines: dict[str, np.ndarray]) -> None:
    is_meant, value, _ = experiment
    rows = [row for row, problem in enumerate(costs.problems) if is_meant(problem)]
    rows.sort(key=lambda row: value(costs.problems[row]))
    x = [value(costs.problems[row]) for row in rows]
    for name, times_ms in lines.items():
        _plot(panel, x, times_ms[rows], METHOD_COLOURS[name], "-")
    _plot(panel, x, fastest_ms(costs, CUDNN)[rows], "black", "--")
    panel.set_xticks(x, [str(tick) for tick in x])


def _plot(panel: Axes, x: list[int], y: np.ndarray, colour: str, style: str) -> None:
    panel.plot(x, np.where(np.isfinite(y), y, np.nan), style, color=colour, marker=".", linewidth=1)
