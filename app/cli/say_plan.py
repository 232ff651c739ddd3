"""How a plan is printed for a person: a one-line answer, the alternatives, then the layers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from conv_advisor.app.cli import say
from conv_advisor.app.cli.output import print_json
from conv_advisor.app.cli.table import Mark, Marked, write, write_table
from conv_advisor.app.plans.answers import plan_csv, plans_answer
from conv_advisor.app.web import text
from conv_advisor.data.counting import counted
from conv_advisor.models.planning.plan import RIVAL_NAMES, Plan, Rival, Total
from conv_advisor.models.ranking.candidates import Choice, Source

_PREDICTED: Final = "≈ "
"""Before a time that is predicted."""
_BESIDE_BATCHES: Final = tuple(rival for rival in Rival if rival is not Rival.CUDNN_HEURISTIC)
"""Rivals in the table of batches: without cuDNN's heuristic, which PyTorch's default runs, a line fits 80 columns."""

if TYPE_CHECKING:
    from conv_advisor.models.planning.plan import Layer


def show(plans: Mapping[int, Plan], *, as_json: bool, as_csv: bool) -> None:
    """Write a plan, or a line for each of several batches."""
    if as_json:
        print_json(plans_answer(plans))
    elif as_csv:
        sys.stdout.write(plan_csv(plans))
    elif len(plans) > 1:
        _show_batches(plans)
    else:
        for plan in plans.values():
            _show_one(plan)


def _show_batches(plans: Mapping[int, Plan]) -> None:
    rows = [
        (
            str(batch),
            text.time(plan.time_ms),
            text.time(plan.time_ms / batch),
            *(say.ratio(plan.rivals[rival].speedup) for rival in _BESIDE_BATCHES),
            say.workspace(plan.workspace_bytes),
        )
        for batch, plan in plans.items()
    ]
    columns = ("batch", "time", "an image", *(f"vs {RIVAL_NAMES[rival]}" for rival in _BESIDE_BATCHES), "workspace")
    write_table(columns, rows, right=range(len(columns)))


def _show_one(plan: Plan) -> None:
    parts = [f"{counted(plan.n_convolutions, 'convolution')} in {text.time(plan.time_ms)}"]
    for rival in (Rival.CUDNN_BEST, Rival.PYTORCH_DEFAULT):
        name, total = RIVAL_NAMES[rival], plan.rivals[rival]
        if total.speedup is not None:
            parts.append(f"{say.compared(total.speedup)} {name}{' (predicted)' if total.n_predicted else ''}")
    parts.append(f"{say.workspace(plan.workspace_bytes)} workspace")
    write(Marked(", ".join(parts), Mark.HEAD))
    tree = f"tree {plan.model_id}" if plan.model_id else "measured only"
    write(f"{plan.network.name} {plan.layers[0].problem.dtype} on {plan.device_id}, {tree}")
    sys.stdout.write("\n")
    against = [_against(RIVAL_NAMES[rival], total) for rival, total in plan.rivals.items()]
    write_table(("against", "takes", "time", "time is"), against)
    sys.stdout.write("\n")
    columns = ("layer", "count", "layout", "variant", "each", "share", "gain")
    write_table(columns, [_row(layer) for layer in plan.layers], right=(1, 4, 5, 6))
    legend = f"The gain is over PyTorch's default. {_PREDICTED.strip()}: predicted, the others are measured."
    write(Marked(legend, Mark.FAINT))
    if plan.conversions:
        n_bytes = sum(conversion.n_bytes for conversion in plan.conversions)
        summary = f"{counted(len(plan.conversions), 'conversion')} between layouts, {text.size(n_bytes)}"
        write(Marked(f"{summary}: {text.time(plan.conversions_ms)}, estimated.", Mark.FAINT))
    if plan.left_out:
        sys.stdout.write("\n")
        write_table(
            ("left out", "", "because"), [(left_out.name, left_out.kind, left_out.reason) for left_out in plan.left_out]
        )
    for remark in plan.remarks:
        write(Marked(f"{remark[:1].upper()}{remark[1:]}.", Mark.FAINT))


def _against(name: str, total: Total) -> tuple[str, ...]:
    if total.time_ms is None:
        return name, "", "", Marked("unknown", Mark.FAINT)
    parts = ((total.n_measured, "measured"), (total.n_predicted, "predicted"), (total.n_unknown, "unknown"))
    return (
        name,
        say.ratio(total.speedup),
        text.time(total.time_ms),
        ", ".join(f"{n} {basis}" for n, basis in parts if n),
    )


def _time(best: Choice) -> str:
    shown = text.time(best.time_ms)
    return Marked(_PREDICTED + shown, Mark.UNSURE) if best.source is Source.PREDICTED else shown


def _row(layer: Layer) -> tuple[str, ...]:
    best = layer.advice.best
    return (
        layer.problem.brief,
        str(layer.count),
        str(layer.problem.layout),
        best.variant,
        _time(best),
        text.percent(layer.share),
        say.ratio(layer.speedup),
    )
