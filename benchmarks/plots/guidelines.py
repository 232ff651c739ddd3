"""docs/guidelines.md: the parts of the page that measurements write, and the seed papers' figures redrawn."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from benchmarks.contest.choice import CUDNN
from benchmarks.guidelines.findings import Book
from benchmarks.guidelines.rules import N_RULES, Fared, held_out
from benchmarks.measured import Column, Known
from benchmarks.plots import algorithms
from benchmarks.plots.beside_cpu import beside_cpu, beside_cpu_table
from benchmarks.plots.course import course
from benchmarks.plots.figures import UNMEASURED, Drawing
from benchmarks.plots.growth import growth, growth_table
from benchmarks.plots.guideline_tables import (
    CLOSE_PERCENT,
    guideline_table,
    of_some,
    rules_table,
    statement_table,
    summary,
    together_table,
    workspace_table,
)
from benchmarks.plots.pages import number, percent, rewritten
from benchmarks.plots.shares import shares
from conv_advisor.models.costs import Costs

FOLDER: Final = "guidelines"
"""Where these figures are, within the folder of all figures."""
FULL: Final = ("float32", "nchw")
HALF: Final = ("float16", "nchw")
MORE_RULES: Final = 16

OF_COLUMN: Final[dict[str, tuple[str, Callable[[Costs, Column], Figure | None]]]] = {
    "algorithms": ("Each of cuDNN's legacy algorithms over the fastest of them", algorithms.algorithms),
    "methods": ("Our kernels by method, and the best of cuDNN, over the fastest of all", algorithms.methods),
    "cuconv": ("The best of cuDNN's legacy algorithms over cuConv and over the best of ours", algorithms.cuconv),
    "workspaces": ("The workspace of each of cuDNN's legacy algorithms", algorithms.workspaces),
}
"""Figures drawn once for each dtype and layout, with what they show."""
_ALONE: Final = {
    "shares": "How often each method is the fastest",
    "growth": "Time of the larger of two layers over that of the smaller, by how much deeper or wider it is",
    "course": "The course's experiments",
    "course-cpu": "The course's experiments on a CPU and on the GPU",
}
"""Figures drawn only once, with what they show."""
GROUPS: Final = (*OF_COLUMN, *_ALONE)
_ONCE: Final = {"workspaces": FULL}
"""Figures drawn of one dtype and layout alone."""


def write(book: Book, docs: Path, device_id: str, card: Path) -> None:
    """Rewrite the tables and verdicts of the page.

    Parameters
    ----------
    book : Book
    docs : Path
        Holds guidelines.md.
    device_id : str
    card : Path
        The shipped tree's, whose held-out scores stand beside our rules; there may be none.
    """
    page = docs / "guidelines.md"
    text = rewritten(page.read_text(encoding="utf-8"), parts(book, device_id, tree_scores(card)))
    page.write_text(text, encoding="utf-8")


def draw(book: Book) -> Iterator[Drawing]:
    """Every figure for which there is something to draw."""
    yield _alone("shares", shares(book.known))
    for name, (caption, of_column) in OF_COLUMN.items():
        for column, costs in book.known.items():
            if _ONCE.get(name, column) == column and (figure := of_column(costs, column)) is not None:
                title = "-".join(column)
                yield Drawing(name, f"{FOLDER}/{name}-{title}", f"{caption}: {title}", figure)
    if HALF in book.known and (figure := growth(book.known[HALF])) is not None:
        yield _alone("growth", figure)
    if book.course is not None:
        yield _alone("course", course(book.course))
        if book.cpu is not None:
            yield _alone("course-cpu", beside_cpu(book.course, book.cpu))


def _alone(name: str, figure: Figure) -> Drawing:
    return Drawing(name, f"{FOLDER}/{name}", _ALONE[name], figure)


def parts(book: Book, device_id: str, tree: Mapping[str, float]) -> dict[str, str]:
    """The parts of the page, by the name of their marks."""
    by_count = held_out(book.known, (N_RULES, MORE_RULES))
    return {
        "summary": f"On {device_id}: {summary(book)}",
        "guidelines": guideline_table(book.known),
        "together": together_table(book.known, by_count, tree),
        "statements": statement_table(book),
        "rules": rules_table(book.known, N_RULES),
        "rules for cuDNN": _cudnn_rules(book.known),
        "scatter": algorithms.scatter(book.known),
        "growth": growth_table(book.known[HALF]) if HALF in book.known else UNMEASURED,
        "workspaces": workspace_table(book.known[FULL]) if FULL in book.known else UNMEASURED,
        "course-cpu": beside_cpu_table(book.course, book.cpu) if book.course and book.cpu else UNMEASURED,
    }


def _cudnn_rules(known: Known) -> str:
    alone = of_some(known, CUDNN)
    fared = Fared.of([result for _, result in held_out(alone, (N_RULES,))[N_RULES]])
    text = (
        f"On held-out networks, such rules take {number(fared.slowdown)} times as long as the best of cuDNN"
        f" (geometric mean; 95th percentile {number(fared.p95)}×), and within {CLOSE_PERCENT} of it in"
        f" {percent(fared.share_close)}."
    )
    return f"{rules_table(alone, N_RULES)}\n\n{text}"


def tree_scores(card: Path) -> dict[str, float]:
    """The geometric-mean slowdown of the shipped tree with each network held out, by ``dtype/layout`` and overall."""
    if not card.exists():
        return {}
    scores = json.loads(card.read_text(encoding="utf-8")).get("scores", {}).get("leave_one_network_out", {})
    return {column: float(score["geometric_mean"]) for column, score in scores.items()}
