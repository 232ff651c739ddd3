"""Every request of the client as a value: what to send, and how to read the answer."""

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
"""Metadata of a convolution that are plain text; the rest is JSON."""


class Convolved(NamedTuple):
    """The result of a convolution, and its measurement: ``y, measured = client.convolve(x, weight)``.

    Attributes
    ----------
    y : array
        In the memory order and the precision of x.
    measured : dict
        Variant, time with every sample, error against float64, and the other attempts.
    """

    y: np.ndarray
    measured: ConvolutionAnswer


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request. Sending it twice has the same effect as sending it once, so it can be retried.

    Parameters
    ----------
    method, path : str
    read : callable (bytes) -> T
        Decodes the body of the answer.
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
    """Whether the server can answer every kind of request."""
    return Call("GET", "/readyz", lambda _: None)


def advise(layer: AnyLayer, keywords: Mapping[str, Any]) -> Call[LayerAdvice]:
    """Advice on one layer."""
    return Call("GET", "/v1/advice", _advice, _query(_layer(layer) | dict(keywords)))


def advise_many(layers: Iterable[AnyLayer], keywords: Mapping[str, Any]) -> Call[list[BestAnswer]]:
    """Advice on many layers."""
    return _send("POST", "/v1/advice", {**keywords, "layers": _named(layers)}, _part("advice"))


def plan(model: AnyModel, keywords: Mapping[str, Any]) -> Call[list[PlanAnswer]]:
    """Plans of a network, one for each batch."""
    query, read, headers = _plan_query(keywords), _part("plans"), {"content-type": _ONNX}
    if isinstance(model, bytes):
        return Call("POST", "/v1/plans", read, query, headers, model)
    if isinstance(model, str) and not model.endswith(".onnx"):
        return Call("GET", "/v1/plans", read, query | {"name": model})
    return Call("POST", "/v1/plans", read, query | {"name": Path(model).name}, headers, _contents(model))


def variants(layer: AnyLayer | None, keywords: Mapping[str, Any]) -> Call[list[VariantAnswer]]:
    """The catalogue."""
    layer_fields = {} if layer is None else _layer(layer)
    return Call("GET", "/v1/variants", _part("variants"), _query(layer_fields | dict(keywords)))


def devices() -> Call[list[KnownDeviceAnswer]]:
    """The devices."""
    return Call("GET", "/v1/devices", _part("devices"))


def convolve(x: np.ndarray, weight: np.ndarray, keywords: Mapping[str, Any]) -> Call[Convolved]:
    """A convolution of these tensors, with bias and residual added to it where they are arrays."""
    addends = {name: keywords[name] for name in ("bias", "residual") if isinstance(keywords.get(name), np.ndarray)}
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in {"x": x, "weight": weight, **addends}.items()}
    try:
        body = save(tensors, metadata=_query({name: keywords[name] for name in keywords.keys() - addends.keys()}))
    except Exception as error:  # safetensors' own, or KeyError for a dtype that it does not know
        raise InvalidTensor("x, weight", (x.dtype, weight.dtype), f"float32, float16 or bfloat16 ({error})") from None
    headers = {"content-type": _SAFETENSORS, "accept": _SAFETENSORS}
    return Call("POST", "/v1/convolutions", _convolved, {}, headers, body)


def measure(layer: AnyLayer, keywords: Mapping[str, Any]) -> Call[ConvolutionAnswer]:
    """A convolution of random tensors, which returns no y."""
    return _send("POST", "/v1/convolutions", _layer(layer) | dict(keywords), _json)


def submit(kind: str, keywords: Mapping[str, Any], key: str | None) -> Call[JobAnswer]:
    """A background job; requests with the same key make one job."""
    return _send(
        "POST", "/v1/jobs", {"kind": kind, **keywords}, _json, {"idempotency-key": key or secrets.token_hex(16)}
    )


def submit_measure(layers: Iterable[AnyLayer], keywords: Mapping[str, Any], key: str | None) -> Call[JobAnswer]:
    """A long measurement of some layers."""
    return submit("measure", {**keywords, "layers": _named(layers)}, key)


def job(job_id: str) -> Call[JobAnswer]:
    """One job."""
    return Call("GET", _job_path(job_id), _json)


def jobs(keywords: Mapping[str, Any]) -> Call[JobsAnswer]:
    """A page of jobs."""
    return Call("GET", "/v1/jobs", _json, _query(keywords))


def cancel(job_id: str) -> Call[JobAnswer]:
    """Cancellation of a job."""
    return Call("DELETE", _job_path(job_id), _json)


def events(job_id: str, seen: int) -> Call[None]:
    """Changes of a job after the given revision."""
    headers = {"accept": "text/event-stream"} | ({"last-event-id": str(seen)} if seen >= 0 else {})
    return Call("GET", f"{_job_path(job_id)}/events", lambda _: None, {}, headers)


def models() -> Call[list[ModelAnswer]]:
    """All trained trees."""
    return Call("GET", "/v1/models", _part("models"))


def activate(device: str, model: str) -> Call[ModelAnswer]:
    """Puts another tree in charge for a device."""
    return _send("PUT", "/v1/models/active", {"device": device, "model": model}, _json)


def _send(
    method: str, path: str, body: Any, read: Callable[[bytes], T], headers: Mapping[str, str] | None = None
) -> Call[T]:
    sent_headers = {"content-type": _JSON, "accept": _JSON} | dict(headers or {})
    return Call(method, path, read, {}, sent_headers, msgspec.json.encode(body))


def _layer(layer: AnyLayer) -> dict[str, Any]:
    """A layer by its short form, which every problem has."""
    if isinstance(layer, ConvProblem):
        return {"layer": layer.short, "dtype": layer.dtype, "layout": layer.layout}
    return {"layer": layer}


def _named(layers: Iterable[AnyLayer]) -> list[Any]:
    return [layer if isinstance(layer, str) else _layer(layer) for layer in layers]


def _query(keywords: Mapping[str, Any]) -> dict[str, str]:
    """Values as text, for a URL or the metadata of tensors."""
    return {name: json.dumps(value) if isinstance(value, bool) else str(value) for name, value in keywords.items()}


def _plan_query(keywords: Mapping[str, Any]) -> dict[str, str]:
    query = dict(keywords)
    if "batches" in query:
        query["batches"] = ",".join(map(str, query["batches"]))
    if "dims" in query:
        query["dims"] = ",".join(f"{name}={size}" for name, size in query["dims"].items())
    return _query(query)


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
    """The answer of a server as `conv_advisor.advise` would return it."""
    answer = _json(body)
    fields = answer["problem"]
    problem = ConvProblem.parse(fields["layer"], dtype=fields["dtype"], layout=fields["layout"])
    is_counted = answer.get("epilogue_is_counted", True)
    return LayerAdvice(
        problem=problem if is_counted else problem.plain,
        uncounted=PLAIN if is_counted else problem.epilogue,
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
