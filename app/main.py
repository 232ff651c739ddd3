"""The application: `create_app` makes it; importing this module makes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from conv_advisor.app.guard.middleware import Guard, keyring_of, rates_of
from conv_advisor.app.hosts import Hosts
from conv_advisor.app.observe import traces
from conv_advisor.app.observe.meter import Meter
from conv_advisor.app.observe.registry import Metrics
from conv_advisor.app.observe.templates import Templates
from conv_advisor.app.routes import (
    advice,
    catalogue,
    convolutions,
    details,
    health,
    inference,
    insight,
    jobs,
    models,
    pages,
    plans,
    problems,
    session,
    tables,
)
from conv_advisor.app.routes import metrics as scraped
from conv_advisor.app.server import openapi
from conv_advisor.app.server.application import Application
from conv_advisor.app.server.border import Border
from conv_advisor.app.server.head import Head
from conv_advisor.app.service.service import Service
from conv_advisor.app.settings import Settings
from conv_advisor.app.wire import errors
from conv_advisor.app.workers.opening import OpenEngine, open_engine
from conv_advisor.data.shipped import TIMINGS
from conv_advisor.data.version import version

_DESCRIPTION = """
Which convolution algorithm is fastest for a layer on a GPU: measured, learned, served.

A layer is written `size-batch-filter-filters-depth`, such as `14-1-3-256-128`, followed by what differs from the
default, `56-1-3-128-64-stride2-pad0-dilation2-groups4-relu`, or by named parameters
(`n c h w k r s stride_h stride_w pad_h pad_w dilation_h dilation_w groups dtype layout`).

Every error is a problem document (RFC 9457), whose `type` is an address that explains it: 400 for a value that is not
allowed, 404 for an unknown name, 409 for what cannot be done with this layer on this device, 413 and 415 for a body
that is too long or of the wrong type, 422 for a payload that cannot be parsed, 503 and 504 for a worker that is busy,
gone or too slow.
"""


def create_app(settings: Settings, *, open_engine: OpenEngine = open_engine, timings: Path = TIMINGS) -> Application:
    """Make the application; its store and workers are opened when it starts.

    Parameters
    ----------
    settings : Settings
    open_engine : callable (settings) -> Engine
        Finds the device and starts its worker; tests give one that replays a recording.
    timings : Path
        Folder of the shipped tables of measurements.
    """

    keyring, rates = keyring_of(settings), rates_of(settings)
    tracer = traces.provider(settings.otlp_endpoint) if settings.otlp_endpoint else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = Service(settings, open_engine, timings)
        await asyncio.to_thread(service.start)
        app.state.service = service
        if metrics is not None:
            metrics.watch(service)
        try:
            async with pages.measuring(app):
                yield
        finally:
            await asyncio.to_thread(service.close)
            if tracer is not None:
                await asyncio.to_thread(tracer.shutdown)

    app = Application(
        title="conv-advisor",
        summary="Advice on convolution algorithms, from measurements",
        description=_DESCRIPTION,
        version=version(),
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        lifespan=lifespan,
        servers=[{"url": "/", "description": "This server."}],
        openapi_tags=openapi.TAGS,
        generate_unique_id_function=openapi.operation_id,
        docs_url=None,
        redoc_url=None,
        telemetry=traces.config(tracer),
    )
    app.state.keyring = keyring
    templates = Templates(app)
    meter = Meter(templates) if settings.metrics else None
    metrics = app.state.metrics = Metrics(meter, keyring) if meter else None
    if metrics is not None:
        app.include_router(scraped.router)
    for routes in (advice, details, plans, convolutions, inference, models, jobs, catalogue, insight, health, problems):
        app.include_router(routes.router)
    app.include_router(session.router)
    app.include_router(tables.router)
    pages.install(app)
    errors.install(app)
    openapi.install(app, needs_token=keyring is not None)
    app.add_middleware(advice.Advice)
    app.add_middleware(Head)
    if keyring is not None or rates is not None:
        app.add_middleware(Guard, keyring=keyring, rates=rates)
    app.add_middleware(
        Border, max_body_bytes=settings.max_body_bytes, templates=templates, hosts=Hosts(settings.hosts), meter=meter
    )
    return app
