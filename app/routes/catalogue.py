"""GET /v1/variants, /v1/devices and /v1/networks: what there is."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from conv_advisor.app.advice.reasons import reasons_why_not
from conv_advisor.app.service.service import service_of
from conv_advisor.app.wire.answers.catalogue import (
    DevicesAnswer,
    NetworkAnswer,
    NetworksAnswer,
    VariantsAnswer,
    applicability_answer,
    device_answer,
    published_answer,
    variant_answer,
)
from conv_advisor.app.wire.answers.problems import problem_answer
from conv_advisor.app.wire.errors import documented
from conv_advisor.app.wire.layers import problem_from
from conv_advisor.app.wire.schemas import VariantParameters
from conv_advisor.data import networks
from conv_advisor.kernels.catalog import VARIANTS

router = APIRouter(tags=["catalogue"])


@router.get("/v1/variants", responses=documented(400, 404, 503, answer=VariantsAnswer))
async def list_variants(request: Request, asked: Annotated[VariantParameters, Query()]) -> JSONResponse:
    """Every variant; with a layer, whether each runs it on the device and, if not, why not."""
    layer = asked.given()
    if not layer and asked.device is None:
        return JSONResponse({"variants": [variant_answer(variant) for variant in VARIANTS.values()]})
    service = service_of(request)
    problem = problem_from(layer)
    known = service.known
    device, reasons = await asyncio.to_thread(
        lambda: reasons_why_not(known, service.recall, problem, known.asked_id(asked.device))
    )
    answers = [applicability_answer(variant, problem, device, reasons.get(name)) for name, variant in VARIANTS.items()]
    return JSONResponse({"variants": answers, "problem": problem_answer(problem), "device": device.id})


@router.get("/v1/devices", responses=documented(503, answer=DevicesAnswer))
async def list_devices(request: Request) -> JSONResponse:
    """Every device that was measured, has a model, or is the worker's; and, separately, GPUs that borrow a model."""
    service = service_of(request)
    devices = await asyncio.to_thread(service.known.all)
    own, modelled = service.worker.device, service.registry.devices()
    return JSONResponse(
        {
            "devices": [
                device_answer(device) | {"is_worker": own is not None and own.id == name, "has_model": name in modelled}
                for name, device in devices.items()
            ],
            "published": published_answer(devices),
        }
    )


@router.get("/v1/networks", responses=documented(answer=NetworksAnswer))
async def list_networks() -> JSONResponse:
    """The networks and experiments whose layers are known, and the groups of them."""
    return JSONResponse(
        {"networks": [{"name": name, "layers": len(networks.layers(name))} for name in networks.names()]}
    )


@router.get("/v1/networks/{name}", responses=documented(404, answer=NetworkAnswer))
async def get_network(name: str) -> JSONResponse:
    """The layers of a network, an experiment or a group, each at batch 1 in float32 and NCHW, with its source."""
    layers = [problem_answer(layer.problem) | {"source": layer.source} for layer in networks.layers(name)]
    return JSONResponse({"name": name, "layers": layers})
