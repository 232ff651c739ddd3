"""Requests for jobs: read at the border, stored with the job as plain JSON, and read from there by its runner."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from fastapi import Header
from pydantic import BaseModel, ConfigDict, Field, RootModel

from conv_advisor.app.jobs.job import JobKind, Key
from conv_advisor.app.wire.layers import problem_from
from conv_advisor.app.wire.schemas import DeviceName, LayerParameters, RetrainRequest
from conv_advisor.data import networks
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.measurement import L2State
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.sampling import sample_problems
from conv_advisor.kernels import catalog
from conv_advisor.kernels.bench import BenchOptions
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.models.upgrades.refresh import MOST_SHARE

KEY_HEADER: Final = "Idempotency-Key"
MAX_KEY_LENGTH: Final = 255
MAX_PROBLEMS: Final = 100_000
"""Most problems of one job: some forty times all networks in all precisions and layouts, weeks of measuring."""
MAX_MEASURED_LAYERS: Final = 1_000
_SAMPLES_BUDGET_MS: Final = 10_000.0
"""Device time for the samples of one variant of a long measurement."""
_PROBLEM_DEADLINE_S: Final = 120.0

KeyHeader = Annotated[
    str | None,
    Header(
        alias=KEY_HEADER,
        description=f"Up to {MAX_KEY_LENGTH} visible characters; sent again, the request returns the same job.",
    ),
]
_RunId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,100}$")]
_Variants = Annotated[list[Annotated[str, Field(max_length=200)]], Field(min_length=1, max_length=500)]


class RetrainJob(RetrainRequest):
    """Train a tree, which takes over if it is no worse: what `POST /v1/models` does too."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"kind": "retrain", "device": "nvidia-h200"}]}
    )

    kind: Literal["retrain"]


class _MeasuringJob(BaseModel):
    """What sweeps and long measurements have in common."""

    model_config = ConfigDict(extra="forbid")

    device: Annotated[
        DeviceName | None,
        Field(description="Device, by any of its names; a server that has it runs the job. Default: this server's."),
    ] = None
    variants: Annotated[_Variants | None, Field(description="Variant ids; default: all of the device.")] = None
    l2: Annotated[L2State, Field(description="What the L2 cache holds when a timed launch starts.")] = L2State.WARM
    seed: Annotated[
        int, Field(ge=0, le=2**63 - 1, description="Seed of the random operands and of sampled layers.")
    ] = 0
    max_workspace_bytes: Annotated[
        int | None, Field(ge=0, le=2**63 - 1, description="Scratch memory; never more than the service's own limit.")
    ] = None
    run_id: Annotated[
        _RunId | None,
        Field(description="Run to continue: what it has attempted is skipped. Default: a new run."),
    ] = None


class SweepJob(_MeasuringJob):
    """Measure every variant on every layer of networks, and on sampled layers."""

    kind: Literal["sweep"]
    networks: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=100)] = ["seeds"]
    sampled: Annotated[int, Field(ge=0, le=10_000, description="Number of synthetic layers to add.")] = 0
    batches: Annotated[
        list[Annotated[int, Field(ge=1, le=2**31 - 1)]] | None,
        Field(min_length=1, max_length=32, description="Batch sizes; default: those of the source."),
    ] = None
    dtypes: Annotated[list[DType], Field(min_length=1, max_length=8)] = [DType.FLOAT32]
    layouts: Annotated[list[Layout], Field(min_length=1, max_length=4)] = [Layout.NCHW]


class MeasureJob(_MeasuringJob):
    """Measure variants on some layers for long: a fixed number of samples, however steady the first of them are."""

    kind: Literal["measure"]
    layers: Annotated[
        list[Annotated[str, Field(max_length=200)] | LayerParameters],
        Field(min_length=1, max_length=MAX_MEASURED_LAYERS, description="Short forms, or objects of named parameters."),
    ]
    dtype: Annotated[DType, Field(description="Default of layers that do not set their own.")] = DType.FLOAT32
    layout: Annotated[Layout, Field(description="Default of layers that do not set their own.")] = Layout.NCHW
    samples: Annotated[int, Field(ge=2, le=10_000, description="Samples per variant, within 10 s of device time.")] = (
        100
    )


class CalibrateJob(BaseModel):
    """Adapt the tree that this server's GPU borrows to layers measured there; it takes over if it is no worse."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["calibrate"]
    device: Annotated[
        DeviceName | None,
        Field(description="GPU, by any of its names; a server that has it runs the job. Default: this server's."),
    ] = None
    minutes: Annotated[float, Field(gt=0, le=1440, description="No further layer is started after this time.")] = 5.0
    seed: Annotated[int, Field(ge=0, le=2**63 - 1, description="Seed of the layers and of the random operands.")] = 0
    force: Annotated[bool, Field(description="Use the adapted tree even if it is worse.")] = False


class RefreshJob(BaseModel):
    """After an upgrade: measure some known times again, say what moved, and repair the tree of this server's GPU."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["refresh"]
    device: Annotated[
        DeviceName | None,
        Field(description="Device, by any of its names; a server that has it runs the job. Default: this server's."),
    ] = None
    minutes: Annotated[float, Field(gt=0, le=1440, description="No further layer is started after this time.")] = 5.0
    share: Annotated[float, Field(gt=0, le=MOST_SHARE, description="Share of the known times to measure again.")] = (
        MOST_SHARE
    )
    seed: Annotated[int, Field(ge=0, le=2**63 - 1, description="Seed of what is drawn and of the random operands.")] = 0
    force: Annotated[bool, Field(description="Use the repaired tree even if it is no better.")] = False


AnyJob = RetrainJob | SweepJob | MeasureJob | CalibrateJob | RefreshJob


class JobRequest(RootModel[Annotated[AnyJob, Field(discriminator="kind")]]):
    """A background job."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"kind": "sweep", "networks": ["alexnet"], "dtypes": ["float32", "float16"], "layouts": ["nhwc"]},
                {"kind": "measure", "layers": ["14-1-3-256-128"], "samples": 500},
                {"kind": "retrain", "device": "nvidia-h200"},
                {"kind": "calibrate", "minutes": 5},
                {"kind": "refresh", "minutes": 5},
            ]
        }
    )


def key_of(name: str | None, request: AnyJob, caller: str) -> Key | None:
    """The key of a caller's request, with a hash of the request's meaning, independent of its spelling.

    Raises
    ------
    InvalidInput
    """
    if name is None:
        return None
    if not re.fullmatch(rf"[\x21-\x7e]{{1,{MAX_KEY_LENGTH}}}", name):
        allowed = f"1 to {MAX_KEY_LENGTH} visible ASCII characters, such as a UUID"
        raise InvalidInput(KEY_HEADER, name, allowed)
    meaning = json.dumps(request.model_dump(mode="json"), sort_keys=True)
    return Key(name, hashlib.sha256(meaning.encode()).hexdigest(), caller)


def kept_request(request: AnyJob, device_id: str) -> dict[str, Any]:
    """The complete request as it is stored: a job that is resumed decides nothing anew.

    Raises
    ------
    InvalidInput, UnknownNetwork, UnknownVariant
        The request names something that does not exist.
    """
    order = request.model_dump(mode="json", exclude={"kind"}) | {"device": device_id}
    if isinstance(request, RetrainJob | CalibrateJob | RefreshJob):
        return order
    if isinstance(request, MeasureJob):
        order["layers"] = [_layer(layer, request.dtype, request.layout) for layer in request.layers]
    for name in request.variants or ():
        catalog.get(name)
    count = len(problems_of(JobKind(request.kind), order))
    if not 0 < count <= MAX_PROBLEMS:
        raise InvalidInput("networks", counted(count, "problem"), f"1 to {MAX_PROBLEMS} in one job")
    return order | {"run_id": request.run_id or f"{request.kind}-{secrets.token_hex(8)}"}


def problems_of(kind: JobKind, order: dict[str, Any]) -> list[ConvProblem]:
    """The distinct problems of a sweep or of a long measurement, in the order in which they are measured."""
    if kind is JobKind.MEASURE:
        return list(dict.fromkeys(_problem(layer) for layer in order["layers"]))
    dtypes, layouts = [DType(name) for name in order["dtypes"]], [Layout(name) for name in order["layouts"]]
    problems: dict[ConvProblem, None] = {}
    for name in order["networks"]:
        problems |= dict.fromkeys(networks.problems(name, batches=order["batches"], dtypes=dtypes, layouts=layouts))
    return [*problems, *sample_problems(order["sampled"], order["seed"], dtypes=dtypes, layouts=layouts)]


def bench_options(kind: JobKind, order: dict[str, Any], workspace_limit_bytes: int) -> BenchOptions:
    """How the problems of a job are timed."""
    asked_bytes = order["max_workspace_bytes"]
    limit = workspace_limit_bytes if asked_bytes is None else min(asked_bytes, workspace_limit_bytes)
    options = BenchOptions(l2=L2State(order["l2"]), workspace_limit_bytes=limit, seed=order["seed"])
    if kind is not JobKind.MEASURE:
        return options
    samples = order["samples"]
    return replace(options, stop=StopRule(samples, samples, 0.0, _SAMPLES_BUDGET_MS))


def problem_deadline_s(kind: JobKind, n_variants: int) -> float:
    """Time that the variants of one problem may take together."""
    if kind is not JobKind.MEASURE:
        return _PROBLEM_DEADLINE_S
    return _PROBLEM_DEADLINE_S + 2 * n_variants * _SAMPLES_BUDGET_MS / 1e3


def _layer(layer: str | LayerParameters, dtype: DType, layout: Layout) -> dict[str, Any]:
    fields = {"layer": layer} if isinstance(layer, str) else layer.given()
    problem = problem_from({"dtype": dtype, "layout": layout} | fields)
    return {"layer": problem.short, "dtype": problem.dtype, "layout": problem.layout}


def _problem(stored: dict[str, Any]) -> ConvProblem:
    """The problem of a layer as `_layer` stores it, or by its fields, as older jobs stored it."""
    if "layer" not in stored:
        return ConvProblem(**stored)
    return ConvProblem.parse(stored["layer"], dtype=stored["dtype"], layout=stored["layout"])
