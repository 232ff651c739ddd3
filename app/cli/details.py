"""What `advise` prints on demand: tradeoffs, the nearest measured layers, a program."""

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
    """Print time against workspace, error and determinism, and the other layout.

    Raises
    ------
    NoAdvice, StoreError
    """
    from conv_advisor.app.advice.details import pareto_answer, weighed

    pareto, other = weighed(recall, advisor, advice, limits, bounds)
    if as_json:
        print_json(pareto_answer(pareto, other))
        return
    columns = ("variant", "time", "time is", "workspace", "error", "error is", "", "")
    rows = [
        (
            *(point.variant, text.time(point.time_ms), source_of(point.source), workspace(point.workspace_bytes)),
            *(text.error(point.max_error), point.error_source),
            *(
                "" if point.is_deterministic else "not deterministic",
                Marked("front" if point.is_on_front else "", Mark.AHEAD),
            ),
        )
        for point in pareto.points
    ]
    write(Marked(title(advice), Mark.HEAD))
    write_table(columns, rows, right=(1,))
    write("front: on the Pareto front, where no other variant is as good in everything and better in something.")
    if other:
        write(_said_of(other))
    if advice.variant not in {point.variant for point in pareto.points}:
        write(f"Without the limits of error and slowdown: {advice.trusted}")
        return
    show_trust(advice)


def show_neighbours(records: Records, advice: Advice, count: int, as_json: bool) -> None:
    """Print the nearest measured layers.

    Raises
    ------
    StoreError
    """
    from conv_advisor.app.advice.details import neighbours_answer
    from conv_advisor.data.problem import ConvProblem
    from conv_advisor.models.advice.neighbours import Neighbourhood, describe

    nearest = Neighbourhood(records.measured_keys(advice.device_id)).nearest(advice.problem, count)
    summaries = records.summaries([problem for problem, _ in nearest], advice.device_id)
    neighbours = describe(nearest, summaries, advice.variant)
    if as_json:
        print_json(neighbours_answer(advice, neighbours))
        return
    columns = ("layer", "octaves away", "fastest there", "time there", "advised there")
    rows = [
        (
            *(
                ConvProblem.parse(neighbour.layer).brief,
                f"{neighbour.distance:.2f}",
                neighbour.variant,
                text.time(neighbour.time_ms),
            ),
            "not timed" if neighbour.advised_slowdown is None else text.slowdown(neighbour.advised_slowdown),
        )
        for neighbour in neighbours
    ]
    write(Marked(f"{title(advice)}: {advice.variant}, {text.time(advice.best.time_ms)}", Mark.HEAD))
    write_table(columns, rows, right=(1, 3, 4))


def show_snippet(advice: Advice, variant: str | None, limits: Limits, language: Language | None, as_json: bool) -> None:
    """Print a program, and nothing else, so that it can be put into a file.

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
        sentence = f"{other.layout.upper()} would be {other.speedup:.2f}× as fast"
    else:
        sentence = f"{other.layout.upper()} would take {1 / other.speedup:.2f}× as long"
    sentence += f" if x and y were in it already: {other.variant}, {text.time(other.time_ms)}, {other.source}"
    if other.least_conversion_ms is None or other.speedup_converted is None:
        return f"{sentence}."
    converted = f"at most {other.speedup_converted:.2f}× as fast" if other.speedup_converted >= 1 else "slower"
    least = text.time(other.least_conversion_ms)
    return f"{sentence}; converting them takes at least {least}, which makes it {converted}."
