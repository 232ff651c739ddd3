"""The figures and the table of docs/kernels.md: where each of our kernels wins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.contest.choice import CUDNN, LIBRARIES, OURS
from benchmarks.contest.scores import COLUMNS, geometric_mean
from benchmarks.measured import FILTERS, Column, Known, best_of, is_win, layer_of
from benchmarks.plots.figures import Drawing, place_of
from benchmarks.plots.pages import number, rewritten
from benchmarks.plots.style import colour_of
from conv_advisor.models.costs import Costs

MOST_SLOWDOWN: Final = 10.0
"""Where the axis of slowdowns ends."""


def winners(costs: Costs, column: Column) -> Figure:
    """The fastest variant of every layer at every batch; a panel a filter size."""
    place, _, _ = best_of(costs, [*OURS, *CUDNN, *LIBRARIES])
    colours = list(dict.fromkeys(colour_of(variant) for variant in (*OURS, *LIBRARIES, *CUDNN)))
    there = {colour_of(costs.variants[index]) for index in place}
    batches = sorted({problem.n for problem in costs.problems})
    figure = Figure(figsize=(9.5, 8.6), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(32, 10))
    panels = {1: grid[:, 0], 3: grid[0, 1], 5: grid[1, 1]}
    for filter_size in FILTERS:
        layers = sorted({layer_of(p) for p in costs.problems if p.r == filter_size}, reverse=True)
        cells = np.full((len(layers), len(batches)), np.nan)
        for problem, index in zip(costs.problems, place, strict=True):
            if problem.r == filter_size:
                cell = layers.index(layer_of(problem)), batches.index(problem.n)
                cells[cell] = colours.index(colour_of(costs.variants[index]))
        panel = figure.add_subplot(panels[filter_size])
        if layers:
            palette = ListedColormap([colour for colour, _ in colours])
            panel.pcolormesh(cells, cmap=palette, vmin=-0.5, vmax=len(colours) - 0.5, edgecolors="white", linewidth=0.6)
        panel.set_title(f"{filter_size}x{filter_size}", loc="left")
        panel.set_yticks(np.arange(len(layers)) + 0.5, ["-".join(map(str, layer)) for layer in layers], fontsize=6)
        panel.set_xticks(np.arange(len(batches)) + 0.5, [str(n) for n in batches])
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
        panel.set_xlabel("batch")
    figure.legend(
        handles=[Patch(color=colour, label=label) for colour, label in colours if (colour, label) in there],
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
    figure.suptitle(f"{' '.join(column)}: the fastest variant of each layer (size-filters-depth)", x=0.01, ha="left")
    return figure


def speedups(costs: Costs, column: Column) -> Figure:
    """Time of the best of cuDNN over the best of ours, layer by layer; a panel a filter size."""
    place, ours_ms, _ = best_of(costs, OURS)
    _, cudnn_ms, _ = best_of(costs, CUDNN)
    batches = sorted({problem.n for problem in costs.problems})
    figure = Figure(figsize=(9.5, 6.5), layout="constrained")
    panels = figure.subplots(len(FILTERS), sharex=True, sharey=True, squeeze=False)[:, 0]
    drawn: dict[str, str] = {}
    for panel, filter_size in zip(panels, FILTERS, strict=True):
        layers = sorted({layer_of(problem) for problem in costs.problems if problem.r == filter_size})
        for row, problem in enumerate(costs.problems):
            if problem.r != filter_size or not np.isfinite(ours_ms[row]) or not np.isfinite(cudnn_ms[row]):
                continue
            x = batches.index(problem.n) + 0.06 + 0.88 * layers.index(layer_of(problem)) / max(1, len(layers) - 1)
            colour, label = colour_of(costs.variants[place[row]])
            drawn[label] = colour
            panel.plot(x, cudnn_ms[row] / ours_ms[row], ".", color=colour, markersize=4, markeredgewidth=0)
        _speedup_axes(panel, filter_size, len(layers), batches)
    panels[-1].set_xlabel("batch; within one, layers by size, filters, depth")
    handles = [Line2D([], [], color=c, marker=".", linestyle="", label=name) for name, c in drawn.items()]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"{' '.join(column)}: time of the best of cuDNN over the best of ours", x=0.01, ha="left")
    return figure


def _speedup_axes(panel: Axes, filter_size: int, n_layers: int, batches: Sequence[int]) -> None:
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.axhline(1, color="black", linewidth=0.8)
    panel.set_title(f"{filter_size}x{filter_size}, {n_layers} layers", loc="left")
    panel.set_ylabel("cuDNN / ours")
    panel.grid(axis="y", color="#e0e0e0", linewidth=0.5)
    panel.set_axisbelow(True)
    for edge in range(1, len(batches)):
        panel.axvline(edge, color="#e0e0e0", linewidth=0.5)
    panel.set_xlim(0, max(1, len(batches)))
    panel.set_xticks(np.arange(len(batches)) + 0.5, [str(n) for n in batches])
    panel.tick_params(axis="x", length=0)


def slowdowns(costs: Costs, column: Column) -> Figure:
    """How far each of our variants is behind the fastest of all, by batch; a panel a filter size."""
    slowdown = np.exp(costs.log_slowdown(np.log(MOST_SLOWDOWN)))
    best_ms = costs.best_ms
    batches = sorted({problem.n for problem in costs.problems})
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    panels = figure.subplots(1, len(FILTERS), sharey=True, squeeze=False)[0]
    drawn: dict[str, tuple[str, str]] = {}
    for panel, filter_size in zip(panels, FILTERS, strict=True):
        of_batch = [
            np.array([p.r == filter_size and p.n == n for p in costs.problems], dtype=bool).nonzero()[0]
            for n in batches
        ]
        lines = {v: [_mean(slowdown[rows, costs.variants.index(v)]) for rows in of_batch] for v in costs.variants}
        cudnn_ms = best_of(costs, CUDNN)[1]
        behind = np.minimum(cudnn_ms / best_ms, MOST_SLOWDOWN)
        panel.plot(range(len(batches)), [_mean(behind[rows]) for rows in of_batch], color="black", linewidth=1.6)
        for variant in (*OURS, *LIBRARIES):
            values = lines.get(variant, [])
            if not np.isnan(values).all():
                style = "--" if variant in LIBRARIES else "-"
                colour, label = drawn[variant] = colour_of(variant)
                panel.plot(range(len(batches)), values, style, color=colour, marker=".", linewidth=1, label=label)
        panel.set_yscale("log")
        panel.set_ylim(0.97, MOST_SLOWDOWN * 1.05)
        panel.set_yticks([1, 1.5, 2, 3, 5, MOST_SLOWDOWN], ["1", "1.5", "2", "3", "5", f"{MOST_SLOWDOWN:g}"])
        panel.minorticks_off()
        panel.grid(axis="y", color="#e0e0e0", linewidth=0.5)
        panel.set_title(f"{filter_size}x{filter_size}", loc="left")
        panel.set_xticks(range(len(batches)), [str(n) for n in batches])
        panel.set_xlabel("batch")
    panels[0].set_ylabel("time over that of the fastest")
    handles = [Line2D([], [], color="black", linewidth=1.6, label="best of cuDNN")]
    handles += [Line2D([], [], color=colour, marker=".", label=label) for colour, label in drawn.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"{' '.join(column)}: slowdown against the fastest of all, geometric mean", x=0.01, ha="left")
    return figure


FIGURES: Final = {"winners": winners, "speedups": speedups, "slowdowns": slowdowns}


def figures_of(costs: Costs) -> list[str]:
    """The figures that have something to draw: where nothing is ours, there is nothing to compare."""
    return [name for name in FIGURES if name != "speedups" or np.isfinite(best_of(costs, OURS)[1]).any()]


def groups(known: Known) -> list[str]:
    """The groups of figures on the page, one a dtype and layout."""
    return [" ".join(column) for column in COLUMNS if column in known]


def draw(known: Known) -> Iterator[Drawing]:
    """Every figure of the page."""
    for column in COLUMNS:
        for name in figures_of(known[column]) if column in known else ():
            title = " ".join(column)
            figure = FIGURES[name](known[column], column)
            yield Drawing(title, f"{name}-{'-'.join(column)}", f"{CAPTIONS[name]}: {title}", figure)


def write(known: Known, docs: Path, device_id: str) -> None:
    """Rewrite the tables of the page, with places for its figures."""
    shown = {column: known[column] for column in COLUMNS if column in known}
    page = docs / "kernels.md"
    parts = {"where each wins": part(shown, device_id)}
    page.write_text(rewritten(page.read_text(encoding="utf-8"), parts), encoding="utf-8")


def part(known: Known, device_id: str) -> str:
    """The part of the page between its marks."""
    parts = [f"Over the 602 configurations on {device_id}, as the shipped sweep measured them:", table(known)]
    for column, costs in known.items():
        title = " ".join(column)
        parts += [f"### {title}", class_table(costs), place_of(title)]
    return "\n\n".join(parts)


CAPTIONS: Final = {
    "winners": "The fastest variant of each layer at each batch",
    "speedups": "Time of the best of cuDNN over the best of ours",
    "slowdowns": "Slowdown of each of our variants against the fastest of all",
}


def table(known: Known) -> str:
    """A line a dtype and layout: how often ours wins, by how much, and with which variants."""
    lines = [
        "| | layers | ours wins | geometric mean | batch 1 | wins by variant |",
        "|---|---|---|---|---|---|",
    ]
    for column, costs in known.items():
        place, ours_ms, _ = best_of(costs, OURS)
        _, cudnn_ms, _ = best_of(costs, CUDNN)
        won = is_win(costs)
        ratio = cudnn_ms / ours_ms
        one_image = [gain for gain, p in zip(ratio, costs.problems, strict=True) if p.n == 1 and 0 < gain < np.inf]
        counts = {v: int((won & (place == index)).sum()) for index, v in enumerate(costs.variants)}
        by_variant = ", ".join(f"`{v}` {counts[v]}" for v in sorted(counts, key=lambda v: -counts[v]) if counts[v])
        better = geometric_mean([max(1.0, gain) for gain in ratio if gain < np.inf])
        lines.append(
            f"| {' '.join(column)} | {len(costs.problems)} | {100 * won.mean():.0f} % | {better:.2f} "
            f"| {number(geometric_mean(one_image))} | {by_variant or '-'} |"
        )
    return "\n".join(lines)


def class_table(costs: Costs) -> str:
    """Time of cuDNN over ours, and how often ours wins, a line a filter size and a column a batch."""
    ratio, won = best_of(costs, CUDNN)[1] / best_of(costs, OURS)[1], is_win(costs)
    batches = sorted({problem.n for problem in costs.problems})
    lines = [f"| cuDNN / ours (wins) | {' | '.join(f'batch {n}' for n in batches)} |", f"|---|{'---|' * len(batches)}"]
    for filter_size in FILTERS:
        cells = []
        for n in batches:
            mine = np.array([p.r == filter_size and p.n == n for p in costs.problems], dtype=bool)
            there = [gain for gain in ratio[mine] if 0 < gain < np.inf]
            share = f" ({100 * won[mine].mean():.0f} %)" if there else ""
            cells.append(number(geometric_mean(there)) + share)
        lines.append(f"| {filter_size}x{filter_size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(values: np.ndarray) -> float:
    """Geometric mean of the known values, where they are at least half of all."""
    there = values[~np.isnan(values)]
    return geometric_mean(list(there)) if 2 * len(there) >= len(values) else float("nan")
