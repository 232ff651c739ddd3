"""What `advise` prints on demand: what to weigh, the nearest measured layers, a program."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from conv_advisor.app.cli.output import print_json, print_table
from conv_advisor.app.snippets.language import Language

if TYPE_CHECKING:
    from conv_advisor.app.advice.limits import Limits
    from conv_advisor.app.service.recall import Recall
    from conv_advisor.data.records import Records
    from conv_advisor.models.advisor import Advice, Advisor
    from conv_advisor.models.pareto import Bounds, OtherLayout


def show_trust(advice: Advice) -> None:
    """How far the advice can be trusted, on one line."""
    sys.stdout.write(f"{advice.trusted}\n")


def show_pareto(
    advisor: Advisor, recall: Recall, advice: Advice, limits: Limits, bounds: Bounds, as_json: bool
) -> None:
    """Time against workspace, error and determinism, and the other layout.

    Raises
    ------
    NoAdvice, StoreError
    """
    from conv_advisor.app.advice.details import pareto_answer, weighed

    found, other = weighed(recall, advisor, advice, limits, bounds)
    if as_json:
        print_json(pareto_answer(found, other))
        return
    columns = ("variant", "ms", "slowdown", "time is", "workspace", "error", "error is", "deterministic", "front")
    rows = [
        (
            *(each.variant, each.time_ms, each.slowdown, each.source, each.workspace_bytes),
            *(each.max_error, each.error_source),
            *("yes" if each.is_deterministic else "no", "front" if each.is_on_front else ""),
        )
        for each in found.points
    ]
    print_table(columns, rows, title=_title(advice))
    if other:
        sys.stdout.write(_said_of(other) + "\n")
    if advice.variant not in {point.variant for point in found.points}:
        sys.stdout.write("Without the limits of error and slowdown: ")
    show_trust(advice)


def show_neighbours(records: Records, advice: Advice, count: int, as_json: bool) -> None:
    """The nearest measured layers.

    Raises
    ------
    StoreError
    """
    from conv_advisor.app.advice.details import neighbours_answer
    from conv_advisor.models.neighbours import Neighbourhood, describe

    nearest = Neighbourhood(records.measured_keys(advice.device_id)).nearest(advice.problem, count)
    known = records.summaries([problem for problem, _ in nearest], advice.device_id)
    found = describe(nearest, known, advice.variant)
    if as_json:
        print_json(neighbours_answer(advice, found))
        return
    columns = ("layer", "octaves away", "fastest there", "ms there", f"{advice.variant} there")
    rows = [(each.layer, each.distance, each.variant, each.time_ms, _or_none(each.advised_slowdown)) for each in found]
    print_table(columns, rows, title=f"{_title(advice)}: {advice.variant}, {advice.best.time_ms:.4g} ms")


def show_snippet(advice: Advice, variant: str | None, limits: Limits, language: Language | None, as_json: bool) -> None:
    """A program, and nothing else, so that it can be put into a file.

    Raises
    ------
    InvalidInput, NotApplicable, UnknownVariant
    """
    from conv_advisor.app.advice.details import snippet_answer, snippet_for

    snippet = snippet_for(advice, variant, limits.max_workspace_bytes, language)
    if as_json:
        print_json(snippet_answer(advice, snippet))
    else:
        sys.stdout.write(snippet.code)


def _title(advice: Advice) -> str:
    problem = advice.problem
    return f"{problem.short} {problem.dtype} {problem.layout} on {advice.device_id}"


def _said_of(other: OtherLayout) -> str:
    if other.speedup >= 1:
        said = f"{other.layout.upper()} would be {other.speedup:.2f}x faster"
    else:
        said = f"{other.layout.upper()} would take {1 / other.speedup:.2f}x as long"
    said += f" with x and y in it already: {other.variant}, {other.time_ms:.4g} ms, {other.source}"
    if other.least_conversion_ms is None or other.speedup_converted is None:
        return f"{said}."
    converted = f"at most {other.speedup_converted:.2f}x" if other.speedup_converted >= 1 else "slower"
    return f"{said}; converting them takes at least {other.least_conversion_ms:.4g} ms, with that {converted}."


def _or_none(slowdown: float | None) -> Any:
    return "not timed" if slowdown is None else f"{slowdown:.2f}x"
