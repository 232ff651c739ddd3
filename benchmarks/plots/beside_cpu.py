"""The course's comparison of CPU with GPU (Univ. of Oregon 2019): serial, parallel, and our kernels on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.contest.choice import OURS
from benchmarks.cpu import CpuTimes
from benchmarks.measured import fastest_ms
from benchmarks.plots.algorithms import method_of
from benchmarks.plots.course import EXPERIMENTS, Experiment, panels_of
from benchmarks.plots.pages import table
from benchmarks.plots.style import METHOD_COLOURS
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.costs import Costs

METHODS: Final = {"direct": "cpu.direct", "FFT": "cpu.fft", "Winograd": "cpu.winograd"}
"""The methods of the course, and the serial variant of each."""

_STYLES: Final[tuple[Literal[":", "--", "-"], ...]] = (":", "--", "-")
"""Lines of one core, of all cores, and of the GPU."""

Line = tuple[float, float, float]
"""ms of one layer: serial, parallel, and the fastest of ours on the GPU; NaN where it was not timed."""


def beside_cpu_table(costs: Costs, cpu: CpuTimes) -> str:
    """A row a layer, with the times by method and how many times as fast as the parallel CPU the GPU is."""
    lines = {method: _lines(costs, cpu, method) for method in METHODS}
    rows = [
        (f"{title}: {label} {value(problem)}", *(_cell(lines[method][problem]) for method in METHODS))
        for title, (_, value, label), problem in _layers(costs, cpu)
    ]
    heading = f"{cpu.name}, {cpu.cores} cores; ms of one core, of all, and of the GPU, and the GPU against all cores."
    return f"{heading}\n\n{table(('layer', *METHODS), rows)}"


def beside_cpu(costs: Costs, cpu: CpuTimes) -> Figure:
    """Time over what each experiment varies: one core, all cores, and the fastest of ours of the same method."""
    figure = Figure(figsize=(9.5, 5.6), layout="constrained")
    for panel, experiment in panels_of(figure):
        layers = [problem for _, other, problem in _layers(costs, cpu) if other is experiment]
        for method in METHODS:
            _draw(panel, [experiment[1](problem) for problem in layers], _lines(costs, cpu, method), layers, method)
    handles = [Line2D([], [], color=METHOD_COLOURS[name], marker=".", label=name) for name in METHODS]
    labels = ("one core", f"{cpu.cores} cores", "ours on the GPU")
    handles += [
        Line2D([], [], color="black", linestyle=style, label=label)
        for style, label in zip(_STYLES, labels, strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False)
    figure.suptitle(f"float32 nchw: the course's experiments, {cpu.name} and GPU", x=0.01, ha="left")
    return figure


def _layers(costs: Costs, cpu: CpuTimes) -> Iterator[tuple[str, Experiment, ConvProblem]]:
    """The layers of each experiment that both were timed on, in the order of what it varies."""
    timed = {problem for problem, _ in cpu.time_ms}
    for title, experiment in EXPERIMENTS.items():
        is_meant, value, _ = experiment
        layers = [problem for problem in costs.problems if problem in timed and is_meant(problem)]
        yield from ((title, experiment, problem) for problem in sorted(layers, key=value))


def _lines(costs: Costs, cpu: CpuTimes, method: str) -> dict[ConvProblem, Line]:
    gpu_ms = fastest_ms(costs, [variant for variant in OURS if method_of(variant) == method])
    serial = METHODS[method]
    return {
        problem: (
            cpu.time_ms.get((problem, serial), np.nan),
            cpu.time_ms.get((problem, f"{serial}_parallel"), np.nan),
            float(ms) if np.isfinite(ms) else np.nan,
        )
        for problem, ms in zip(costs.problems, gpu_ms, strict=True)
    }


def _cell(line: Line) -> str:
    """``13.1 · 3.40 · 0.0102: 333×``; a dash for what was not timed."""
    text = " · ".join("-" if np.isnan(ms) else f"{ms:.3g}" for ms in line)
    ratio = line[1] / line[2]
    return text if np.isnan(ratio) else f"{text}: {ratio:,.{1 if ratio < 10 else 0}f}×"


def _draw(panel: Axes, x: list[int], lines: dict[ConvProblem, Line], layers: list[ConvProblem], method: str) -> None:
    for place, style in enumerate(_STYLES):
        y = [lines[problem][place] for problem in layers]
        panel.plot(x, y, style, color=METHOD_COLOURS[method], marker=".", linewidth=1)
    panel.set_xticks(x, [str(value) for value in x])
