"""The tables that `benchmarks.advice` prints, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.contest.tables import markdown, percent, reached, times
from benchmarks.rivals.rows import ADVICE, DEFAULT, LAYER, RULES, TUNED, Row
from benchmarks.rivals.scores import (
    MUCH_SLOWER,
    PREDICTION_TARGET,
    TARGETS,
    Column,
    Layer,
    failures,
    layers_of,
    of_column,
    prediction,
    slowdown,
    speedup,
    worth,
)
from conv_advisor.data.problem import DType, Layout

COLUMNS = tuple((str(dtype), str(layout)) for layout in Layout for dtype in DType)


def report(rows: Sequence[Row]) -> str:
    """Everything there is to say of a run."""
    layers = layers_of(rows)
    return "\n\n".join(
        text
        for text in (
            heading(rows, layers),
            "## Slowdown against the oracle, re-measured: geometric mean · 95th percentile · worst",
            slowdown_table(layers),
            "## Advice against PyTorch",
            speedup_table(layers),
            "## The predicted time of what was advised",
            prediction_table(layers),
            "## Is tuning worth it",
            worth_table(layers),
            "## By network",
            network_table(layers),
            failure_table(rows),
        )
        if text
    )


def heading(rows: Sequence[Row], layers: Sequence[Layer]) -> str:
    """What ran, and on what device."""
    devices, trees, software = (
        "; ".join(sorted({getattr(row, name) for row in rows} - {""})) or "none"
        for name in ("device", "tree", "software")
    )
    in_graphs = all(row.is_captured for layer in layers for row in layer.values())
    how = "All times are those of replayed CUDA graphs." if in_graphs else "Some calls could not be captured in graphs."
    return (
        f"# Advice on {devices}: {len(layers)} layers\n\nTrees: {trees}. Software:"
        f" {software}. Warm L2. {how} The oracle was chosen on a pass of its own, and everything is told"
        " from a later one."
    )


def slowdown_table(layers: Sequence[Layer]) -> str:
    """A line a dtype and layout, and by what the tree says of itself; a column a rule; beneath, advice's targets."""
    parts = [
        *((_named(column), of_column(layers, column)) for column in COLUMNS),
        ("where the tree abstains", [layer for layer in layers if _abstains(layer)]),
        ("where it does not", [layer for layer in layers if _abstains(layer) is False]),
        ("all", layers),
    ]
    lines = [(name, str(len(part)), *(_slowdown(part, rule) for rule in RULES)) for name, part in parts if part]
    table = markdown(("", "layers", *RULES), lines)
    return "\n\n".join(part for part in (table, _targets(layers)) if part)


def speedup_table(layers: Sequence[Layer]) -> str:
    """Advice over PyTorch's default, and over what cudnn.benchmark = True has chosen."""
    head = (
        "",
        "over",
        "layers",
        "geometric mean",
        "faster",
        f"over {100 * MUCH_SLOWER - 100:.0f} % slower",
        "worst",
        "at",
    )
    lines = []
    for column in (*COLUMNS, None):
        part = layers if column is None else of_column(layers, column)
        for rule in (DEFAULT, TUNED):
            gain = speedup(part, rule)
            if gain:
                target = None if column is None or column not in TARGETS else TARGETS[column].speedup
                mean = reached(gain.geometric_mean, target if rule == DEFAULT else 1.0, times)
                shares = (percent(gain.share_faster), percent(gain.share_much_slower))
                name = "all" if column is None else _named(column)
                lines.append((name, rule, str(gain.n_layers), mean, *shares, times(gain.worst), gain.worst_layer))
    return markdown(head, lines)


def prediction_table(layers: Sequence[Layer]) -> str:
    """How far off the times are; a line a dtype and layout."""
    lines = []
    for name, part in _parts(layers):
        error = prediction(part)
        if error:
            is_reached = "reached" if error.median <= PREDICTION_TARGET else "missed"
            middle = f"{percent(error.median)} ({is_reached}: {percent(PREDICTION_TARGET)})"
            lines.append((name, str(error.n_layers), middle, percent(error.p90)))
    return markdown(("", "layers", "median error", "90th percentile"), lines)


def worth_table(layers: Sequence[Layer]) -> str:
    """After how many calls tuning pays against advice."""
    head = ("", "layers", "never pays", "else after", "tuning of a layer", "of all layers", "first call untuned")
    lines = []
    for name, part in _parts(layers):
        payoff = worth(part)
        if payoff:
            calls = "-" if payoff.calls is None else f"{payoff.calls:,.0f} calls"
            seconds = (f"{payoff.tuning_s:.3f} s", f"{payoff.total_s:.0f} s", f"{payoff.untuned_s:.3f} s")
            lines.append((name, str(payoff.n_layers), percent(payoff.share_never), calls, *seconds))
    return markdown(head, lines)


def network_table(layers: Sequence[Layer]) -> str:
    """Advice on the layers of each network, all dtypes and layouts together."""
    names = sorted({name for layer in layers for name in next(iter(layer.values())).networks.split()})
    lines = []
    for name in names:
        part = [layer for layer in layers if name in next(iter(layer.values())).networks.split()]
        over = (speedup(part, rule) for rule in (DEFAULT, TUNED))
        means = (times(gain.geometric_mean) if gain else "-" for gain in over)
        lines.append((name, str(len(part)), _slowdown(part, ADVICE), *means))
    return markdown(("", "layers", "slowdown of advice", f"over {DEFAULT}", f"over {TUNED}"), lines)


def failure_table(rows: Sequence[Row]) -> str:
    """What has no time, and why; with the first reason of each kind."""
    reasons: dict[tuple[str, str], str] = {}
    for row in rows:
        if row.failure and not row.samples_ms:
            reasons.setdefault((row.rule, row.failure.partition(":")[0]), f"{row.problem.key}: {row.failure[:120]}")
    lines = [(rule, outcome, str(count), reasons[rule, outcome]) for (rule, outcome), count in failures(rows).items()]
    n_lost = sum(row.rule == LAYER for row in rows)
    table = markdown(("no time", "outcome", "layers", "first"), sorted(lines))
    return f"{n_lost} layers could not be measured at all.\n\n{table}" if n_lost else table


def _parts(layers: Sequence[Layer]) -> list[tuple[str, Sequence[Layer]]]:
    return [*((_named(column), of_column(layers, column)) for column in COLUMNS), ("all", layers)]


def _abstains(layer: Layer) -> bool | None:
    """Whether the tree called its ranking a guess; None where the file does not say."""
    return layer[ADVICE].abstains if ADVICE in layer else None


def _named(column: Column) -> str:
    return " ".join(column)


def _slowdown(layers: Sequence[Layer], rule: str) -> str:
    behind = slowdown(layers, rule)
    return f"{behind.geometric_mean:.3f} · {behind.p95:.2f} · {behind.worst:.2f}" if behind else "-"


def _targets(layers: Sequence[Layer]) -> str:
    """Whether advice reaches its targets; a line a dtype and layout that has some."""
    lines = []
    for column, target in TARGETS.items():
        behind = slowdown(of_column(layers, column), ADVICE)
        if behind:
            pairs = (
                (behind.geometric_mean, target.geometric_mean, ".3f"),
                (behind.p95, target.p95, ".2f"),
                (behind.worst, target.worst, ".2f"),
            )
            cells = [
                f"{value:{form}} ({'reached' if value <= most else 'missed'}: {most:g})" for value, most, form in pairs
            ]
            lines.append((_named(column), *cells, behind.worst_layer))
    return markdown(("advice", "geometric mean", "p95", "worst", "at"), lines)
