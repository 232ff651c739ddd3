"""How advice is printed for a person: a one-line answer, the alternatives, then the ranking."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from conv_advisor.app.cli.table import Mark, Marked, write, write_table
from conv_advisor.app.web import text
from conv_advisor.models.advice.baselines import NAMES
from conv_advisor.models.ranking.candidates import Choice, Source

if TYPE_CHECKING:
    from conv_advisor.models.advice.advice import Advice
    from conv_advisor.models.advice.baselines import Baseline

SHOWN: Final = 10
"""Variants of a ranking that are shown unless all are asked for."""
LEVEL: Final = 0.005
"""Speedups closer to 1 than this are level."""


def show_advice(advice: Advice, *, is_all: bool) -> None:
    """Write the answer, its confidence, the alternatives, and the ranking."""
    write(Marked(headline(advice), Mark.HEAD))
    write(f"{title(advice)}, {f'tree {advice.model_id}' if advice.model_id else 'measured only'}")
    show_trust(advice)
    sys.stdout.write("\n")
    columns = ("against", "takes", "time", "time is", "variant")
    write_table(
        columns, [_against(name, getattr(advice.baselines, field)) for field, name in NAMES.items()], right=(2,)
    )
    sys.stdout.write("\n")
    show_ranking(advice.ranking if is_all else advice.ranking[:SHOWN])
    n_more, n_out = max(len(advice.ranking) - SHOWN, 0), len(advice.excluded)
    if is_all and n_out:
        sys.stdout.write("\n")
        write_table(("out", "because"), [(exclusion.variant, exclusion.reason) for exclusion in advice.excluded])
    elif not is_all and n_more + n_out:
        write(Marked(f"{n_more} more variants, and why {n_out} do not apply: --all", Mark.FAINT))


def headline(advice: Advice) -> str:
    """The answer in one line."""
    best, beside = advice.best, advice.baselines
    parts = [f"{best.variant}, {text.time(best.time_ms)} {best.source}"]
    if beside.cudnn_best.variant == best.variant:
        parts.append("cuDNN's own best")
    else:
        parts += said(NAMES["cudnn_best"], beside.cudnn_best, best)
    parts += said(NAMES["pytorch_default"], beside.pytorch_default, best)
    without = [f"without {advice.uncounted}"] if advice.uncounted else []
    return ", ".join([*parts, f"{workspace(best.workspace_bytes)} workspace", *without])


def said(name: str, baseline: Baseline, best: Choice) -> list[str]:
    """How far ahead of a baseline the best is; nothing where that is unknown."""
    if baseline.speedup is None:
        return []
    is_rougher = best.source is Source.MEASURED and baseline.source is Source.PREDICTED
    return [f"{compared(baseline.speedup)} {name}{' (predicted)' if is_rougher else ''}"]


def compared(speedup: float) -> str:
    """A speedup in words."""
    if abs(speedup - 1) <= LEVEL:
        return "level with"
    return f"{text.slowdown(speedup)} ahead of" if speedup > 1 else f"{text.slowdown(1 / speedup)} behind"


def show_ranking(ranking: tuple[Choice, ...]) -> None:
    """Write a table of variants, best first."""
    has_ties = sum(choice.is_tied for choice in ranking) > 1
    rows = [
        (
            choice.variant,
            text.time(choice.time_ms),
            source_of(choice.source),
            text.slowdown(choice.slowdown) + (" tied" if choice.is_tied and has_ties else ""),
            workspace(choice.workspace_bytes),
        )
        for choice in ranking
    ]
    write_table(("variant", "time", "time is", "slowdown", "workspace"), rows, right=(1,))


def show_trust(advice: Advice) -> None:
    """How far the advice can be trusted, on one line."""
    write(Marked(advice.trusted, Mark.UNSURE) if advice.trust.abstains else advice.trusted)


def source_of(source: Source | None) -> str:
    """Where a time comes from; a predicted one has the colour of `Mark.UNSURE`."""
    return Marked(source, Mark.UNSURE) if source is Source.PREDICTED else str(source or "")


def ratio(speedup: float | None) -> str:
    """A speedup, in the colour of being ahead or behind."""
    if speedup is None:
        return ""
    shown = text.slowdown(speedup)
    if abs(speedup - 1) <= LEVEL:
        return shown
    return Marked(shown, Mark.AHEAD if speedup > 1 else Mark.BEHIND)


def workspace(count: int | None) -> str:
    """Bytes of scratch memory."""
    return "unknown" if count is None else text.size(count) if count else "no"


def title(advice: Advice) -> str:
    """The layer, and the device."""
    problem = advice.asked
    return f"{problem.brief} {problem.dtype} {problem.layout} on {advice.device_id}"


def _against(name: str, baseline: Baseline) -> tuple[str, ...]:
    if baseline.time_ms is None:
        return name, "", "", "", Marked(f"unknown: {baseline.basis}", Mark.FAINT)
    variant = baseline.variant or "does not say"
    return name, ratio(baseline.speedup), text.time(baseline.time_ms), source_of(baseline.source), variant
