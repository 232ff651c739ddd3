"""The tables of the page as CSV and JSON: the same rows, as numbers with their units in the columns' names."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from operator import attrgetter
from typing import Any, Final

from conv_advisor.app.plans.answers import PLAN_COLUMNS, plan_rows
from conv_advisor.app.service.regret import Regretted
from conv_advisor.app.web.against import ORDER
from conv_advisor.app.web.compare import ComparedView
from conv_advisor.app.web.jobs import JobRow
from conv_advisor.app.web.map import MapView
from conv_advisor.app.web.measured import RunView
from conv_advisor.app.web.models import ModelRow
from conv_advisor.app.web.networks import NetworkView
from conv_advisor.app.web.search import SearchView
from conv_advisor.app.web.tradeoffs import TradeoffsView
from conv_advisor.app.web.views import AdviceView
from conv_advisor.models.advice.advice import Advice
from conv_advisor.models.advice.neighbours import Neighbour
from conv_advisor.models.planning.plan import Plan

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a text that a spreadsheet takes for a formula."""


@dataclass(frozen=True)
class Table:
    """Rows under named columns.

    Parameters
    ----------
    columns : tuple of str
    rows : sequence of sequence
        Texts, numbers, booleans and None.
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]

    def as_json(self) -> str:
        """An array of objects; null where a number is not finite."""
        return json.dumps([dict(zip(self.columns, map(_plain, row), strict=True)) for row in self.rows], indent=1)

    def as_csv(self) -> str:
        """Comma-separated values (RFC 4180); no cell is taken for a formula by a spreadsheet."""
        file = io.StringIO()
        writer = csv.writer(file)
        writer.writerow(self.columns)
        writer.writerows([_cell(value) for value in row] for row in self.rows)
        return file.getvalue()


def ranking(view: AdviceView) -> Table:
    """Every variant of a ranking, fastest first."""
    return _table(
        view.rows,
        place="place",
        variant="choice.variant",
        time_ms="choice.time_ms",
        source="choice.source",
        low_ms="low_ms",
        high_ms="high_ms",
        predicted_ms="predicted_ms",
        slowdown="choice.slowdown",
        is_tied="choice.is_tied",
        workspace_bytes="choice.workspace_bytes",
        max_error="max_error",
        error_source="error_source",
        is_deterministic="choice.is_deterministic",
    )


def excluded(view: AdviceView) -> Table:
    """The variants that are out, and why."""
    return _table(view.excluded, variant="variant", reason="reason")


def decisions(view: AdviceView) -> Table:
    """The path through the tree, first to last."""
    return _table(
        view.decisions,
        place="place",
        feature="decision.feature",
        label="decision.label",
        unit="decision.unit",
        actual="decision.actual",
        is_below="decision.is_below",
        limit="decision.limit",
        share_before="decision.share_before",
        share_after="decision.share_after",
        n_leaves_taken="decision.taken.n_leaves",
        n_leaves_other="decision.other.n_leaves",
        favourite_other="decision.other.favourite",
    )


def tradeoffs(view: TradeoffsView) -> Table:
    """Every variant with its time, workspace and error; the Pareto front is marked."""
    points = sorted([*view.front, *view.rest], key=lambda pair: pair[0])
    return _table(
        [point for _, point in points],
        variant="variant",
        is_on_front="is_on_front",
        time_ms="time_ms",
        source="source",
        slowdown="slowdown",
        workspace_bytes="workspace_bytes",
        max_error="max_error",
        error_source="error_source",
        is_deterministic="is_deterministic",
    )


def neighbours(near: Sequence[Neighbour]) -> Table:
    """The nearest measured layers, and how the advised variant did there."""
    return _table(
        near,
        layer="layer",
        distance_octaves="distance",
        variant="variant",
        time_ms="time_ms",
        advised_slowdown="advised_slowdown",
    )


def baselines(view: AdviceView) -> Table:
    """The alternatives to the advised variant, and how their times are known."""
    return _table(
        view.against.rivals,
        name="name",
        variant="baseline.variant",
        time_ms="baseline.time_ms",
        source="baseline.source",
        speedup="baseline.speedup",
        basis="baseline.basis",
    )


def network(view: NetworkView) -> Table:
    """The layers of a network with the advised variant of each, and the times of the alternatives."""
    columns = ("layer", "count", "variant", "time_ms", "total_ms", "source", "workspace_bytes", "origin")
    others = tuple(f"{name}_{part}" for name in ORDER for part in ("ms", "source"))
    rows = []
    for row in view.rows:
        best = row.advice.best if row.advice else None
        best_cells = (
            (best.variant, best.time_ms, row.total_ms, best.source, best.workspace_bytes) if best else (None,) * 5
        )
        rows.append((row.problem.short, row.count, *best_cells, row.origin, *_others(row.advice)))
    return Table(columns + others, rows)


def plan(plans: Mapping[int, Plan]) -> Table:
    """The layers of a plan, in each of its batches."""
    return Table(PLAN_COLUMNS, [[row.get(name) for name in PLAN_COLUMNS] for row in plan_rows(plans)])


def _others(advice: Advice | None) -> Iterator[Any]:
    for name in ORDER:
        baseline = getattr(advice.baselines, name) if advice else None
        yield from (baseline.time_ms, baseline.source) if baseline else (None, None)


def landscape(view: MapView) -> Table:
    """Every cell of a map."""
    land = view.landscape
    cells = [
        (x, y, None if place is None else land.variants[place])
        for y, row in zip(land.y_values, land.winners, strict=True)
        for x, place in zip(land.x_values, row, strict=True)
    ]
    return Table((str(land.x), str(land.y), "variant"), cells)


def scores(models: dict[str, list[ModelRow]]) -> Table:
    """How every tree did on layers that it was not trained on, over all and by precision and layout."""
    judged = [
        (row, part.title, score)
        for rows in models.values()
        for row in rows
        for part in row.judged
        for score in (part.overall, *part.by_precision)
    ]
    trees = _table([row for row, _, _ in judged], device="entry.device_id", model="entry.id", created="created")
    score_table = _table(
        [score for _, _, score in judged],
        part="name",
        geometric_mean="geometric_mean",
        p95="p95",
        worst="worst",
        share_tied="share_tied",
    )
    titles = [title for _, title, _ in judged]
    return Table(
        (*trees.columns, "judged_on", *score_table.columns),
        [(*tree, title, *score) for tree, title, score in zip(trees.rows, titles, score_table.rows, strict=True)],
    )


def jobs(rows: Iterable[JobRow]) -> Table:
    """The jobs of the database."""
    return _table(
        rows,
        id="job.id",
        job="title",
        state="job.state",
        attempt="job.attempt",
        created="job.created_at",
        elapsed_s="elapsed_s",
        outcome="outcome",
    )


def measurements(runs: Iterable[RunView]) -> Table:
    """The measurements of this service."""
    columns = ("id", "layer", "dtype", "layout", "device", "state", "done", "total", "elapsed_s", "variant", "time_ms")
    rows = []
    for view in runs:
        p, best = view.problem, view.best.measurement if view.best else None
        best_cells = (best.variant, best.time_ms) if best else (None, None)
        run_cells = (view.run.id, p.short, p.dtype, p.layout, view.run.device.id, view.run.state)
        rows.append((*run_cells, view.done, view.total, view.run.elapsed_s, *best_cells))
    return Table(columns, rows)


def measurement(view: RunView) -> Table:
    """The measured times of one run, beside the predicted ones."""
    columns = ("variant", "state", "time_ms", "predicted_ms", "ratio", "max_error", "n_samples", "detail")
    rows = []
    for row in view.rows:
        measured = row.measurement
        time_ms, max_error = (measured.time_ms, measured.max_error) if measured else (None, None)
        samples, detail = (len(measured.samples_ms), measured.detail) if measured else (0, "")
        rows.append((row.variant, row.state, time_ms, row.predicted_ms, row.ratio, max_error, samples, detail))
    return Table(columns, rows)


def compared(view: ComparedView) -> Table:
    """Every variant on two layers; empty cells where it is out."""
    columns = ("variant", "time_ms", "slowdown", "source", "other_time_ms", "other_slowdown", "other_source", "ratio")
    rows = []
    for row in view.rows:
        cells = [(choice.time_ms, choice.slowdown, choice.source) if choice else (None,) * 3 for choice in row.choices]
        rows.append((row.variant, *cells[0], *cells[1], row.ratio))
    return Table(columns, rows)


def regret(rows: Iterable[Regretted]) -> Table:
    """What following a tree would have cost, problem by problem."""
    return _table(
        rows,
        problem="problem.key",
        measured_at="measured_at",
        advised="advised",
        fastest="fastest",
        slowdown="slowdown",
    )


def layers(view: SearchView) -> Table:
    """The layers that a search shows."""
    cells = [(layer.short, " ".join(layer.kinds), ", ".join(name for name, _ in layer.places)) for layer in view.layers]
    return Table(("layer", "kinds", "networks"), cells)


def _table(rows: Iterable[Any], **columns: str) -> Table:
    """A table of attributes of these values; each column names its attribute, dotted where it is nested."""
    readers = [attrgetter(path) for path in columns.values()]
    return Table(tuple(columns), [[read(row) for read in readers] for row in rows])


def _plain(value: Any) -> Any:
    """The value as JSON can express it."""
    if isinstance(value, datetime):
        return value.isoformat()
    return None if isinstance(value, float) and not isfinite(value) else value


def _cell(value: Any) -> Any:
    value = _plain(value)
    is_formula = isinstance(value, str) and value.startswith(_FORMULA)
    return f"'{value}" if is_formula else value
