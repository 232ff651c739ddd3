"""The figures and the table of docs/kernels.md, from measurements: ``python -m benchmarks.plots``; needs no GPU.

Run it again after a sweep: it draws every figure and rewrites the part of the page between the marks.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.contest.choice import CUDNN, LIBRARIES, OURS
from benchmarks.contest.rows import LEAST_GAIN, STANDARD_ERRORS
from benchmarks.contest.scores import COLUMNS, geometric_mean
from data import parquet
from data.errors import NotEnoughData
from data.networks import problems
from data.problem import ConvProblem, DType, Layout
from kernels.catalog import VARIANTS
from kernels.variant import Algorithm
from models.costs import Costs, from_table

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "kernels.md"
MARKS: Final = ("<!-- figures: written by python -m benchmarks.plots -->", "<!-- end of figures -->")
FILTERS: Final = (1, 3, 5)
MOST_SLOWDOWN: Final = 10.0
"""Where the axis of slowdowns ends."""

_OURS_COLOURS: Final = (
    *("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#6a3d9a", "#117733", "#b2182b"),
    *("#1b9e77", "#7570b3", "#a6761d", "#e7298a", "#66a61e", "#8c510a", "#01665e", "#5e3c99", "#c51b7d", "#35978f"),
)
"""Of our variants, in the order of the catalogue: a variant keeps its colour over all figures."""
_CUDNN_GROUPS: Final = {
    "cuDNN, graph engine": "#4d4d4d",
    "cuDNN, GEMM": "#8c8c8c",
    "cuDNN, Winograd": "#b5b5b5",
    "cuDNN, FFT": "#d9d9d9",
}
_LIBRARY_COLOUR: Final = "#d8cfa0"
_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "conv-advisor",
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, rewrite the page, and say what was written; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("--device", default="nvidia-h200")
    parser.add_argument("--timings", type=Path, default=ROOT / "data" / "timings", help="holds <device>/*.parquet")
    parser.add_argument("--page", type=Path, default=PAGE, help="figures go to the folder figures/ beside it")
    chosen = parser.parse_args(arguments)
    known = {}
    for column in COLUMNS:
        try:
            known[column] = load(chosen.timings / chosen.device, chosen.device, column)
        except NotEnoughData as error:
            print(f"no figure of {' '.join(column)}: {error}", file=sys.stderr)
    if not known:
        return 1
    folder = chosen.page.parent / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        for column, costs in known.items():
            for name in figures_of(costs):
                FIGURES[name](costs, column).savefig(folder / file_name(name, column), metadata={"Date": None})
    page = rewritten(chosen.page.read_text(encoding="utf-8"), known, chosen.device)
    chosen.page.write_text(page, encoding="utf-8")
    print(f"the figures of {len(known)} dtypes and layouts in {folder}, and their part of {chosen.page}")
    return 0


def load(folder: Path, device_id: str, column: tuple[str, str]) -> Costs:
    """What is known of the 602 configurations in one dtype and layout.

    Raises
    ------
    NotEnoughData
    """
    wanted = set(problems("seeds", dtypes=[DType(column[0])], layouts=[Layout(column[1])]))
    paths = [path for path in sorted(folder.glob("*.parquet")) if not path.name.endswith("picks.parquet")]
    which = [("dtype", "=", column[0]), ("layout", "=", column[1])]
    tables = [pq.read_table(path, columns=parquet.SCHEMA.names, filters=which) for path in paths]
    if not any(table.num_rows for table in tables):
        raise NotEnoughData(f"nothing in {folder}")
    costs = from_table(pa.concat_tables(tables), device_id).where(lambda problem: problem in wanted)
    if not costs.problems:
        raise NotEnoughData("none of the 602 configurations")
    return costs


def best_of(costs: Costs, variants: Iterable[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The fastest among some variants on each problem.

    Returns
    -------
    place : int64 array of shape (P,)
        In ``costs.variants``.
    time_ms, noise : float64 array of shape (P,)
        Infinite and 0 where none of them was timed.
    """
    wanted = np.isin(costs.variants, list(variants))
    times = np.where(np.isnan(costs.time_ms) | costs.is_pruned | ~wanted, np.inf, costs.time_ms)
    place = times.argmin(axis=1)
    rows = np.arange(len(costs.problems))
    return place, times[rows, place], np.nan_to_num(costs.noise[rows, place])


def is_win(costs: Costs) -> np.ndarray:
    """Whether ours is more than 3 % faster than cuDNN beyond noise, as `benchmarks.contest.rows` has it; shape (P,)."""
    _, ours_ms, ours_noise = best_of(costs, OURS)
    _, cudnn_ms, cudnn_noise = best_of(costs, CUDNN)
    bar_ms = np.where(np.isfinite(ours_ms), ours_ms, 0) * (1 + LEAST_GAIN)
    won: np.ndarray = cudnn_ms - bar_ms > STANDARD_ERRORS * np.hypot(cudnn_ms * cudnn_noise, bar_ms * ours_noise)
    won &= np.isfinite(ours_ms)
    return won


def colour_of(variant: str) -> tuple[str, str]:
    """The colour of a variant, and what its legend says: cuDNN's go together by method."""
    if variant in LIBRARIES:
        return _LIBRARY_COLOUR, f"{variant} ({LIBRARIES[variant]})"
    if variant in OURS:
        return _OURS_COLOURS[OURS.index(variant) % len(_OURS_COLOURS)], variant
    method = {Algorithm.ENGINE: "graph engine", Algorithm.WINOGRAD: "Winograd", Algorithm.FFT: "FFT"}
    label = f"cuDNN, {method.get(VARIANTS[variant].algorithm, 'GEMM')}"
    return _CUDNN_GROUPS[label], label


def winners(costs: Costs, column: tuple[str, str]) -> Figure:
    """The fastest variant of every layer at every batch; a panel a filter size."""
    place, _, _ = best_of(costs, [*OURS, *CUDNN, *LIBRARIES])
    colours = list(dict.fromkeys(colour_of(variant) for variant in (*OURS, *LIBRARIES, *CUDNN)))
    there = {colour_of(costs.variants[each]) for each in place}
    batches = sorted({problem.n for problem in costs.problems})
    figure = Figure(figsize=(9.5, 8.6), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(32, 10))
    panels = {1: grid[:, 0], 3: grid[0, 1], 5: grid[1, 1]}
    for filter_size in FILTERS:
        layers = sorted({_layer(p) for p in costs.problems if p.r == filter_size}, reverse=True)
        cells = np.full((len(layers), len(batches)), np.nan)
        for problem, each in zip(costs.problems, place, strict=True):
            if problem.r == filter_size:
                cell = layers.index(_layer(problem)), batches.index(problem.n)
                cells[cell] = colours.index(colour_of(costs.variants[each]))
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


def speedups(costs: Costs, column: tuple[str, str]) -> Figure:
    """Time of the best of cuDNN over the best of ours, layer by layer; a panel a filter size."""
    place, ours_ms, _ = best_of(costs, OURS)
    _, cudnn_ms, _ = best_of(costs, CUDNN)
    batches = sorted({problem.n for problem in costs.problems})
    figure = Figure(figsize=(9.5, 6.5), layout="constrained")
    panels = figure.subplots(len(FILTERS), sharex=True, sharey=True, squeeze=False)[:, 0]
    drawn: dict[str, str] = {}
    for panel, filter_size in zip(panels, FILTERS, strict=True):
        layers = sorted({_layer(problem) for problem in costs.problems if problem.r == filter_size})
        for row, problem in enumerate(costs.problems):
            if problem.r != filter_size or not np.isfinite(ours_ms[row]) or not np.isfinite(cudnn_ms[row]):
                continue
            x = batches.index(problem.n) + 0.06 + 0.88 * layers.index(_layer(problem)) / max(1, len(layers) - 1)
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


def slowdowns(costs: Costs, column: tuple[str, str]) -> Figure:
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
    """The figures that there is something to draw in: where nothing is ours, there is nothing to compare."""
    return [name for name in FIGURES if name != "speedups" or np.isfinite(best_of(costs, OURS)[1]).any()]


def file_name(figure: str, column: tuple[str, str]) -> str:
    """Where a figure is, in the folder of figures."""
    return f"{figure}-{'-'.join(column)}.svg"


def rewritten(page: str, known: dict[tuple[str, str], Costs], device: str) -> str:
    """The page with its part between the marks written anew."""
    begin, end = MARKS
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page needs one line {begin!r} and one {end!r}")
    parts = [begin, f"Over the 602 configurations on {device}, as the shipped sweep measured them:", table(known)]
    for column, costs in known.items():
        title = " ".join(column)
        parts += [f"### {title}", class_table(costs)]
        parts += [f"![{CAPTIONS[name]}: {title}](figures/{file_name(name, column)})" for name in figures_of(costs)]
    return re.sub(f"{re.escape(begin)}.*{re.escape(end)}", lambda _: "\n\n".join([*parts, end]), page, flags=re.DOTALL)


CAPTIONS: Final = {
    "winners": "The fastest variant of each layer at each batch",
    "speedups": "Time of the best of cuDNN over the best of ours",
    "slowdowns": "Slowdown of each of our variants against the fastest of all",
}


def table(known: dict[tuple[str, str], Costs]) -> str:
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
        one_image = [each for each, p in zip(ratio, costs.problems, strict=True) if p.n == 1 and 0 < each < np.inf]
        counts = {v: int((won & (place == index)).sum()) for index, v in enumerate(costs.variants)}
        by_variant = ", ".join(f"`{v}` {counts[v]}" for v in sorted(counts, key=lambda v: -counts[v]) if counts[v])
        better = geometric_mean([max(1.0, each) for each in ratio if each < np.inf])
        lines.append(
            f"| {' '.join(column)} | {len(costs.problems)} | {100 * won.mean():.0f} % | {better:.2f} "
            f"| {_number(geometric_mean(one_image))} | {by_variant or '-'} |"
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
            there = [each for each in ratio[mine] if 0 < each < np.inf]
            share = f" ({100 * won[mine].mean():.0f} %)" if there else ""
            cells.append(_number(geometric_mean(there)) + share)
        lines.append(f"| {filter_size}x{filter_size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.2f}"


def _layer(problem: ConvProblem) -> tuple[int, int, int]:
    return problem.h, problem.k, problem.c


def _mean(values: np.ndarray) -> float:
    """Geometric mean of those that are known, where that is at least half of them."""
    there = values[~np.isnan(values)]
    return geometric_mean(list(there)) if 2 * len(there) >= len(values) else float("nan")


if __name__ == "__main__":
    sys.exit(main())
