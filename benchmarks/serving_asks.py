"""What `benchmarks.serving` asks for: layers in a query, in lists, and tensors in every form."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count, islice
from typing import Any, Final

import numpy as np
from safetensors.numpy import save

from conv_advisor.app.service.service import KEPT_PARTS
from conv_advisor.app.wire.npy import write_npy
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.sampling import sample_problems

DEVICE: Final = "nvidia-h200"
LAYERS_A_LIST: Final = 1000


def query_of(problem: ConvProblem, dtype: str = "float32", layout: str = "nchw") -> str:
    """The path and the query that ask for advice on a layer."""
    return f"/v1/advice?layer={problem.short}&dtype={dtype}&layout={layout}&device={DEVICE}"


def short(problem: ConvProblem) -> str:
    """A layer of a list by its short form."""
    return problem.short


def short_object(problem: ConvProblem) -> dict[str, Any]:
    """A layer of a list that has a dtype of its own."""
    return {"layer": problem.short, "dtype": "bfloat16"}


def named_object(problem: ConvProblem) -> dict[str, Any]:
    """A layer of a list by its sizes, the usual ones left out."""
    sizes = {name: getattr(problem, name) for name in ("n", "c", "h", "w", "k", "r", "s", "pad_h", "pad_w")}
    unusual = {name: size for name in ("dilation_h", "dilation_w", "groups") if (size := getattr(problem, name)) != 1}
    return sizes | {"stride_h": problem.stride_h, "stride_w": problem.stride_w} | unusual


MORE_THAN_KEPT: Final = int(1.3 * KEPT_PARTS)
"""So many layers that none comes twice before the service has forgotten it."""


def lists_of(write: Callable[[ConvProblem], Any], count_of_layers: int) -> list[list[Any]]:
    """So many different layers, `LAYERS_A_LIST` a list."""
    distinct: dict[str, ConvProblem] = {}
    # At batch 1, or more filters might make a tensor too large.
    shapes = [replace(problem, n=1) for problem in sample_problems(LAYERS_A_LIST * 10, seed=os.getpid())]
    wider = (replace(problem, k=problem.k + extra * problem.groups) for extra in count() for problem in shapes)
    for problem in islice(wider, count_of_layers):
        distinct[problem.short] = problem
    layers = [write(problem) for problem in distinct.values()]
    return [layers[start : start + LAYERS_A_LIST] for start in range(0, len(layers), LAYERS_A_LIST)]


def tensors_of(x: np.ndarray, weight: np.ndarray) -> dict[str, tuple[bytes, dict[str, str]]]:
    """Body and headers of a request for each form, by its path."""
    inputs = [
        {"name": name, "datatype": "FP32", "shape": tensor.shape, "parameters": {"binary_data_size": tensor.nbytes}}
        for name, tensor in (("x", x), ("weight", weight))
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    tensors = x.tobytes() + weight.tobytes()
    return {
        "/bytes": (tensors, {}),
        "/safetensors": (save({"x": x, "weight": weight}), {}),
        "/npy": (b"".join(write_npy(x) + write_npy(weight)), {}),
        "/inference": (head + tensors, {"Inference-Header-Content-Length": str(len(head))}),
    }


def exchange_ms(
    connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str], least_bytes: int
) -> float:
    """How long one request and its answer take.

    Raises
    ------
    RuntimeError
        It was refused, or the answer is too short.
    """
    start = time.perf_counter()
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    content = response.read()
    taken = time.perf_counter() - start
    if response.status != 200 or len(content) < least_bytes:
        raise RuntimeError(f"{path}: {response.status} and {len(content)} bytes")
    return taken * 1e3
