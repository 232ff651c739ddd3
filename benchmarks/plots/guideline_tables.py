"""The tables of docs/guidelines.md: the papers' guidelines and findings judged, and our own rules beside the tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from benchmarks.guidelines.findings import Book
from benchmarks.guidelines.following import CLOSE, HOLDS_FROM, IN_PART_FROM, Followed, Verdict, follow
from benchmarks.guidelines.rules import Fared, Rule, followed, gather, grow
from benchmarks.guidelines.statements import STATEMENTS, Statement
from benchmarks.guidelines.study import (
    FFT,
    FFT_TILING,
    GEMM,
    GUIDELINES,
    IMPLICIT,
    PRECOMPUTED,
    WINOGRAD,
    WINOGRAD_NONFUSED,
    Guideline,
    study_order,
)
from benchmarks.measured import FILTERS, LEGACY, Column, Known, fastest_ms, is_where, only
from benchmarks.plots.pages import number, percent, table
from conv_advisor.models.costs import Costs
from conv_advisor.models.evaluation.judging import Result, judge

CLOSE_PERCENT: Final = percent(CLOSE - 1)
MIB: Final = 2**20
SAID_MB: Final[dict[tuple[str, int], float]] = {
    (IMPLICIT, 1): 0.0,
    (PRECOMPUTED, 3): 0.0276,
    (WINOGRAD, 3): 3.7,
    (WINOGRAD_NONFUSED, 3): 214.0,
    (FFT, 5): 82.0,
    (FFT_TILING, 5): 79.3,
    (WINOGRAD_NONFUSED, 5): 27.3,
}
"""Mean workspace by algorithm and filter size, as the cuDNN study has it, III-A; MB."""
_VERDICT_MARKS: Final = {
    Verdict.HOLDS: "**holds**",
    Verdict.IN_PART: "in part",
    Verdict.NO_LONGER: "**no longer**",
    Verdict.UNKNOWN: "not measured",
}


def all_followed(known: Known) -> list[tuple[Guideline, Followed | None]]:
    """How every guideline of the papers fares in its own precision, in NCHW."""
    columns = [(str(guideline.dtype), "nchw") for guideline in GUIDELINES]
    return [(g, follow(known[c], g) if c in known else None) for g, c in zip(GUIDELINES, columns, strict=True)]


def summary(book: Book) -> str:
    """How many guidelines and findings hold."""
    judged = [fared.verdict if fared else Verdict.UNKNOWN for _, fared in all_followed(book.known)]
    verdicts = [statement.judge(statement.value(book)) for statement in STATEMENTS]
    return f"of {len(judged)} guidelines {_counted(judged)}; of {len(verdicts)} findings {_counted(verdicts)}."


def _counted(verdicts: Sequence[Verdict]) -> str:
    counts = Counter(verdicts)
    words = {Verdict.HOLDS: "hold", Verdict.IN_PART: "hold in part", Verdict.NO_LONGER: "no longer hold"}
    words[Verdict.UNKNOWN] = "are not measured"
    return ", ".join(f"{counts[verdict]} {words[verdict]}" for verdict in words if counts[verdict])


def guideline_table(known: Known) -> str:
    """A line a guideline: where it speaks, what following it costs, and the verdict."""
    head = ["source", "guideline", "where", "configurations", "runs", "best", f"within {CLOSE_PERCENT}"]
    head += ["slowdown", "slowdown against all", "fastest there", "verdict"]
    text = (
        f"A guideline holds if its choice is within {CLOSE_PERCENT} of the fastest candidate in at least"
        f" {percent(HOLDS_FROM)} of the configurations it covers, and in part from {percent(IN_PART_FROM)} on. A choice"
        " that does not run counts as not within it; so does one that was given up after its first launch, which also"
        " has no slowdown."
    )
    return f"{text}\n\n{table(head, [_guideline_row(*entry) for entry in all_followed(known)])}"


def _guideline_row(guideline: Guideline, fared: Followed | None) -> list[str]:
    cells = [guideline.source, f"“{guideline.quote}”", guideline.where]
    if fared is None:
        return [*cells, *["-"] * 7, _VERDICT_MARKS[Verdict.UNKNOWN]]
    return [
        *(*cells, str(fared.n_problems)),
        *(percent(share) for share in (fared.share_run, fared.share_best, fared.share_close)),
        *(number(slowdown) for slowdown in (fared.slowdown, fared.slowdown_of_all)),
        f"`{fared.instead}` {percent(fared.share_instead)}",
        _VERDICT_MARKS[fared.verdict],
    ]


def statement_table(book: Book) -> str:
    """A line a finding: what the paper measured, what we did, and the verdict."""
    rows = []
    for statement in STATEMENTS:
        value = statement.value(book)
        verdict = _VERDICT_MARKS[statement.judge(value)]
        rows.append([statement.source, statement.quote, statement.said, _shown(statement, value), verdict])
    return table(["source", "finding", "theirs", "H200", "verdict"], rows)


def _shown(statement: Statement, value: float) -> str:
    if statement.unit == "%":
        return f"{100 * value:.1f} %" if np.isfinite(value) else "-"
    return f"{number(value, 2 if statement.unit else 0)}{statement.unit}"


def workspace_table(costs: Costs) -> str:
    """Mean and largest workspace of each legacy algorithm where it runs, beside the study's mean."""
    head = ["float32 NCHW", *(f"{r}×{r}: mean, most MiB (study: mean MB)" for r in FILTERS)]
    variants = (IMPLICIT, PRECOMPUTED, GEMM, FFT, FFT_TILING, WINOGRAD, WINOGRAD_NONFUSED)
    return table(head, [[f"`{variant}`", *(_workspace(costs, variant, r) for r in FILTERS)] for variant in variants])


def _workspace(costs: Costs, variant: str, filter_size: int) -> str:
    theirs = f" ({SAID_MB[variant, filter_size]:g})" if (variant, filter_size) in SAID_MB else ""
    rows = is_where(costs, filters=[filter_size]) & np.isfinite(fastest_ms(costs, [variant]))
    if not rows.any():
        return f"does not run{theirs}"
    mib = costs.workspace_bytes[rows, costs.variants.index(variant)] / MIB
    known = mib[np.isfinite(mib)]
    return f"{_mib(known.mean())}, {_mib(known.max())}{theirs}" if len(known) else f"unknown{theirs}"


def _mib(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def together_table(known: Known, scored: Mapping[int, Sequence[tuple[str, Result]]], tree: Mapping[str, float]) -> str:
    """The study's guidelines taken together, our rules and the tree, by dtype and layout.

    Parameters
    ----------
    known : Known
    scored : mapping of number of rules to (``dtype/layout``, Result)
        On layers of networks held out.
    tree : mapping of ``dtype/layout`` to geometric-mean slowdown
        On layers of networks held out.
    """
    rules = [f"our {count} rules" for count in scored]
    head = ["", "study, against the legacy algorithms", "study, against everything", *rules, "the tree"]
    keys = {" ".join(column): ("/".join(column), {column: costs}) for column, costs in known.items()}
    rows = []
    for title, (key, part) in {**keys, "all": ("overall", known)}.items():
        mine = [[result for column, result in results if key in (column, "overall")] for results in scored.values()]
        fared = [study_fared(of_some(part, LEGACY)), study_fared(part), *map(Fared.of, mine)]
        cells = [f"{number(score.slowdown)} · {number(score.p95)}" for score in fared]
        rows.append([title, *cells, number(tree.get(key, np.nan), 3)])
    return table(head, rows)


def study_fared(known: Known) -> Fared:
    """The study's guidelines together."""
    return Fared.of([result for costs in known.values() for result in judge(costs, study_order)])


def rules_table(known: Known, n_rules: int) -> str:
    """Our own rules, found on all that is known, each with what following it costs."""
    rules = grow(gather(known), n_rules)
    rows = [_rule_row(rule, results) for rule, results in followed(known, rules).items() if results]
    head = ["where", "run", "else", "configurations", f"within {CLOSE_PERCENT}", "slowdown", "p95"]
    return table(head, rows)


def _rule_row(rule: Rule, results: Sequence[Result]) -> list[str]:
    fared = Fared.of(results)
    run, otherwise = (*rule.order, "-")[:2]
    figures = [str(fared.n_problems), percent(fared.share_close), number(fared.slowdown), number(fared.p95)]
    return [rule.words, f"`{run}`", f"`{otherwise}`", *figures]


def of_some(known: Known, variants: Sequence[str]) -> dict[Column, Costs]:
    """The costs of some variants alone, which are then compared to the best among them."""
    parts = {column: only(costs, variants) for column, costs in known.items()}
    return {column: costs for column, costs in parts.items() if costs.problems}
