"""What `benchmarks.serving` loads: a raw ASGI application, the service, and the forms of tensors without a convolution.

Run as ``python -m benchmarks.serving_apps raw|service|forms PORT``; it serves on loopback until it is killed.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from conv_advisor.app.convolve.answers import convolution_metadata, convolution_summary
from conv_advisor.app.convolve.convolution import Attempt, ChosenBy, Convolution
from conv_advisor.app.convolve.orders import order_from_inference, order_from_npy, order_from_safetensors
from conv_advisor.app.main import create_app
from conv_advisor.app.server import drain
from conv_advisor.app.server.border import CAUTION
from conv_advisor.app.settings import load_settings
from conv_advisor.app.wire.body import Bytes, read
from conv_advisor.app.wire.npy import write_npy
from conv_advisor.app.wire.open_inference import LENGTH_HEADER, read_inference, write_inference
from conv_advisor.app.wire.parts import Parts, PartsResponse
from conv_advisor.app.wire.safetensors import write_safetensors
from conv_advisor.data.measurement import Device, Measurement, Outcome
from conv_advisor.data.problem import ConvProblem

KEPT_PATH: Final = "/benchmark/kept"
"""Where the service says how often an answer was kept."""
LONG_ANSWER_BYTES: Final = 9000
"""As many as an answer of advice has."""
LONG_HEADERS: Final = [(b"x-request-id", b"0123456789abcdef"), *CAUTION]
"""The headers that the service gives every answer."""
MAX_BODY_BYTES: Final = 64 * 2**20

Made = tuple[Parts, dict[str, str]]


async def raw(scope: Scope, receive: Receive, send: Send) -> None:
    """The least that answers; at /long with as many bytes and headers as advice has."""
    if scope["type"] == "lifespan":
        await _live(receive, send)
        return
    if scope["path"] == "/long":
        await _answer(send, bytes(LONG_ANSWER_BYTES), LONG_HEADERS)
    else:
        await _answer(send, b'{"status":"live"}', [])


async def forms(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads tensors as the service does, and writes x back as y; at /bytes only what came."""
    if scope["type"] == "lifespan":
        await _live(receive, send)
        return
    if scope["path"] == "/readyz":
        await _answer(send, b"", [])
        return
    request = Request(scope, receive)
    body = await read(request, MAX_BODY_BYTES)
    parts, headers = _FORMS[scope["path"]](request, body)
    await PartsResponse(parts, "application/octet-stream", headers)(scope, receive, send)


def service() -> FastAPI:
    """The service by the environment's settings, and what it kept at `KEPT_PATH`."""
    app = create_app(load_settings(), timings=Path("nothing"))

    @app.get(KEPT_PATH)
    async def counts() -> dict[str, int]:
        caches = app.state.service.answers, app.state.service.parts
        return {"hits": sum(cache.hits for cache in caches), "misses": sum(cache.misses for cache in caches)}

    return app


def main() -> None:
    """Serve one of them, the service as its command does."""
    name, port = sys.argv[1:]
    options: dict[str, Any] = {"host": "127.0.0.1", "port": int(port), "log_level": "warning", "access_log": False}
    if name == "service":
        drain.run(service(), server_header=False, **options)
    else:
        uvicorn.run({"raw": raw, "forms": forms}[name], server_header=False, **options)


def _bytes(_request: Request, body: Bytes) -> Made:
    return (b"", body.data), {}


def _safetensors(_request: Request, body: Bytes) -> Made:
    order = order_from_safetensors(body, load_settings())
    assert order.tensors is not None  # noqa: S101 - the benchmark sends some
    done = _done(order.problem, order.tensors["x"])
    return write_safetensors(order.tensors["x"], convolution_metadata(done)), {}


def _npy(request: Request, body: Bytes) -> Made:
    order = order_from_npy(body, request.query_params, load_settings())
    assert order.tensors is not None  # noqa: S101 - the benchmark sends some
    return write_npy(order.tensors["x"]), {}


def _inference(request: Request, body: Bytes) -> Made:
    inference = read_inference(body, int(request.headers[LENGTH_HEADER]), ("x", "weight"), "y")
    order = order_from_inference(inference, load_settings())
    assert order.tensors is not None  # noqa: S101 - the benchmark sends some
    y = order.tensors["x"]
    head = {"model_name": "conv", "parameters": convolution_summary(_done(order.problem, y))}
    parts = write_inference(head, "y", y, is_binary=True)
    return parts, {LENGTH_HEADER: str(len(parts[0]))}


_FORMS: Final[dict[str, Callable[[Request, Bytes], Made]]] = {
    "/bytes": _bytes,
    "/safetensors": _safetensors,
    "/npy": _npy,
    "/inference": _inference,
}


def _done(problem: ConvProblem, y: np.ndarray) -> Convolution:
    """What the service answers of a convolution that it has run."""
    measurement = Measurement(problem, "cpu.gemm", _DEVICE, Outcome.MEASURED, "", (1.0,) * 20, 0, 1e-7)
    attempt = Attempt(measurement, y)
    return Convolution(attempt, [attempt], ChosenBy.NAMED)


_DEVICE: Final = Device(id="none", name="None", kind="cpu")


async def _answer(send: Callable[[Any], Awaitable[None]], body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    start = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": 200, "headers": start})
    await send({"type": "http.response.body", "body": body})


async def _live(receive: Receive, send: Send) -> None:
    while True:
        stage = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{stage}.complete"})
        if stage == "shutdown":
            return


if __name__ == "__main__":
    main()
