"""A plan as text, for a program or a notebook that prints one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from conv_advisor.data.counting import counted

if TYPE_CHECKING:
    from conv_advisor.models.planning.plan import Plan, Rival

_SHOWN: Final = 20
"""Layers of the table, those that take longest; other parts of a plan are counted."""


def plan_text(plan: Plan, rivals: Mapping[Rival, str]) -> str:
    """What a plan takes, a table of its layers, the slowest first, and its gain over rivals of these names."""
    return "\n".join(_lines(plan, rivals))


def _lines(plan: Plan, rivals: Mapping[Rival, str]) -> Iterator[str]:
    what = counted(plan.n_convolutions, "convolution")
    yield f"{plan.network.name} on {plan.device_id}: {what} in {plan.time_ms:.4g} ms"
    slowest = sorted(plan.layers, key=lambda layer: layer.total_ms, reverse=True)
    table = [("layer", "dtype", "layout", "count", "variant", "each", "time is", "share", "gain")]
    table += [
        (
            *(layer.problem.brief, layer.problem.dtype, layer.problem.layout, str(layer.count)),
            *(layer.advice.best.variant, f"{layer.advice.best.time_ms:.4g} ms", layer.advice.best.source),
            *(f"{layer.share:.0%}", _gain(layer.speedup)),
        )
        for layer in slowest[:_SHOWN]
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()
    if len(slowest) > _SHOWN:
        yield f"... and {counted(len(slowest) - _SHOWN, 'more layer')}"
    for rival, total in plan.rivals.items():
        yield f"against {rivals[rival]}: {_gain(total.speedup) or 'unknown'}"
    if plan.conversions:
        yield f"{counted(len(plan.conversions), 'conversion')} between layouts: {plan.conversions_ms:.4g} ms, estimated"
    if plan.left_out:
        yield f"{counted(len(plan.left_out), 'operator is', 'operators are')} left out: `left_out` says why"


def _gain(speedup: float | None) -> str:
    return "" if speedup is None else f"{speedup:.2f}x"
