"""The tables that `benchmarks.kernels` prints, as Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from benchmarks.contest.rows import Row
from benchmarks.contest.scores import (
    COLUMNS,
    H200,
    N_CONFIGURATIONS,
    TARGETS,
    Peaks,
    Target,
    breakdown,
    geometric_mean,
    roofline,
    score,
)
from conv_advisor.data.measurement import L2State
from conv_advisor.data.problem import ConvProblem

N_LAYERS: Final = 10


def report(rows: Sequence[Row], l2: L2State, *, peaks: Peaks = H200, n_layers: int = N_LAYERS) -> str:
    """Everything there is to say of one L2 state."""
    mine = [row for row in rows if row.l2 is l2]
    parts = [f"## {l2} L2", target_table(mine), breakdown_table(mine), variant_table(mine)]
    for column in COLUMNS:
        of_column = [row for row in mine if row.column == column]
        if any(row.speedup for row in of_column):
            parts += [
                f"{column[0]} {column[1]}, {l2} L2: the {n_layers} best and the {n_layers} worst layers",
                layer_table(of_column, peaks, n_layers),
            ]
    return "\n\n".join(part for part in parts if part)


def target_table(rows: Sequence[Row]) -> str:
    """What is reached beside its target; a line a dtype and layout."""
    head = ("", "layers", "wins", "geometric mean", "batch 1", "batch 1 best", "batch 1 wins")
    lines = []
    for column in COLUMNS:
        mine = [row for row in rows if row.column == column]
        result, target = score(mine), TARGETS.get(column, Target())
        if not result.rows:
            continue
        layers = f"{result.rows} of {N_CONFIGURATIONS}" if result.rows != N_CONFIGURATIONS else f"{result.rows}"
        if result.without_ours:
            layers += f", {result.without_ours} without ours"
        lines.append(
            (
                " ".join(column),
                layers,
                reached(result.wins, target.wins, percent),
                reached(result.gain, target.gain, times),
                reached(result.one_image, target.one_image, times),
                reached(result.one_image_best, target.one_image_best, times),
                reached(result.one_image_wins, target.one_image_wins, percent),
            )
        )
    return markdown(head, lines)


def breakdown_table(rows: Sequence[Row]) -> str:
    """Wins, gain and time ratio by filter size and batch class; a block of lines a dtype and layout."""
    head = ("", "filter", "batch", "layers", "wins", "geometric mean", "ours against cuDNN", "worst")
    lines = []
    for column in COLUMNS:
        for (filter_size, batches), group in breakdown(row for row in rows if row.column == column).items():
            result = score(group)
            ratios = [row.speedup for row in group if row.speedup is not None]
            if result.rows:
                worst = min(ratios, default=math.nan)
                lines.append(
                    (
                        *(" ".join(column), f"{filter_size}x{filter_size}", batches, str(result.rows)),
                        *(percent(result.wins), times(result.gain), times(geometric_mean(ratios)), times(worst)),
                    )
                )
    return markdown(head, lines)


def variant_table(rows: Sequence[Row]) -> str:
    """How often each of our variants is the chosen one, how often it wins, and how often it failed."""
    chosen = Counter((row.column, row.ours.variant) for row in rows if row.ours)
    wins = Counter((row.column, row.ours.variant) for row in rows if row.ours and row.is_win)
    failed = Counter(
        (row.column, name.split()[0], why.split(":")[0]) for row in rows for name, why in row.failures.items()
    )
    lines = [
        (" ".join(column), variant, str(chosen[column, variant]), str(wins[column, variant]))
        for column in COLUMNS
        for variant in sorted({name for of, name in chosen if of == column}, key=lambda v: -chosen[column, v])
    ]
    text = markdown(("", "variant", "our fastest", "wins"), lines)
    if not failed:
        return text
    failures = [(" ".join(column), name, outcome, str(count)) for (column, name, outcome), count in failed.items()]
    return f"{text}\n\n{markdown(('', 'failed', 'outcome', 'layers'), sorted(failures))}"


def layer_table(rows: Sequence[Row], peaks: Peaks, n_layers: int) -> str:
    """The layers where ours is furthest ahead, then those where it is furthest behind, each with its roofline."""
    head = (
        "layer",
        "ours",
        "us",
        "cuDNN",
        "us",
        "cuDNN / ours",
        "roofline us",
        "by",
        "ours / roofline",
        "cuDNN / roofline",
    )
    ranked = sorted((row for row in rows if row.speedup is not None), key=lambda row: -(row.speedup or 0))
    n_best = min(n_layers, len(ranked))
    n_worst = min(n_layers, len(ranked) - n_best)
    lines = [_layer_line(row, peaks) for row in (*ranked[:n_best], *ranked[len(ranked) - n_worst :])]
    return markdown(head, lines)


def missing_text(gaps: Mapping[tuple[str, str], Sequence[ConvProblem]]) -> str:
    """What is not measured, a line a dtype and layout."""
    return "\n".join(
        f"Not measured: {dtype} {layout}: {len(problems)} layers, of batch {_batches(problems)}."
        for (dtype, layout), problems in gaps.items()
    )


def _batches(problems: Sequence[ConvProblem]) -> str:
    counts = Counter(problem.n for problem in problems)
    return ", ".join(f"{n} ({counts[n]})" for n in sorted(counts))


def _layer_line(row: Row, peaks: Peaks) -> tuple[str, ...]:
    if row.ours is None or row.cudnn is None:
        raise ValueError(f"{row.problem.key} has no time of both")
    roof = roofline(row.problem, peaks)
    return (
        row.problem.short,
        row.ours.variant,
        f"{row.ours.time_ms * 1e3:.2f}",
        row.cudnn.variant,
        f"{row.cudnn.time_ms * 1e3:.2f}",
        f"{row.cudnn.time_ms / row.ours.time_ms:.2f}",
        f"{roof.least_ms * 1e3:.2f}",
        roof.bound,
        f"{row.ours.time_ms / roof.least_ms:.2f}",
        f"{row.cudnn.time_ms / roof.least_ms:.2f}",
    )


def reached(value: float, target: float | None, text: Callable[[float], str]) -> str:
    """A value, and whether it is at least its target, if it has one."""
    if target is None or math.isnan(value):
        return text(value)
    return f"{text(value)} ({'reached' if value >= target else 'missed'}: {text(target)})"


def percent(value: float) -> str:
    """A share as a cell."""
    return "-" if math.isnan(value) else f"{100 * value:.1f} %"


def times(value: float) -> str:
    """A ratio as a cell."""
    return "-" if math.isnan(value) else f"{value:.2f}"


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table whose first column is set flush left, the others right; nothing where there are no lines."""
    cells = [head, *lines]
    if len(cells) == 1:
        return ""
    widths = [max(3, *(len(line[place]) for line in cells)) for place in range(len(head))]
    rule = [f"{'-' * (width - 1)}:" if place else "-" * width for place, width in enumerate(widths)]
    aligned = [
        [
            text.rjust(width) if place else text.ljust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in (head, rule, *cells[1:])
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in aligned)
