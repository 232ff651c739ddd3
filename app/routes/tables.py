"""GET /tables/{name}.csv and .json: every table of the pages, from the query of the page that shows it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Final

from fastapi import APIRouter, Request, Response

from conv_advisor.app.plans.parameters import NetworkParameters
from conv_advisor.app.plans.planning import plan_known
from conv_advisor.app.routes.pages import PageRoute, measuring_of
from conv_advisor.app.service.regret import live_regret
from conv_advisor.app.service.service import Service, service_of
from conv_advisor.app.web import compare, networks, planned, tables
from conv_advisor.app.web.compressed import packed
from conv_advisor.app.web.forms import layer_form
from conv_advisor.app.web.jobs import job_rows
from conv_advisor.app.web.map import map_view
from conv_advisor.app.web.measured import run_view
from conv_advisor.app.web.measuring import Measuring
from conv_advisor.app.web.models import model_rows
from conv_advisor.app.web.search import search_view
from conv_advisor.app.web.tables import Table
from conv_advisor.app.web.tradeoffs import details_view
from conv_advisor.app.web.views import AdviceView, advice_view
from conv_advisor.data.errors import InvalidInput, NoAdvice, Unknown
from conv_advisor.models.advice.landscape import Axis

router = APIRouter(route_class=PageRoute, include_in_schema=False)

MEDIA_TYPES: Final = {"csv": "text/csv; charset=utf-8", "json": "application/json"}

Query = Mapping[str, str]


def advice_table(make: Callable[[AdviceView], Table]) -> Callable[[Service, Query], Table]:
    """A function that makes a table from the view of one layer's page."""
    return lambda service, query: make(advice_view(service, layer_form(query)))


def tradeoffs_table(service: Service, query: Query) -> Table:
    """The tradeoffs of every variant on a layer."""
    form = layer_form(query)
    view = advice_view(service, form)
    details = details_view(service, form.filled(view.problem, view.advice.device_id), view.advisor, view.advice)
    if details.tradeoffs is None:
        raise NoAdvice(str((details.tradeoffs_problem or {}).get("detail", "")))
    return tables.tradeoffs(details.tradeoffs)


def neighbours_table(service: Service, query: Query) -> Table:
    """The nearest measured layers."""
    form = layer_form(query)
    view = advice_view(service, form)
    details = details_view(service, form.filled(view.problem, view.advice.device_id), view.advisor, view.advice)
    return tables.neighbours(details.neighbours or ())


def compared_table(service: Service, query: Query) -> Table:
    """Every variant on two layers."""
    return tables.compared(compare.compared_view(service, *compare.compared_forms(query)))


def network_table(service: Service, query: Query) -> Table:
    """The layers of the network that is named ``name``."""
    return tables.network(networks.network_view(service, query.get("name", ""), query))


def plan_table(service: Service, query: Query) -> Table:
    """The layers of the plan of a network that ships."""
    return tables.plan(plan_known(service, planned.asked_of(NetworkParameters, {**planned.ASKED, **query})))


def map_table(service: Service, query: Query) -> Table:
    """The cells of a map."""
    x, y = query.get("x", Axis.SIZE), query.get("y", Axis.BATCH)
    return tables.landscape(map_view(service, layer_form(query), x, y))


def regret_table(service: Service, query: Query) -> Table:
    """What following the tree of ``device`` costs on the layers measured here."""
    return tables.regret(live_regret(service, service.known.find_met(query.get("device", "")).id))


TABLES: Final[Mapping[str, Callable[[Service, Query], Table]]] = {
    "ranking": advice_table(tables.ranking),
    "baselines": advice_table(tables.baselines),
    "excluded": advice_table(tables.excluded),
    "decisions": advice_table(tables.decisions),
    "tradeoffs": tradeoffs_table,
    "neighbours": neighbours_table,
    "compared": compared_table,
    "network": network_table,
    "plan": plan_table,
    "map": map_table,
    "scores": lambda service, _query: tables.scores(model_rows(service)),
    "regret": regret_table,
    "jobs": lambda service, _query: tables.jobs(job_rows(service.jobs.list())),
    "layers": lambda _service, query: tables.layers(search_view(query.get("q", ""))),
}
"""The function that makes each table from the query of its page, by the table's name."""

RUNS: Final[Mapping[str, Callable[[Measuring, Query], Table]]] = {
    "measurements": lambda measuring, _query: tables.measurements(map(run_view, measuring.list())),
    "measurement": lambda measuring, query: tables.measurement(run_view(measuring.get(query.get("run", "")))),
}
"""The same for tables of what this process has measured."""


@router.get("/tables/{name}.{kind}")
async def show_table(request: Request, name: str, kind: str) -> Response:
    """One table, to be kept as a file."""
    query = {key: value.strip() for key, value in request.query_params.items()}
    if kind not in MEDIA_TYPES:
        raise InvalidInput("kind", kind, ", ".join(MEDIA_TYPES))
    if name in RUNS:  # the event loop changes the runs: they are read on it
        table = RUNS[name](measuring_of(request), query)
    elif name in TABLES:
        table = await asyncio.to_thread(TABLES[name], service_of(request), query)
    else:
        raise Unknown(name, sorted({*TABLES, *RUNS}))
    file = f'attachment; filename="{_file_name(name, query)}.{kind}"'
    text = table.as_csv() if kind == "csv" else table.as_json()
    body, headers = packed(text.encode(), request.headers)
    return Response(body, media_type=MEDIA_TYPES[kind], headers={"content-disposition": file} | headers)


def _file_name(name: str, query: Query) -> str:
    """The table's name with what it is about, in letters that any file system takes."""
    about = (query.get(field, "") for field in ("name", "layer", "dtype", "layout", "device"))
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join((name, *filter(None, about))))[:120]
