"""The web pages: GET answers whole pages, from which htmx takes its part; POST answers that part alone."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from conv_advisor.app.jobs.requests import RetrainJob
from conv_advisor.app.plans.parameters import NetworkParameters, PlanParameters
from conv_advisor.app.plans.planning import Plans, plan_known
from conv_advisor.app.routes.plans import plans_of_body
from conv_advisor.app.routes.submission import submit
from conv_advisor.app.service.service import Service, service_of
from conv_advisor.app.web import networks, planned
from conv_advisor.app.web.compare import ComparedView, compared_forms, compared_view, other_fields
from conv_advisor.app.web.elsewhere import Elsewhere, Here, advice_elsewhere, map_elsewhere, plan_elsewhere
from conv_advisor.app.web.forms import address, layer_form, read_form
from conv_advisor.app.web.jobs import job_rows
from conv_advisor.app.web.learning import learning_views
from conv_advisor.app.web.map import MapView, map_view
from conv_advisor.app.web.measured import run_view
from conv_advisor.app.web.measuring import Measuring, Run
from conv_advisor.app.web.models import model_rows
from conv_advisor.app.web.render import STATIC, Assets, is_fragment, page
from conv_advisor.app.web.search import search_view
from conv_advisor.app.web.status import askable_ids, device_ids, status_view
from conv_advisor.app.web.tradeoffs import DetailsView, details_view
from conv_advisor.app.web.views import AdviceView, advice_view
from conv_advisor.app.wire.caller import caller_name
from conv_advisor.app.wire.errors import problem_of, refusal
from conv_advisor.data.errors import ConvAdvisorError
from conv_advisor.kernels.bench import BenchOptions
from conv_advisor.models.advice.landscape import Axis

BEST: Final = 5
"""Number of variants that are measured where only the best are requested."""


class PageRoute(APIRoute):
    """A route whose errors are pages too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with its errors shown."""
        handle = super().get_route_handler()

        async def handle_shown(request: Request) -> Response:
            try:
                return await handle(request)
            except ConvAdvisorError as error:
                return _error_page(request, problem_of(error))
            except HTTPException as error:
                document = {"status": error.status_code, "title": "Refused", "detail": str(error.detail)}
                return _error_page(request, document)

        return handle_shown


router = APIRouter(route_class=PageRoute, include_in_schema=False)


def install(app: FastAPI) -> None:
    """Add the pages, their static files, and the page for unknown addresses."""
    app.include_router(router)
    app.mount("/static", Assets(directory=STATIC), name="static")
    app.add_exception_handler(404, _on_nothing_here)


@asynccontextmanager
async def measuring(app: FastAPI) -> AsyncIterator[None]:
    """Hold the measurements that pages show, for as long as the application runs."""
    app.state.measuring = Measuring()
    try:
        yield
    finally:
        await app.state.measuring.close()


def measuring_of(request: Request) -> Measuring:
    """The measurements of this process."""
    runs: Measuring = request.app.state.measuring
    return runs


@router.get("/")
async def show_advice(request: Request) -> Response:
    """Advice on one layer, as it is typed."""
    service = service_of(request)
    form = layer_form(request.query_params)
    view: AdviceView | None = None
    details: DetailsView | None = None
    problem: dict[str, Any] | None = None
    try:
        view = await asyncio.to_thread(advice_view, service, form)
        form = form.filled(view.problem, view.advice.device_id)
        details = await asyncio.to_thread(details_view, service, form, view.advisor, view.advice)
    except ConvAdvisorError as error:
        view, problem = None, problem_of(error)
    devices, status = await asyncio.to_thread(lambda: (askable_ids(service), status_view(service)))
    values: dict[str, Any] = {"form": form, "view": view, "details": details, "problem": problem}
    values |= {"devices": devices, "status": status, "same": advice_elsewhere(_here(request), form) if view else None}
    values |= {"groups": networks.network_groups(), "titles": networks.TITLES}
    response = page(request, "advice.html", values, problem["status"] if problem else 200)
    if view:
        response.headers["HX-Push-Url"] = form.address("/", network=form["network"], language=form["language"])
    return response


@router.get("/compare")
async def show_compared(request: Request) -> Response:
    """Two layers beside each other."""
    service = service_of(request)
    first, second = compared_forms(request.query_params)
    view: ComparedView | None = None
    problem: dict[str, Any] | None = None
    try:
        view = await asyncio.to_thread(compared_view, service, first, second)
        first, second = (side.form for side in view.sides)
    except ConvAdvisorError as error:
        problem = problem_of(error)
    devices = await asyncio.to_thread(askable_ids, service)
    values = {"first": first, "second": second, "view": view, "problem": problem, "devices": devices}
    response = page(request, "compare.html", values, problem["status"] if problem else 200)
    if view:
        response.headers["HX-Push-Url"] = first.address("/compare", **other_fields(second))
    return response


@router.get("/search")
async def show_found(request: Request) -> Response:
    """Networks and layers that have some words."""
    view = await asyncio.to_thread(search_view, request.query_params.get("q", ""))
    return page(request, "search.html", {"view": view, "titles": networks.TITLES})


@router.get("/guide")
async def show_guide(request: Request) -> Response:
    """How the page is read, and where the rest is documented."""
    return page(request, "guide.html", {})


@router.get("/networks")
@router.get("/networks/{name}")
async def show_network(request: Request, name: str = "resnet50") -> Response:
    """Every layer of a network with the variant that is advised for it."""
    service = service_of(request)
    query = {key: value.strip() for key, value in request.query_params.items()}
    view = await asyncio.to_thread(networks.network_view, service, name, query)
    devices = await asyncio.to_thread(askable_ids, service)
    chosen = {"batch": "1", "dtype": "float32", "layout": "nchw"} | query
    values = {"view": view, "chosen": chosen, "devices": devices, "batches": networks.BATCHES}
    return page(request, "network.html", values | {"groups": networks.network_groups(), "titles": networks.TITLES})


@router.get("/plan")
async def show_plan(request: Request) -> Response:
    """A plan of a network that ships, and the form that takes a model."""
    service = service_of(request)
    parameters: dict[str, str] = dict.fromkeys(planned.FIELDS, "") | {**planned.ASKED, **request.query_params}
    views: list[planned.PlanView] = []
    problem: dict[str, Any] | None = None
    same: Elsewhere | None = None
    query = ""
    try:
        network = planned.asked_of(NetworkParameters, parameters)
        views = planned.plan_views(await asyncio.to_thread(plan_known, service, network))
        known = planned.known(network, views[0].plan.device_id)
        same, query = plan_elsewhere(_here(request), network.name, known), address("", name=network.name, **known)
    except ConvAdvisorError as error:
        problem = problem_of(error)
    devices = await asyncio.to_thread(askable_ids, service)
    values: dict[str, Any] = {
        "asked": parameters,
        "views": views,
        "problem": problem,
        "devices": devices,
        "titles": networks.TITLES,
    }
    values |= {"names": planned.networks_by_name(), "same": same, "query": query}
    return page(request, "plan.html", values, problem["status"] if problem else 200)


@router.post("/plan")
async def post_model(request: Request) -> Response:
    """A plan of the ONNX model that is sent."""
    try:
        plans = await plans_of_body(request, planned.asked_of(PlanParameters, request.query_params))
    except ConvAdvisorError as error:
        problem = problem_of(error)
        return page(request, "planned.html", {"views": [], "problem": problem, "same": None}, problem["status"])
    return await asyncio.to_thread(_planned, request, plans)


def _planned(request: Request, plans: Plans) -> Response:
    return page(request, "planned.html", {"views": planned.plan_views(plans), "problem": None, "same": None})


@router.get("/map")
async def show_map(request: Request) -> Response:
    """Which variant wins over two sizes of a layer."""
    service = service_of(request)
    form = layer_form(request.query_params)
    x, y = request.query_params.get("x", Axis.SIZE), request.query_params.get("y", Axis.BATCH)
    view: MapView | None = None
    same: Elsewhere | None = None
    problem: dict[str, Any] | None = None
    try:
        view = await asyncio.to_thread(map_view, service, form, x, y)
        device_id = service.known.asked_id(form["device"])
        form = form.filled(view.landscape.problem, device_id)
        same = map_elsewhere(_here(request), form, x, y)
    except ConvAdvisorError as error:
        problem = problem_of(error)
    devices = await asyncio.to_thread(askable_ids, service)
    values: dict[str, Any] = {
        "form": form,
        "view": view,
        "problem": problem,
        "devices": devices,
        "same": same,
        "axes": list(Axis),
        "x": x,
        "y": y,
    }
    response = page(request, "map.html", values, problem["status"] if problem else 200)
    if view:
        response.headers["HX-Push-Url"] = form.address("/map", x=x, y=y)
    return response


@router.get("/models")
async def show_models(request: Request) -> Response:
    """The trees of every device, with their scores on layers held out."""
    service = service_of(request)
    devices = await asyncio.to_thread(device_ids, service)
    listed = await asyncio.to_thread(_listed, service)
    return page(request, "models.html", listed | {"devices": devices, "key": secrets.token_urlsafe()})


@router.post("/models/retrain")
async def retrain(request: Request) -> Response:
    """Train a tree; the job that does it."""
    service = service_of(request)
    form = await read_form(request)
    device = await asyncio.to_thread(service.known.find_met, form.get("device", ""))
    job_request = RetrainJob(kind="retrain", device=device.id, force=form.get("force") == "true")
    key = f"{form['key']}-{job_request.device}-{job_request.force}" if form.get("key") else None
    job = await submit(service, job_request, key, caller_name(request))
    if not is_fragment(request):
        return RedirectResponse("/jobs", 303)
    (row,) = job_rows([job])
    return page(request, "retrained.html", {"row": row, "key": secrets.token_urlsafe()})


@router.post("/models/activate")
async def activate(request: Request) -> Response:
    """Put one of a device's trees in charge; the list as it then is."""
    service = service_of(request)
    form = await read_form(request)
    device_id = await asyncio.to_thread(service.known.id_of, form.get("device", ""))
    await service.writing.run(service.models.activate, device_id, form.get("model", ""))
    if not is_fragment(request):
        return RedirectResponse("/models", 303)
    return page(request, "models-list.html", await asyncio.to_thread(_listed, service) | {"changed": form["model"]})


@router.get("/jobs")
async def show_jobs(request: Request) -> Response:
    """The newest jobs, and the measurements of this service."""
    jobs = await asyncio.to_thread(service_of(request).jobs.list)
    runs = [run_view(run) for run in measuring_of(request).list()]
    return page(request, "jobs.html", {"rows": job_rows(jobs), "runs": runs})


@router.get("/jobs/{job_id}")
async def show_job(request: Request, job_id: str) -> Response:
    """One job."""
    job = await asyncio.to_thread(service_of(request).jobs.get, job_id)
    (row,) = job_rows([job])
    response = page(request, "job.html" if is_fragment(request) else "job-page.html", {"row": row})
    if job.state.is_final:
        response.headers["HX-Trigger"] = "job-ended"  # a list of models on the same page reloads
    return response


@router.post("/jobs/{job_id}/cancel")
async def cancel_job(request: Request, job_id: str) -> Response:
    """Cancel a job; the job as it then is."""
    service = service_of(request)
    job = await service.writing.run(service.background.cancel, job_id)
    if not is_fragment(request):
        return RedirectResponse("/jobs", 303)
    (row,) = job_rows([job])
    return page(request, "job.html", {"row": row})


@router.post("/measurements")
async def measure(request: Request) -> Response:
    """Measure the variants of a layer on the worker's device; what is known so far, which asks for more by itself."""
    service = service_of(request)
    posted = await read_form(request)
    form = layer_form(posted)
    problem = await asyncio.to_thread(form.problem)
    options = BenchOptions(workspace_limit_bytes=service.settings.workspace_limit_bytes)
    most = BEST if posted.get("which") == "best" else None
    run = await measuring_of(request).begin(service, problem, options, most)
    if not is_fragment(request):
        return RedirectResponse(f"/measurements/{run.id}", 303)
    return _run_page(request, run)


@router.get("/measurements/{run_id}")
async def show_measurement(request: Request, run_id: str) -> Response:
    """How far a measurement is."""
    return _run_page(request, measuring_of(request).get(run_id))


@router.post("/measurements/{run_id}/cancel")
async def cancel_measurement(request: Request, run_id: str) -> Response:
    """Stop a measurement; what is known so far."""
    run = await measuring_of(request).cancel(run_id)
    if not is_fragment(request):
        return RedirectResponse(f"/measurements/{run.id}", 303)
    return _run_page(request, run)


@router.get("/status")
async def show_status(request: Request) -> Response:
    """What the header says of the worker."""
    status = await asyncio.to_thread(status_view, service_of(request))
    return page(request, "status.html", {"status": status})


def _listed(service: Service) -> dict[str, Any]:
    """Every tree, and how well the trees of each device do."""
    models = model_rows(service)
    return {"models": models, "learning": learning_views(service, models)}


def _here(request: Request) -> Here:
    return Here(str(request.base_url).rstrip("/"), needs_token=request.app.state.keyring is not None)


def _run_page(request: Request, run: Run) -> Response:
    template = "measurement.html" if is_fragment(request) else "measurement-page.html"
    view = run_view(run)
    response = page(request, template, {"run": view})
    if not view.is_running:
        response.headers["HX-Trigger"] = "measured"  # other parts of the page that show these times reload
    return response


async def _on_nothing_here(request: Request, error: Exception) -> Response:
    """A page for a client that accepts HTML; a problem document for others."""
    if request.method in ("GET", "HEAD") and "text/html" in request.headers.get("accept", ""):
        return page(request, "nothing-here.html", {}, 404)
    detail = str(getattr(error, "detail", ""))
    if detail == HTTPStatus.NOT_FOUND.phrase:  # no route took the request
        detail = f"nothing is at {quote(request.url.path[:200])}; /openapi.json has what there is, /docs shows it"
    return refusal(request.scope, 404, detail)


def _error_page(request: Request, problem: dict[str, Any]) -> Response:
    template = "error.html" if is_fragment(request) and request.method == "POST" else "error-page.html"
    return page(request, template, {"problem": problem}, problem["status"])
