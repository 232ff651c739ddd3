"""Real bodies of every wire format, and the decoders that the routes put them through."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qsl

import numpy as np
from safetensors.numpy import save
from tritonclient.http import InferenceServerClient as Triton
from tritonclient.http import InferInput, InferRequestedOutput

from conv_advisor.app.convolve.convolution import Order
from conv_advisor.app.convolve.orders import (
    order_from_inference,
    order_from_json,
    order_from_npy,
    order_from_safetensors,
)
from conv_advisor.app.settings import Settings
from conv_advisor.app.wire.body import parse_json
from conv_advisor.app.wire.npy import write_npy
from conv_advisor.app.wire.open_inference import LENGTH_HEADER, read_inference
from conv_advisor.app.wire.schemas import ConvolutionRequest
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels import reference
from tests.reliability.mutation import mutated

SETTINGS = Settings()

_CONVOLUTIONS = "/v1/convolutions"
_PROBLEM = ConvProblem.parse("4-1-3-3-2")
_STRIDED = {"stride_h": "2", "pad": "1", "dtype": "float32"}

PROBLEMS = (
    _PROBLEM,
    ConvProblem.parse(_PROBLEM.short, stride_h=2),
    ConvProblem.parse(_PROBLEM.short, dtype=DType.FLOAT16),
    ConvProblem(n=1, c=1, h=2, w=2, k=1, r=1, s=1),
)
"""What the originals ask for."""


@dataclass(frozen=True)
class Sent:
    """One request with tensors.

    Parameters
    ----------
    path : str
        With its query.
    headers : dict of str to str
    body : bytes
    """

    path: str
    headers: dict[str, str]
    body: bytes

    def with_body(self, body: bytes) -> Sent:
        """The same request with another body."""
        return Sent(self.path, self.headers, body)


def decode(sent: Sent) -> Order:
    """What the routes make of a request before it reaches the worker."""
    body = np.frombuffer(sent.body, np.uint8)
    kind = sent.headers["content-type"]
    if sent.path.startswith("/v2"):
        json_bytes = min(int(sent.headers.get(LENGTH_HEADER, len(body))), len(body))
        return order_from_inference(read_inference(body, json_bytes, ("x", "weight"), "y"), SETTINGS)
    if kind == "application/x-npy":
        return order_from_npy(body, dict(parse_qsl(sent.path.partition("?")[2])), SETTINGS)
    if kind == "application/json":
        return order_from_json(parse_json(ConvolutionRequest, sent.body), SETTINGS)
    return order_from_safetensors(body, SETTINGS)


def operands(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """x and weight of a small layer."""
    problem = ConvProblem.parse(_PROBLEM.short, dtype=dtype)
    return reference.random_operands(problem, seed=1)


def originals() -> dict[str, tuple[Sent, ...]]:
    """Valid requests, by format."""
    x, weight = operands(DType.FLOAT32)
    half = operands(DType.FLOAT16)
    lists = {"x": x.tolist(), "weight": weight.tolist(), "pad": 1, "variant": "advised"}
    return {
        "safetensors": (
            _safetensors(save({"x": x, "weight": weight}, {"layer": _PROBLEM.short, "variant": "advised"})),
            _safetensors(save({"x": x, "weight": weight}, _STRIDED)),
            _safetensors(save({"x": half[0], "weight": half[1]}, {"pad_h": "1", "pad_w": "1", "format": "np"})),
        ),
        "npy": tuple(
            Sent(f"{_CONVOLUTIONS}?pad=1", {"content-type": "application/x-npy"}, b"".join(write_npy(a) + write_npy(b)))
            for a, b in ((x, weight), half)
        ),
        "oip": (_inference(x, weight, is_binary=True), _inference(x, weight, is_binary=False)),
        "json": (
            _json(lists),
            _json({"x": [[[[1.0, "NaN"], [3.0, None]]]], "weight": [[[[1.0]]]]}),
            _json({"layer": "14-1-3-16-8", "variant": "all", "seed": 0}),
        ),
    }


def bodies(seed: int, name: str) -> Callable[[], Sent]:
    """A source of requests of one format whose bodies were mutated; the same for the same seed."""
    rng = random.Random(seed)
    valid = originals()
    donors = tuple(each.body for group in valid.values() for each in group)

    def following() -> Sent:
        sent = rng.choice(valid[name])
        return sent.with_body(mutated(rng, sent.body, donors))

    return following


def _safetensors(body: bytes) -> Sent:
    return Sent(_CONVOLUTIONS, {"content-type": "application/vnd.safetensors"}, body)


def _json(value: object) -> Sent:
    return Sent(_CONVOLUTIONS, {"content-type": "application/json"}, json.dumps(value).encode())


def _inference(x: np.ndarray, weight: np.ndarray, *, is_binary: bool) -> Sent:
    """As Triton's own client writes it."""
    inputs = []
    for name, each in (("x", x), ("weight", weight)):
        inputs.append(InferInput(name, list(each.shape), "FP32"))
        inputs[-1].set_data_from_numpy(each, binary_data=is_binary)
    outputs = [InferRequestedOutput("y", binary_data=is_binary)]
    body, length = Triton.generate_request_body(inputs, outputs=outputs, parameters={"pad": 1})
    headers = {"content-type": "application/octet-stream"}
    return Sent("/v2/models/conv/infer", headers | ({LENGTH_HEADER: str(length)} if length else {}), bytes(body))
