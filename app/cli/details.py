"""What `advise` prints on demand: what to weigh, the nearest measured layers, a program."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from conv_advisor.app.cli.output import print_json
from conv_advisor.app.cli.say import show_trust, source_of, title, workspace
from conv_advisor.app.cli.table import Mark, Marked, write, write_table
from conv_advisor.app.snippets.language import Language
from conv_advisor.app.web import text

if TYPE_CHECKING:
    from conv_advisor.app.advice.limits import Limits
    from conv_advisor.app.service.recall import Recall
    from conv_advisor.data.records import Records
    from conv_advisor.models.advice.advice import Advice
    from conv_advisor.models.advice.advisor import Advisor
    from conv_advisor.models.advice.pareto import Bounds, OtherLayout


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
    columns = ("variant", "time", "time is", "workspace", "error", "error is", "", "")
    rows = [
        (
            *(each.variant, text.time(each.time_ms), source_of(each.source), workspace(each.workspace_bytes)),
            *(text.error(each.max_error), each.error_source),
            *(
                "" if each.is_deterministic else "not deterministic",
                Marked("front" if each.is_on_front else "", Mark.AHEAD),
            ),
        )
        for each in found.points
    ]
    write(Marked(title(advice), Mark.HEAD))
    write_table(columns, rows, right=(1,))
    write("front: on the Pareto front, where no other variant is as good in everything and better in something.")
    if other:
        write(_said_of(other))
    if advice.variant not in {point.variant for point in found.points}:
        write(f"Without the limits of error and slowdown: {advice.trusted}")
        return
    show_trust(advice)


def show_neighbours(records: Records, advice: Advice, count: int, as_json: bool) -> None:
    """The nearest measured layers.

    Raises
    ------
    StoreError
    """
    from conv_advisor.app.advice.details import neighbours_answer
    from conv_advisor.data.problem import ConvProblem
    from conv_advisor.models.advice.neighbours import Neighbourhood, describe

    nearest = Neighbourhood(records.measured_keys(advice.device_id)).nearest(advice.problem, count)
    known = records.summaries([problem for problem, _ in nearest], advice.device_id)
    found = describe(nearest, known, advice.variant)
    if as_json:
        print_json(neighbours_answer(advice, found))
        return
    columns = ("layer", "octaves away", "fastest there", "time there", "advised there")
    rows = [
        (
            *(ConvProblem.parse(each.layer).brief, f"{each.distance:.2f}", each.variant, text.time(each.time_ms)),
            "not timed" if each.advised_slowdown is None else text.slowdown(each.advised_slowdown),
        )
        for each in found
    ]
    write(Marked(f"{title(advice)}: {advice.variant}, {text.time(advice.best.time_ms)}", Mark.HEAD))
    write_table(columns, rows, right=(1, 3, 4))


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


def _said_of(other: OtherLayout) -> str:
    if other.speedup >= 1:
        said = f"{other.layout.upper()} would be {other.speedup:.2f}× as fast"
    else:
        said = f"{other.layout.upper()} would take {1 / other.speedup:.2f}× as long"
    said += f" if x and y were in it already: {other.variant}, {text.time(other.time_ms)}, {other.source}"
    if other.least_conversion_ms is None or other.speedup_converted is None:
        return f"{said}."
    converted = f"at most {other.speedup_converted:.2f}× as fast" if other.speedup_converted >= 1 else "slower"
    least = text.time(other.least_conversion_ms)
    return f"{said}; converting them takes at least {least}, which makes it {converted}."
