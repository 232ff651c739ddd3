"""Every request of the client as a value: what is sent, and what its answer means."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np
from safetensors.numpy import save

from conv_advisor.app.advice.answer import LayerAdvice
from conv_advisor.app.wire.safetensors import read_safetensors
from conv_advisor.data.epilogue import PLAIN
from conv_advisor.data.errors import InvalidInput, InvalidTensor
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.advice.advice import Exclusion
from conv_advisor.models.advice.baselines import Baselines
from conv_advisor.models.ranking.candidates import Choice
from conv_advisor.models.ranking.trust import Trust
from conv_advisor.models.tree.file import Step

if TYPE_CHECKING:
    from os import PathLike

    from conv_advisor.app.client.parameters import AnyLayer, AnyModel
    from conv_advisor.app.convolve.answers import ConvolutionAnswer
    from conv_advisor.app.jobs.answers import JobAnswer, JobsAnswer
    from conv_advisor.app.plans.answers import PlanAnswer
    from conv_advisor.app.wire.answers.advice import BestAnswer
    from conv_advisor.app.wire.answers.catalogue import KnownDeviceAnswer, VariantAnswer
    from conv_advisor.app.wire.answers.models import ModelAnswer

T = TypeVar("T")

_JSON: Final = "application/json"
_ONNX: Final = "application/onnx"
_SAFETENSORS: Final = "application/vnd.safetensors"
_TEXT_IN_METADATA: Final = ("variant", "outcome", "detail", "chosen_by", "why_not_stored")
"""What of a convolution stands beside its y as it is; the rest is JSON."""


class Convolved(NamedTuple):
    """A convolution that was computed, and how that went: ``y, measured = client.convolve(x, weight)``.

    Attributes
    ----------
    y : array
        In the memory order and the precision of x.
    measured : dict
        Variant, time with every sample, error against float64, and what else was tried.
    """

    y: np.ndarray
    measured: ConvolutionAnswer


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request. Sent twice it does what it does sent once, so that it may be tried again.

    Parameters
    ----------
    method, path : str
    read : callable (bytes) -> T
        What the body of its answer means.
    query, headers : mapping of str to str
    body : bytes
    """

    method: str
    path: str
    read: Callable[[bytes], T]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def ready() -> Call[None]:
    """Whether the server can do all that it is for."""
    return Call("GET", "/readyz", lambda _: None)


def advise(layer: AnyLayer, asked: Mapping[str, Any]) -> Call[LayerAdvice]:
    """Advice on one layer."""
    return Call("GET", "/v1/advice", _advice, _query(_layer(layer) | dict(asked)))


def advise_many(layers: Iterable[AnyLayer], asked: Mapping[str, Any]) -> Call[list[BestAnswer]]:
    """Advice on many layers."""
    return _send("POST", "/v1/advice", {**asked, "layers": _named(layers)}, _part("advice"))


def plan(model: AnyModel, asked: Mapping[str, Any]) -> Call[list[PlanAnswer]]:
    """Plans of a network, one for each batch."""
    query, read, headers = _plan_query(asked), _part("plans"), {"content-type": _ONNX}
    if isinstance(model, bytes):
        return Call("POST", "/v1/plans", read, query, headers, model)
    if isinstance(model, str) and not model.endswith(".onnx"):
        return Call("GET", "/v1/plans", read, query | {"name": model})
    return Call("POST", "/v1/plans", read, query | {"name": Path(model).name}, headers, _contents(model))


def variants(layer: AnyLayer | None, asked: Mapping[str, Any]) -> Call[list[VariantAnswer]]:
    """The catalogue."""
    beside = {} if layer is None else _layer(layer)
    return Call("GET", "/v1/variants", _part("variants"), _query(beside | dict(asked)))


def devices() -> Call[list[KnownDeviceAnswer]]:
    """The devices."""
    return Call("GET", "/v1/devices", _part("devices"))


def convolve(x: np.ndarray, weight: np.ndarray, asked: Mapping[str, Any]) -> Call[Convolved]:
    """A convolution of these tensors; bias and residual may be arrays too, which are added to it."""
    added = {name: asked[name] for name in ("bias", "residual") if isinstance(asked.get(name), np.ndarray)}
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in {"x": x, "weight": weight, **added}.items()}
    try:
        body = save(tensors, metadata=_query({name: asked[name] for name in asked.keys() - added.keys()}))
    except Exception as error:  # its own, and a KeyError of a type that it has no name for
        raise InvalidTensor("x, weight", (x.dtype, weight.dtype), f"float32, float16 or bfloat16 ({error})") from None
    headers = {"content-type": _SAFETENSORS, "accept": _SAFETENSORS}
    return Call("POST", "/v1/convolutions", _convolved, {}, headers, body)


def measure(layer: AnyLayer, asked: Mapping[str, Any]) -> Call[ConvolutionAnswer]:
    """A convolution of random tensors, of which no y comes back."""
    return _send("POST", "/v1/convolutions", _layer(layer) | dict(asked), _json)


def submit(kind: str, asked: Mapping[str, Any], key: str | None) -> Call[JobAnswer]:
    """A background job; the key makes one job of the same request sent again."""
    return _send("POST", "/v1/jobs", {"kind": kind, **asked}, _json, {"idempotency-key": key or secrets.token_hex(16)})


def submit_measure(layers: Iterable[AnyLayer], asked: Mapping[str, Any], key: str | None) -> Call[JobAnswer]:
    """A long measurement of some layers."""
    return submit("measure", {**asked, "layers": _named(layers)}, key)


def job(job_id: str) -> Call[JobAnswer]:
    """One job."""
    return Call("GET", _job_path(job_id), _json)


def jobs(asked: Mapping[str, Any]) -> Call[JobsAnswer]:
    """A page of jobs."""
    return Call("GET", "/v1/jobs", _json, _query(asked))


def cancel(job_id: str) -> Call[JobAnswer]:
    """The end of a job."""
    return Call("DELETE", _job_path(job_id), _json)


def events(job_id: str, seen: int) -> Call[None]:
    """What becomes of a job after the revision that was seen."""
    headers = {"accept": "text/event-stream"} | ({"last-event-id": str(seen)} if seen >= 0 else {})
    return Call("GET", f"{_job_path(job_id)}/events", lambda _: None, {}, headers)


def models() -> Call[list[ModelAnswer]]:
    """The trained trees."""
    return Call("GET", "/v1/models", _part("models"))


def activate(device: str, model: str) -> Call[ModelAnswer]:
    """Another tree for a device."""
    return _send("PUT", "/v1/models/active", {"device": device, "model": model}, _json)


def _send(
    method: str, path: str, body: Any, read: Callable[[bytes], T], headers: Mapping[str, str] | None = None
) -> Call[T]:
    said = {"content-type": _JSON, "accept": _JSON} | dict(headers or {})
    return Call(method, path, read, {}, said, msgspec.json.encode(body))


def _layer(layer: AnyLayer) -> dict[str, Any]:
    """A layer by name, which a problem has too, however unusual it is."""
    if isinstance(layer, ConvProblem):
        return {"layer": layer.short, "dtype": layer.dtype, "layout": layer.layout}
    return {"layer": layer}


def _named(layers: Iterable[AnyLayer]) -> list[Any]:
    return [layer if isinstance(layer, str) else _layer(layer) for layer in layers]


def _query(asked: Mapping[str, Any]) -> dict[str, str]:
    """Values as a URL and metadata of tensors have them."""
    return {name: json.dumps(value) if isinstance(value, bool) else str(value) for name, value in asked.items()}


def _plan_query(asked: Mapping[str, Any]) -> dict[str, str]:
    said = dict(asked)
    if "batches" in said:
        said["batches"] = ",".join(map(str, said["batches"]))
    if "dims" in said:
        said["dims"] = ",".join(f"{name}={size}" for name, size in said["dims"].items())
    return _query(said)


def _contents(path: str | PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise InvalidInput("model", path, f"an ONNX file that can be read ({error})") from None


def _job_path(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"


def _json(body: bytes) -> Any:
    return msgspec.json.decode(body)


def _part(name: str) -> Callable[[bytes], Any]:
    return lambda body: _json(body)[name]


def _advice(body: bytes) -> LayerAdvice:
    """What `conv_advisor.advise` returns, from what a server answers."""
    answer = _json(body)
    said = answer["problem"]
    asked = ConvProblem.parse(said["layer"], dtype=said["dtype"], layout=said["layout"])
    is_counted = answer.get("epilogue_is_counted", True)
    return LayerAdvice(
        problem=asked if is_counted else asked.plain,
        uncounted=PLAIN if is_counted else asked.epilogue,
        device_id=answer["device"],
        model_id=answer["model"],
        ranking=msgspec.convert(answer["ranking"], tuple[Choice, ...]),
        excluded=msgspec.convert(answer["excluded"], tuple[Exclusion, ...]),
        path=msgspec.convert(answer["path"], tuple[Step, ...]),
        trust=msgspec.convert(answer["trust"], Trust),
        baselines=msgspec.convert(answer["baselines"], Baselines),
    )


def _convolved(body: bytes) -> Convolved:
    tensors, metadata = read_safetensors(np.frombuffer(bytearray(body), np.uint8), ("y",))
    measured: Any = {
        name: value if name in _TEXT_IN_METADATA else _json(value.encode()) for name, value in metadata.items()
    }
    return Convolved(tensors["y"], measured)
