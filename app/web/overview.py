"""What the page shows of networks, models, jobs and the map, as values that a template only has to place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, Final

import msgspec

from conv_advisor.app.advice.advise import advise
from conv_advisor.app.advice.insight import LandscapeParameters, survey_of
from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.jobs.table import Job, JobKind, JobState
from conv_advisor.app.service.service import Service
from conv_advisor.app.web import text
from conv_advisor.app.web.against import TotalAgainst, totals_against
from conv_advisor.app.web.forms import LIMITS, LayerForm, address
from conv_advisor.app.web.networks import TITLES, layers_of
from conv_advisor.data import networks
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import InvalidInput, InvalidProblem, NoAdvice
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.models.advisor import Advice
from conv_advisor.models.changes import Changes
from conv_advisor.models.explain import favourites
from conv_advisor.models.landscape import Axis, Landscape
from conv_advisor.models.registry import Entry

BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)

COLOURS: Final = 10
"""Variants that have a colour of their own; the others share one."""

JUDGED_ON: Final = {
    "never_trained": "On networks never trained on",
    "leave_one_network_out": "On networks trained on, each left out in turn; others like it stay",
}
"""Parts of a card's scores, the strictest first: networks share layers, so that leaving one out hides little."""


@dataclass(frozen=True)
class Status:
    """What can be done now."""

    device_name: str
    device_id: str
    missing: Mapping[str, str]


@dataclass(frozen=True)
class NetworkRow:
    """One distinct layer of a network; without advice where nothing is known to run it.

    Parameters
    ----------
    problem : ConvProblem
    count : int
        How often one pass runs it.
    origin : str
        The layer's name or place in the network; of a list that has no one source, that too.
    advice : Advice or None
    total_ms : float
        What all its runs in one pass take.
    share : float
        Its total over that of the layer with the greatest, in percent.
    href : str
        Its advice.
    """

    problem: ConvProblem
    count: int
    origin: str
    advice: Advice | None
    total_ms: float
    share: float
    href: str


@dataclass(frozen=True)
class NetworkView:
    """A network at one batch, precision and layout.

    Parameters
    ----------
    name, title : str
    source : str
        Where all its layers come from; empty where they come from several places.
    is_whole : bool
        Whether it has every convolution of a network, with how often; else a list of layers, each once.
    rows : sequence of NetworkRow
    total_ms : float
        What all convolutions take with the fastest variant of each.
    flops : int
        Those of all convolutions.
    against : sequence of TotalAgainst
        What others take for it.
    n_measured : int
        Layers whose advised time was measured.
    device_id : str
    table_query : str
        What asks for its table.
    """

    name: str
    title: str
    source: str
    is_whole: bool
    rows: Sequence[NetworkRow]
    total_ms: float
    flops: int
    against: Sequence[TotalAgainst]
    n_measured: int
    device_id: str
    table_query: str

    @property
    def n_runs(self) -> int:
        """Convolutions of one pass."""
        return sum(row.count for row in self.rows)

    @property
    def n_unknown(self) -> int:
        """Layers that nothing is known to run: they are in no total."""
        return sum(row.advice is None for row in self.rows)


@dataclass(frozen=True)
class LegendEntry:
    """One variant that wins somewhere."""

    variant: str
    colour: int
    letter: str
    share: float


@dataclass(frozen=True)
class MapView:
    """A landscape with its legend, a table for those who do not see colours, and the values that are drawn."""

    landscape: Landscape
    legend: Sequence[LegendEntry]
    own: str | None
    n_empty: int
    data: str

    def letter(self, place: int | None) -> str:
        """How the legend calls the winner of a cell."""
        return text.NONE if place is None else self.legend[place].letter


@dataclass(frozen=True)
class Score:
    """How one tree did on layers held out from it, for one precision and layout, or for all of them."""

    name: str
    geometric_mean: float
    p95: float | None
    worst: float | None
    share_tied: float | None


@dataclass(frozen=True)
class Judged:
    """How one tree did on one kind of layers it was not trained on.

    Parameters
    ----------
    title : str
        Which layers those are.
    overall : Score
    by_precision : sequence of Score
    """

    title: str
    overall: Score
    by_precision: Sequence[Score] = ()


@dataclass(frozen=True)
class ModelRow:
    """One tree; what says most of layers that nobody has seen comes first."""

    entry: Entry
    judged: Sequence[Judged]
    n_problems: int | None
    n_layers: int | None
    n_times: int | None
    created: str
    changes: Changes | None = None
    """Against the tree before it."""


@dataclass(frozen=True)
class JobRow:
    """One job of the database."""

    job: Job
    title: str
    outcome: str
    elapsed_s: float | None


def status_view(service: Service) -> Status:
    """What the header says of the worker, and what keeps the service from doing all it is for."""
    device = service.device
    return Status(device.name if device else "", device.id if device else "", service.shortcomings())


def device_ids(service: Service) -> list[str]:
    """The devices that can be asked about, that which is asked by default first."""
    known = list(service.devices())
    try:
        default = service.default_device_id()
    except NoAdvice:
        return known
    return sorted(known, key=lambda device_id: device_id != default)


def network_view(service: Service, name: str, values: Mapping[str, str]) -> NetworkView:
    """Advice on every layer of a network.

    Raises
    ------
    UnknownNetwork, InvalidInput, UnknownDevice, ModelRejected, StoreError
    """
    dtype = _member(DType, "dtype", values.get("dtype") or DType.FLOAT32)
    layout = _member(Layout, "layout", values.get("layout") or Layout.NCHW)
    batch = _batch(values.get("batch") or "1")
    device_id = values.get("device") or service.default_device_id()
    advisor = service.advisor(device_id)
    layers = layers_of(name)
    problems = [replace(layer.problem, n=batch, dtype=dtype, layout=layout) for layer in layers]
    limit = service.settings.workspace_limit_bytes
    answers = advise(service, advisor, problems, Limits(device_id, limit, is_deterministic=False))
    advices = [answer if isinstance(answer, Advice) else None for answer in answers]
    totals_ms = [
        layer.count * advice.best.time_ms if advice else 0.0 for layer, advice in zip(layers, advices, strict=True)
    ]
    query = {"dtype": dtype, "layout": layout, "device": device_id}
    source = _common_source([layer.source for layer in layers])
    rows = [
        NetworkRow(
            problem=problem,
            count=layer.count,
            origin=layer.source.removeprefix(source).removeprefix(", "),
            advice=advice,
            total_ms=total_ms,
            share=100 * total_ms / (max(totals_ms) or 1.0),
            href=address("/", layer=problem.short, network=name, **query),
        )
        for problem, layer, advice, total_ms in zip(problems, layers, advices, totals_ms, strict=True)
    ]
    return NetworkView(
        name=name,
        title=TITLES.get(name, name),
        source=source,
        is_whole=networks.is_network(name),
        rows=rows,
        total_ms=sum(totals_ms),
        flops=sum(row.count * row.problem.flops for row in rows),
        against=totals_against(zip((layer.count for layer in layers), advices, strict=True)),
        n_measured=sum(advice is not None and advice.best.source == "measured" for advice in advices),
        device_id=device_id,
        table_query=address("", name=name, batch=batch, **query),
    )


def _common_source(sources: Sequence[str]) -> str:
    """What all sources begin with: the paper, or the library and its network."""
    parts = zip(*(source.split(", ") for source in sources), strict=False)
    return ", ".join(same[0] for same in takewhile(lambda same: len(set(same)) == 1, parts))


def map_view(service: Service, form: LayerForm, x: str, y: str) -> MapView:
    """Which variant wins over two axes, around the layer of a form.

    Raises
    ------
    InvalidInput, NoAdvice, UnknownDevice, ModelRejected
    """
    asked = form.parameters(LandscapeParameters, x=_member(Axis, "x", x), y=_member(Axis, "y", y))
    landscape, model = survey_of(service, asked)
    problem = landscape.problem
    ranked = favourites(model, problem.dtype, problem.layout)[:COLOURS]
    cells = [place for row in landscape.winners for place in row if place is not None]
    legend = [
        LegendEntry(name, _colour(name, ranked), _letter(place), cells.count(place) / max(len(cells), 1))
        for place, name in enumerate(landscape.variants)
    ]
    row = landscape.winners[landscape.y_values.index(landscape.y.of(problem))]
    own = row[landscape.x_values.index(landscape.x.of(problem))]
    n_empty = sum(place is None for row in landscape.winners for place in row)
    own_name = None if own is None else landscape.variants[own]
    query = {"dtype": problem.dtype, "layout": problem.layout, "device": model.device.id} | form.kept(*LIMITS)
    return MapView(landscape, legend, own_name, n_empty, _map_data(landscape, legend, query))


def model_rows(service: Service) -> dict[str, list[ModelRow]]:
    """Every tree, by device; the one in use first, then the newest."""
    found: dict[str, list[ModelRow]] = {}
    for entry in service.registry.list():
        found.setdefault(entry.device_id, []).append(_model_row(entry))
    for rows in found.values():
        rows.sort(key=lambda row: row.created, reverse=True)
        rows.sort(key=lambda row: not row.entry.is_active)
    return found


def job_rows(jobs: Iterable[Job]) -> list[JobRow]:
    """Jobs with what they are and how they ended, in words."""
    return [JobRow(job, _title(job), _outcome(job), _elapsed_s(job)) for job in jobs]


def _map_data(landscape: Landscape, legend: Sequence[LegendEntry], query: Mapping[str, str]) -> str:
    """What the drawing needs, as JSON: of each cell its winner and its layer, which is asked about with this query."""
    problem = landscape.problem
    return json.dumps(
        {
            "x": {"name": landscape.x, "values": landscape.x_values, "at": landscape.x.of(problem)},
            "y": {"name": landscape.y, "values": landscape.y_values, "at": landscape.y.of(problem)},
            "variants": [{"name": each.variant, "colour": each.colour, "letter": each.letter} for each in legend],
            "winners": landscape.winners,
            "layers": [[_layer_at(landscape, x, y) for x in landscape.x_values] for y in landscape.y_values],
            "query": query,
        }
    )


def _layer_at(landscape: Landscape, x: int, y: int) -> str | None:
    """The short form of the layer of a cell; None where there is no such layer."""
    try:
        return landscape.y.put(landscape.x.put(landscape.problem, x), y).short
    except InvalidProblem:
        return None


def _colour(variant: str, ranked: Sequence[str]) -> int:
    return ranked.index(variant) + 1 if variant in ranked else 0


def _letter(place: int) -> str:
    """A, B, ..., Z, A1, B1, ..."""
    round_, letter = divmod(place, 26)
    return chr(ord("A") + letter) + (str(round_) if round_ else "")


def _model_row(entry: Entry) -> ModelRow:
    card = entry.card
    return ModelRow(
        entry,
        _judged(card.get("scores") or {}),
        card.get("n_problems"),
        card.get("n_layers"),
        card.get("n_times"),
        str(card.get("created", "")),
        _changes(card.get("changes")),
    )


def _changes(said: object) -> Changes | None:
    """What a card says of the tree before; None where it says nothing that can be read."""
    try:
        return msgspec.convert(said, Changes) if said else None
    except msgspec.ValidationError:
        return None


def _judged(scores: Mapping[str, Any]) -> list[Judged]:
    """The scores on a card: those on whole networks, else that on the layers held out."""
    found = []
    for part, title in JUDGED_ON.items():
        by_name = scores.get(part)
        if isinstance(by_name, Mapping) and "overall" in by_name:
            precisions = [_score(name, by_name[name]) for name in sorted(by_name) if name != "overall"]
            found.append(Judged(title, _score("overall", by_name["overall"]), precisions))
    held_out = scores.get("held_out_slowdown", scores.get("geometric_mean"))
    if not found and held_out is not None:
        found.append(Judged("On layers held out", Score("overall", float(held_out), None, None, None)))
    return found


def _score(name: str, found: Mapping[str, float]) -> Score:
    return Score(name, found["geometric_mean"], found.get("p95"), found.get("worst"), found.get("share_tied"))


def _title(job: Job) -> str:
    """What a job is, in a line: its kind, what it is about, and the device."""
    asked = job.request
    about = ""
    if job.kind is JobKind.SWEEP:
        sampled = [f"{asked['sampled']} sampled layers"] if asked.get("sampled") else []
        about = f" of {', '.join([*(TITLES.get(name, name) for name in asked.get('networks', ())), *sampled])}"
    elif job.kind is JobKind.MEASURE:
        about = f" {counted(len(asked.get('layers', ())), 'layer')}"
    return f"{str(job.kind).capitalize()}{about} {_on(job)}".strip()


def _on(job: Job) -> str:
    device_id = job.request.get("device", "")
    return device_id if job.kind is JobKind.RETRAIN else f"on {device_id}"


def _outcome(job: Job) -> str:
    """How a job ended, or what it does."""
    if job.state is JobState.FAILED and job.error:
        return str(job.error.get("detail", ""))
    if job.state is not JobState.SUCCEEDED or not job.result:
        return job.message
    if "model" in job.result:
        return _of_training(job.result)
    return _of_measuring(job.result) if "outcomes" in job.result else job.message


def _of_measuring(result: Mapping[str, Any]) -> str:
    outcomes: Mapping[str, int] = result["outcomes"]
    measured = outcomes.get("measured", 0)
    rest = sum(outcomes.values()) - measured
    problems = counted(result["problems"], "problem")
    return (
        f"{problems}: {counted(measured, 'time')} measured, {counted(rest, 'attempt')} without; run {result['run_id']}"
    )


def _of_training(result: Mapping[str, Any]) -> str:
    why = "; ".join(result.get("reasons", ())) or "it was not better"
    verdict = "in use" if result.get("promoted") else f"kept, not in use: {why}"
    held_out = result.get("slowdown")
    before = result.get("champion_slowdown")
    said = f"tree {result['model']} is {verdict}"
    if held_out is not None:
        said += f"; {held_out:.3f}× the fastest on layers held out"
    return said + (f", the one before {before:.3f}×" if before is not None else "")


def _elapsed_s(job: Job) -> float | None:
    if job.started_at is None:
        return None
    return ((job.finished_at or datetime.now(UTC)) - job.started_at).total_seconds()


def _batch(text_: str) -> int:
    if not (text_.isascii() and text_.isdigit() and 0 < int(text_) <= 2**31 - 1):
        raise InvalidInput("batch", text_, "an integer from 1 to 2147483647")
    return int(text_)


def _member(kind: Any, field: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise InvalidInput(field, value, ", ".join(kind)) from None
