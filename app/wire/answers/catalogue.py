"""What /v1/variants, /v1/devices and /v1/networks answer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, NotRequired, cast

from typing_extensions import TypedDict

from conv_advisor.app.wire.answers.problems import ProblemAnswer
from conv_advisor.data.gpus import gpus

if TYPE_CHECKING:
    from conv_advisor.data.measurement import Device
    from conv_advisor.data.problem import ConvProblem
    from conv_advisor.kernels.variant import Variant


class VariantAnswer(TypedDict):
    """One implementation; the last three fields say whether it runs the layer that was asked about, as in advice.

    A variant does not run a layer if its own rule excludes it, if the device refused it on this layer, or if the
    device's model expects a refusal. ending says how it computes epilogues: fused, library or appended; null if it
    refuses them.
    """

    id: str
    algorithm: str
    backend: str
    device_kind: str
    is_deterministic: bool
    ending: str | None
    source: str
    applies: NotRequired[bool]
    reason: NotRequired[str | None]
    workspace_bytes: NotRequired[int | None]


class VariantsAnswer(TypedDict):
    """Every implementation, and the layer and device they were asked about."""

    variants: list[VariantAnswer]
    problem: NotRequired[ProblemAnswer]
    device: NotRequired[str]


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


class KnownDeviceAnswer(DeviceAnswer):
    """A device, and what is known of it here."""

    is_worker: bool
    has_model: bool


class PublishedGpuAnswer(TypedDict):
    """A GPU that was not measured here: its published figures, their sources, and its names.

    Peaks are dense with float32 accumulation; 0 stands for a feature that it lacks or a figure that is not published.
    """

    id: str
    name: str
    short: list[str]
    capability: str
    processors: int
    boost_mhz: int
    bandwidth_gb_s: float
    memory_gb: float
    l2_mb: float
    shared_kb: float
    fp32_tflops: float
    tf32_tflops: float
    fp16_tflops: float
    source: str


class DevicesAnswer(TypedDict):
    """Every device that was measured, has a model, or is the worker's; and, separately, GPUs that borrow a model."""

    devices: list[KnownDeviceAnswer]
    published: list[PublishedGpuAnswer]


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


def variant_answer(variant: Variant) -> VariantAnswer:
    """The facts of a variant that do not depend on the layer."""
    return {
        "id": variant.id,
        "algorithm": variant.algorithm,
        "backend": variant.backend,
        "device_kind": variant.backend.device_kind,
        "is_deterministic": variant.is_deterministic,
        "ending": variant.ending,
        "source": variant.source,
    }


def applicability_answer(variant: Variant, problem: ConvProblem, device: Device, reason: str | None) -> VariantAnswer:
    """A variant, and the reason why it does not run a problem; None where it does."""
    workspace_bytes = variant.workspace_bytes(problem, device) if reason is None else None
    of_problem: VariantAnswer = {**variant_answer(variant), "ending": variant.ending_of(problem.epilogue)}
    return {**of_problem, "applies": reason is None, "reason": reason, "workspace_bytes": workspace_bytes}


def published_answer(known: Collection[str]) -> list[PublishedGpuAnswer]:
    """The GPUs with published facts, without those that are known here."""
    others = (gpu for gpu in gpus().values() if gpu.id not in known)
    return [cast("PublishedGpuAnswer", {"id": gpu.id} | asdict(gpu) | {"short": list(gpu.short)}) for gpu in others]


def device_answer(device: Device) -> DeviceAnswer:
    """A device's fingerprint."""
    return cast("DeviceAnswer", asdict(device))
