"""The real application with a worker that replays a recording, and a client to talk to it."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI

from conv_advisor.app.main import create_app
from conv_advisor.app.settings import Settings
from conv_advisor.app.workers.engine import Engine
from conv_advisor.data import parquet
from conv_advisor.data.measurement import Device, Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels import catalog
from conv_advisor.models.registry.on_disk import Registry
from conv_advisor.models.training.enough import ENOUGH_MEASURED
from conv_advisor.models.tree import file as tree_file
from conv_advisor.models.tree.features import FEATURES
from tests.data import arrow
from tests.fakes import REPLAY

GPU = Device(id="fake-gpu", name="Fake GPU", kind="cuda", capability="9.0", processors=132, memory_bytes=2**34)

LAYER = "8-2-3-6-4"
SMALL = ConvProblem.parse(LAYER)
LARGE = ConvProblem.parse("14-1-3-256-128")

FAST, SLOW, LEAN = "cudnn.implicit_precomp_gemm", "cuda.gemm", "cuda.direct_naive"
CRASHING, HANGING, REFUSED = "cudnn.fft", "cudnn.fft_tiling", "cudnn.gemm"
TIMES_MS = {FAST: 0.010, SLOW: 0.020, LEAN: 0.030}


def recording(problem: ConvProblem) -> list[Measurement]:
    """What the fake device does with a problem: three variants compute it, three fail, each in its own way."""
    rows = [
        Measurement(problem, name, GPU, Outcome.MEASURED, "", (ms, ms * 1.01, ms * 0.99), 2**20 * (name == SLOW), 1e-7)
        for name, ms in TIMES_MS.items()
    ]
    failures = {CRASHING: Outcome.CRASHED, HANGING: Outcome.TIMED_OUT, REFUSED: Outcome.NOT_SUPPORTED}
    return rows + [Measurement(problem, name, GPU, outcome, "as recorded") for name, outcome in failures.items()]


def enough_measured() -> list[Measurement]:
    """As many measured problems as a retrain is said to need, each with a time of one variant of three.

    A retrain on them is begun, and fails soon: of none half of the variants that apply were measured.
    """
    problems = [ConvProblem.parse(f"7-1-3-{k}-64") for k in range(8, 8 + ENOUGH_MEASURED)]
    return [recording(problem)[place % len(TIMES_MS)] for place, problem in enumerate(problems)]


def measure_enough(client: Client) -> None:
    """Give them to the store of an application."""
    client.app.state.service.store.append(enough_measured())


def small_tree(times_ms: dict[str, float], device: Device = GPU, **more: np.ndarray) -> tree_file.TreeModel:
    """A tree of one decision, batch at most 64, that predicts these times on both sides.

    It expects no variant of a library to run that is not among them, and knows no other of ours, whose rules would be
    believed.
    """
    pool = catalog.for_device_kind(device.kind)
    variants = [each.id for each in pool if each.id in times_ms or not each.backend.has_complete_rules]
    best = min(times_ms.values())
    slowdown = np.array([math.log(times_ms.get(name, 9 * best) / best) for name in variants], np.float32)
    support = np.array([float(name in times_ms) for name in variants], np.float32)
    leaves = np.ones((2, 1), np.float32)
    arrays = {
        "feature": np.array([FEATURES.index("log2_n"), -1, -1], np.int32),
        "threshold": np.array([6.0, 0.0, 0.0]),
        "left": np.array([1, -1, -1], np.int32),
        "right": np.array([2, -1, -1], np.int32),
        "place": np.array([-1, 0, 1], np.int32),
        "log_best": np.zeros(2, np.float32),
        "spread": np.full(2, 0.1, np.float32),
        "roofline": np.array([[1e6, 1e6, best]] * 2, np.float32),
        "log_slowdown": leaves * slowdown,
        "support": leaves * support,
        "workspace": leaves * np.zeros_like(support),
    }
    card = {"created": "2026-01-01T00:00:00+00:00", "scores": {"geometric_mean": 1.1}}
    return tree_file.make(arrays | more, variants=variants, device=device, card=card)


def keep_tree(home: Path, tree: tree_file.TreeModel) -> str:
    """Put a tree in the registry of a home, and in charge; its id."""
    registry = Registry(home)
    model_id = registry.add(tree)
    registry.activate(tree.device.id, model_id)
    return model_id


class Client:
    """Talks to an application on an event loop of its own, so that tests may block, and ask from many threads."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=300)
        self._http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # each request says which it sends
        self._lifespan = app.router.lifespan_context(app)
        try:
            self.await_(self._lifespan.__aenter__())
        except BaseException:
            self._end_loop()  # or pytest, which waits for its threads, never ends
            raise

    def await_(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the application's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def request(self, method: str, url: str, **content: Any) -> httpx.Response:
        """One request."""
        return self.await_(self._http.request(method, url, **content))

    def get(self, url: str, **content: Any) -> httpx.Response:
        """GET"""
        return self.request("GET", url, **content)

    def post(self, url: str, **content: Any) -> httpx.Response:
        """POST"""
        return self.request("POST", url, **content)

    def close(self) -> None:
        """Stop the application, then its loop."""
        self.await_(self._lifespan.__aexit__(None, None, None))
        self._end_loop()

    def _end_loop(self) -> None:
        self.await_(self._http.aclose())
        self.await_(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def serving(
    home: Path,
    *problems: ConvProblem,
    has_tree: bool = True,
    recorded: Callable[[ConvProblem], list[Measurement]] = recording,
    **changes: Any,
) -> Iterator[Client]:
    """The application on a fake GPU on which these problems were recorded, with a tree for it."""
    path = home / "recording.parquet"
    rows = [row for problem in problems or (SMALL, LARGE) for row in recorded(problem)]
    parquet.write(arrow.measurements_to_table(rows), path)
    settings = Settings(home=home, convolution_deadline_s=changes.pop("convolution_deadline_s", 45.0), **changes)
    if has_tree:
        keep_tree(settings.models_home, small_tree(TIMES_MS))

    def open_replay(settings: Settings) -> Engine:
        return Engine(str(path), max_queue=settings.max_queue, opener=REPLAY)

    client = Client(create_app(settings, open_engine=open_replay, timings=home / "nothing"))
    try:
        yield client
    finally:
        client.close()


def is_problem(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """The problem document of a response, which must be one of this status and kind."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == status
    assert document["type"] == f"/problems/{kind}"
    assert document["title"]
    assert document["detail"]
    return document
