"""The shape of every answer: typed dictionaries, which become JSON as they are and OpenAPI by their annotations."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NotRequired

import msgspec
from typing_extensions import TypedDict

from app.tensors import to_lists
from data.problem import FIELDS, ConvProblem

if TYPE_CHECKING:
    from app.convolution import Attempt, Convolution
    from app.jobs import Job
    from data.measurement import Device
    from kernels.variant import Variant
    from models.advisor import Advice
    from models.registry import Entry


class ProblemAnswer(TypedDict):
    """A layer: its short form, all fields, the output's size, and the operations of the direct algorithm."""

    layer: str
    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride_h: int
    stride_w: int
    pad_h: int
    pad_w: int
    dilation_h: int
    dilation_w: int
    groups: int
    dtype: str
    layout: str
    p: int
    q: int
    flops: int


class ChoiceAnswer(TypedDict):
    """One variant that may be run; source says whether its time was measured or is predicted."""

    variant: str
    time_ms: float
    source: str
    slowdown: float
    uncertainty: float
    is_tied: bool
    workspace_bytes: int | None
    is_deterministic: bool
    plan: dict[str, Any] | None


class ExclusionAnswer(TypedDict):
    """One variant that is out, and why."""

    variant: str
    reason: str


class StepAnswer(TypedDict):
    """One comparison on the way to the leaf of the tree."""

    feature: str
    value: float
    threshold: float
    is_below: bool


class BestAnswer(TypedDict):
    """The best variant for a layer of a list, or the problem document that says why there is none."""

    index: int
    layer: NotRequired[str]
    variant: NotRequired[str]
    time_ms: NotRequired[float]
    source: NotRequired[str]
    error: NotRequired[dict[str, Any]]


class TrustAnswer(TypedDict):
    """How likely the advised variant takes at most the share `within` longer than the fastest, or why that is unknown.

    A model abstains outside the domain it was trained on: the ranking is a guess, confidence is null, and reason says
    which size is unlike all that was trained on. distance and limit are in octaves, factors of two.
    """

    confidence: float | None
    within: float
    is_calibrated: bool
    abstains: bool
    reason: str | None
    distance: float | None
    limit: float | None


class AdviceAnswer(TypedDict):
    """The best variant, the whole ranking, and why the others are out; model is null where only measurements spoke."""

    variant: str
    time_ms: float
    source: str
    ranking: list[ChoiceAnswer]
    excluded: list[ExclusionAnswer]
    path: list[StepAnswer]
    trust: TrustAnswer
    model: str | None
    device: str
    problem: ProblemAnswer


class BestAloneAnswer(TypedDict):
    """The best variant for a layer, without the ranking; model is null where only measurements spoke."""

    layer: str
    variant: str
    time_ms: float
    source: str
    model: str | None
    device: str


class BulkAdviceAnswer(TypedDict):
    """Advice on each layer, in order; with ranking, each entry also has all that GET answers."""

    device: str
    model: str | None
    advice: list[BestAnswer]


class DeviceAnswer(TypedDict):
    """What a measurement was taken on: hardware, driver and libraries."""

    id: str
    name: str
    kind: str
    capability: str
    processors: int
    memory_bytes: int
    l2_bytes: int
    shared_memory_per_block_bytes: int
    max_clock_mhz: int
    versions: dict[str, str]


class AttemptAnswer(TypedDict):
    """One variant that was run; time_ms is the median of the samples, max_error max |y - y64| / max |y64|."""

    variant: str
    outcome: str
    detail: str
    time_ms: float | None
    samples_ms: list[float]
    workspace_bytes: int | None
    max_error: float | None


class ConvolutionAnswer(AttemptAnswer):
    """The variant whose y it is, everything else that was tried, and y where tensors were given."""

    chosen_by: str
    y: Any
    attempts: list[AttemptAnswer]
    problem: ProblemAnswer
    device: DeviceAnswer


class JobAnswer(TypedDict):
    """A background job; progress goes from 0 to 1, revision grows with every change, device_id is where it must run."""

    id: str
    kind: str
    state: str
    progress: float
    message: str
    request: dict[str, Any]
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    attempt: int
    created_at: str
    started_at: str | None
    finished_at: str | None
    device_id: str | None
    revision: int


class JobsAnswer(TypedDict):
    """Background jobs, newest first."""

    jobs: list[JobAnswer]


class ModelAnswer(TypedDict):
    """One tree; problem says why its file cannot be used."""

    id: str
    device: str
    is_shipped: bool
    is_active: bool
    problem: str | None
    card: dict[str, Any]


class ModelsAnswer(TypedDict):
    """Every tree of every device."""

    models: list[ModelAnswer]


class VariantAnswer(TypedDict):
    """One implementation; the last three say whether it computes the layer that was asked about."""

    id: str
    algorithm: str
    backend: str
    device_kind: str
    is_deterministic: bool
    source: str
    applies: NotRequired[bool]
    reason: NotRequired[str | None]
    workspace_bytes: NotRequired[int | None]


class VariantsAnswer(TypedDict):
    """Every implementation, and the layer and device they were asked about."""

    variants: list[VariantAnswer]
    problem: NotRequired[ProblemAnswer]
    device: NotRequired[str]


class KnownDeviceAnswer(DeviceAnswer):
    """A device, and what is known of it here."""

    is_worker: bool
    has_model: bool


class DevicesAnswer(TypedDict):
    """Every device that was measured, has a model, or is the worker's."""

    devices: list[KnownDeviceAnswer]


class NetworkSummary(TypedDict):
    """A network, and how many distinct layers it has."""

    name: str
    layers: int


class NetworksAnswer(TypedDict):
    """Every network, experiment and group."""

    networks: list[NetworkSummary]


class NetworkLayerAnswer(ProblemAnswer):
    """A layer of a network, and where it is published."""

    source: str


class NetworkAnswer(TypedDict):
    """A network's layers."""

    name: str
    layers: list[NetworkLayerAnswer]


def problem_answer(problem: ConvProblem) -> ProblemAnswer:
    """A problem as every answer says it."""
    fields: Any = {"layer": problem.short} | {name: getattr(problem, name) for name in FIELDS}
    return fields | {"p": problem.p, "q": problem.q, "flops": problem.flops}  # type: ignore[no-any-return]  # keys are made in a loop


def advice_answer(advice: Advice) -> AdviceAnswer:
    """Advice with everything that led to it."""
    return msgspec.to_builtins(_advice(advice))  # type: ignore[no-any-return]  # of dictionaries and lists


def advice_json(advice: Advice) -> bytes:
    """`advice_answer` as JSON."""
    return msgspec.json.encode(_advice(advice))


def device_answer(device: Device) -> DeviceAnswer:
    """A device's fingerprint."""
    fields: Any = asdict(device)
    return fields  # type: ignore[no-any-return]  # keys are made in a loop


def model_answer(entry: Entry) -> ModelAnswer:
    """A tree, without its arrays."""
    return {
        "id": entry.id,
        "device": entry.device_id,
        "is_shipped": entry.is_shipped,
        "is_active": entry.is_active,
        "problem": entry.problem,
        "card": entry.card,
    }


def variant_answer(variant: Variant) -> VariantAnswer:
    """What is known of a variant whatever the layer."""
    return {
        "id": variant.id,
        "algorithm": variant.algorithm,
        "backend": variant.backend,
        "device_kind": variant.backend.device_kind,
        "is_deterministic": variant.is_deterministic,
        "source": variant.source,
    }


def applicability_answer(variant: Variant, problem: ConvProblem, reason: str | None) -> VariantAnswer:
    """A variant, and the reason why it does not compute a problem; None where it does."""
    workspace_bytes = variant.workspace_bytes(problem) if reason is None else None
    return {**variant_answer(variant), "applies": reason is None, "reason": reason, "workspace_bytes": workspace_bytes}


def convolution_answer(done: Convolution) -> ConvolutionAnswer:
    """A convolution in JSON."""
    return _convolution(done, None if done.best.y is None else to_lists(done.best.y))


def convolution_metadata(done: Convolution) -> dict[str, str]:
    """A convolution beside its y in safetensors: strings as they are, everything else as JSON."""
    answer = {name: value for name, value in _convolution(done, None).items() if name != "y"}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in answer.items()}


def convolution_summary(done: Convolution) -> dict[str, str | float]:
    """What fits beside a y that has no place for more: the numbers and names, without what is unknown."""
    answer = _convolution(done, None)
    names = ("variant", "chosen_by", "outcome", "detail", "time_ms", "max_error", "workspace_bytes")
    return {name: value for name, value in answer.items() if name in names and isinstance(value, str | float | int)}


def job_answer(job: Job) -> JobAnswer:
    """A job as the database has it."""
    fields: Any = {
        name: value.isoformat() if name.endswith("_at") and value else value for name, value in vars(job).items()
    }
    return fields  # type: ignore[no-any-return]  # keys are made in a loop


def finite(value: float | None) -> float | None:
    """A number that JSON has; None for what it has not."""
    return value if value is not None and math.isfinite(value) else None


def _advice(advice: Advice) -> dict[str, Any]:
    best = advice.best
    return {
        "variant": best.variant,
        "time_ms": best.time_ms,
        "source": best.source,
        "ranking": advice.ranking,
        "excluded": advice.excluded,
        "path": advice.path,
        "trust": advice.trust,
        "model": advice.model_id,
        "device": advice.device_id,
        "problem": problem_answer(advice.problem),
    }


def _convolution(done: Convolution, y: Any) -> ConvolutionAnswer:
    measurement = done.best.measurement
    return {
        **_attempt(done.best),
        "chosen_by": done.chosen_by,
        "y": y,
        "attempts": [_attempt(attempt) for attempt in done.attempts],
        "problem": problem_answer(measurement.problem),
        "device": device_answer(measurement.device),
    }


def _attempt(attempt: Attempt) -> AttemptAnswer:
    measurement = attempt.measurement
    return {
        "variant": measurement.variant,
        "outcome": measurement.outcome,
        "detail": measurement.detail,
        "time_ms": finite(measurement.time_ms),
        "samples_ms": list(measurement.samples_ms),
        "workspace_bytes": measurement.workspace_bytes,
        "max_error": finite(measurement.max_error),
    }
