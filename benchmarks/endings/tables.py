"""The tables that `benchmarks.epilogues` prints, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from benchmarks.contest.scores import H200, Peaks, roofline
from benchmarks.contest.tables import markdown, reached, times
from benchmarks.endings.rows import AUTOTUNED, COMPILED, CUDNN, EAGER, OURS, POOL, SIDES, Row
from benchmarks.endings.scores import COST_TARGET, TARGETS, cost, has_residual_on_1x1, lead, mean, worst

N_WORST: Final = 10


def report(rows: Sequence[Row], peaks: Peaks = H200) -> str:
    """Everything there is to say of a run."""
    measured = [row for row in rows if row.timed]
    parts = (
        heading(rows, measured),
        "## Against compiled PyTorch and cuDNN's fused plans, geometric means",
        ratio_table(measured),
        "## What an epilogue costs ours, medians",
        cost_table(measured, peaks),
        f"## The {N_WORST} layers on which ours is the furthest behind the fastest rival",
        worst_table(measured, peaks),
        "## What has no time",
        missing_table(rows),
    )
    return "\n\n".join(part for part in parts if part)


def heading(rows: Sequence[Row], measured: Sequence[Row]) -> str:
    """What ran, and on what device."""
    devices, software = (
        "; ".join(sorted({getattr(row, name) for row in rows} - {""})) for name in ("device", "software")
    )
    in_graphs = all(timed.is_captured for row in measured for timed in row.timed.values())
    how = "All times are those of replayed CUDA graphs." if in_graphs else "Some calls could not be captured in graphs."
    return (
        f"# Epilogues on {devices or 'no device'}: {len(measured)} layers\n\nSoftware: {software or 'none'}. Warm L2."
        f" {how} Variants and plans were chosen on a pass of their own, and everything is told from a later one."
    )


def ratio_table(rows: Sequence[Row]) -> str:
    """A line a dtype and layout, with its target."""
    head = (
        "",
        "layers",
        "compiled over ours",
        "default alone",
        "max-autotune alone",
        "benchmark=True over ours",
        "cuDNN fused over ours and cuDNN",
        "the same, residual on 1x1",
    )
    lines = []
    for column, target in TARGETS.items():
        mine = [row for row in rows if row.column == column]
        residual = [row for row in mine if has_residual_on_1x1(row)]
        if mine:
            lines.append(
                (
                    " ".join(column),
                    str(len(mine)),
                    reached(mean(mine, (COMPILED, AUTOTUNED), OURS), target.compiled, times),
                    *(times(mean(mine, (mode,), OURS)) for mode in (COMPILED, AUTOTUNED, EAGER)),
                    reached(mean(mine, (CUDNN,), POOL), target.cudnn, times),
                    reached(mean(residual, (CUDNN,), POOL), target.cudnn_residual, times),
                )
            )
    return markdown(head, lines)


def cost_table(rows: Sequence[Row], peaks: Peaks = H200) -> str:
    """A line a dtype, layout and epilogue."""
    lines = []
    for column in TARGETS:
        mine = [row for row in rows if row.column == column]
        for epilogue in sorted({str(row.problem.epilogue) for row in mine}):
            costs = cost((row for row in mine if str(row.problem.epilogue) == epilogue), peaks.bytes_per_s)
            if costs:
                word = "reached" if costs.beside_residual <= COST_TARGET else "missed"
                beside = f"{costs.beside_residual:.3f} ({word}: {COST_TARGET:.2f})"
                lines.append((f"{' '.join(column)} {epilogue}", str(costs.n_layers), f"{costs.whole:.3f}", beside))
    return markdown(("", "layers", "fused over plain", "without the residual's bytes"), lines)


def worst_table(rows: Sequence[Row], peaks: Peaks = H200) -> str:
    """Times in µs, with the least that the device allows."""
    shown = (OURS, CUDNN, COMPILED, AUTOTUNED, EAGER)
    lines = []
    for row in worst(rows, N_WORST):
        least = roofline(row.problem, peaks)
        lines.append(
            (
                row.problem.key,
                row.timed[OURS].variant,
                *(_us(row.time_ms(side)) for side in shown),
                times(lead(row) or 0.0),
                f"{_us(least.least_ms)} ({least.bound})",
            )
        )
    return markdown(("", "variant", *(f"{side}, µs" for side in shown), "rival over ours", "roofline, µs"), lines)


def missing_table(rows: Sequence[Row]) -> str:
    """The number of layers without a time of each side, then that of each failure, with its first reason."""
    sides = [(side, str(sum(side not in row.timed for row in rows)), "") for side in SIDES]
    counts: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for name, row, why in _failures(rows):
        counts[name] = counts.get(name, 0) + 1
        reasons.setdefault(name, f"{row.problem.key}: {why[:120]}")
    failed = [(name, str(count), reasons[name]) for name, count in sorted(counts.items())]
    return markdown(("no time, or failed", "layers", "first"), [*(side for side in sides if side[1] != "0"), *failed])


def _failures(rows: Iterable[Row]) -> Iterable[tuple[str, Row, str]]:
    """Failures by variant, whatever the plan, and by outcome."""
    for row in rows:
        for name, why in row.failures.items():
            short = name.partition(" {")[0]
            yield f"{short}: {why.partition(':')[0]}", row, why


def _us(time_ms: float | None) -> str:
    return "-" if time_ms is None else f"{1e3 * time_ms:.1f}"
