"""A real server process and a real worker process: convolutions on this CPU, and what happens when either is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.store import Store
from conv_advisor.kernels import comparison, reference
from conv_advisor.kernels.tolerance import tolerance
from tests.app.serving import FAST, GPU, TIMES_MS, is_problem, keep_tree, small_tree
from tests.fakes import SMALL_DEVICE, small_measurements
from tests.processes import PATIENT, are_at_rest, children, command_of, eventually, free_port, is_running

COMMAND = Path(sys.executable).with_name("conv-advisor")
SAFETENSORS = {"content-type": "application/vnd.safetensors"}
LONG = {"layer": "56-16-7-256-256", "variant": "cpu.direct"}
"""It takes many seconds on any CPU."""


@dataclass
class Server:
    """A running server, and a client of it."""

    process: subprocess.Popen[bytes]
    port: int
    http: httpx.Client

    def workers(self) -> list[int]:
        """The worker processes that own the device, the busiest first."""
        found = [pid for pid in children(self.process.pid) if b"\0cpu\0" in command_of(pid)]
        return sorted(found, key=cpu_ticks, reverse=True)


@contextmanager
def server(home: Path) -> Iterator[Server]:
    port = free_port()
    environment = os.environ | PATIENT | {"CONV_ADVISOR_HOME": str(home), "CONV_ADVISOR_MAX_BODY_BYTES": str(2**24)}
    with (home / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [COMMAND, "serve", "--device", "cpu", "--port", str(port)], env=environment, stdout=log, stderr=log
        )
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as http:
        try:
            assert eventually(lambda: is_up(http)), (home / "server.log").read_text()
            yield Server(process, port, http)
        finally:
            process.kill()
            process.wait()


def is_up(http: httpx.Client) -> bool:
    try:
        return http.get("/livez").status_code == 200
    except httpx.TransportError:
        return False


def cpu_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    keep_tree(home, small_tree(TIMES_MS))
    return home


@pytest.fixture(scope="module")
def running(home: Path) -> Iterator[Server]:
    with server(home) as running:
        yield running


def test_a_layer_gets_advice(running: Server) -> None:
    answer = running.http.get("/v1/advice", params={"layer": "14-1-3-256-128", "device": GPU.id}).json()
    assert answer["variant"] == FAST
    assert answer["problem"]["layer"] == "14-1-3-256-128"


def test_tensors_are_convolved_by_every_variant_of_this_cpu(running: Server) -> None:
    problem = ConvProblem.parse("13-2-3-6-5")
    x, weight = reference.random_operands(problem, seed=1)
    content = save({"x": x, "weight": weight}, {"pad": "1", "variant": "all"})
    response = running.http.post("/v1/convolutions", content=content, headers=SAFETENSORS)
    assert response.status_code == 200, response.text
    expected = reference.convolve(problem, x, weight)
    assert comparison.max_error(load(response.content)["y"], expected) <= tolerance(problem)
    header = json.loads(response.content[8 : 8 + int.from_bytes(response.content[:8], "little")])["__metadata__"]
    attempts = {attempt["variant"]: attempt for attempt in json.loads(header["attempts"])}
    assert {"cpu.direct", "cpu.gemm_parallel", "cpu.fft", "cpu.winograd_parallel"} <= set(attempts)
    assert {attempt["outcome"] for attempt in attempts.values()} == {"measured"}
    assert all(attempt["max_error"] <= tolerance(problem) for attempt in attempts.values())
    assert float(header["time_ms"]) == min(attempt["time_ms"] for attempt in attempts.values())


def test_tritons_own_client_finds_the_model_and_convolves(running: Server) -> None:
    from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
    from tritonclient.utils import InferenceServerException

    problem = ConvProblem.parse("13-2-3-6-5")
    x, weight = reference.random_operands(problem, seed=1)
    inputs = [InferInput(name, list(each.shape), "FP32") for name, each in (("x", x), ("weight", weight))]
    for given, each in zip(inputs, (x, weight), strict=True):
        given.set_data_from_numpy(each)
    asked = {"layer": problem.short, "variant": "cpu.direct"}
    with InferenceServerClient(f"127.0.0.1:{running.port}") as triton:
        assert triton.is_server_live()
        assert eventually(triton.is_server_ready)
        assert triton.is_model_ready("conv")
        assert not triton.is_model_ready("resnet")
        assert triton.get_server_metadata()["name"] == "conv-advisor"
        assert [each["name"] for each in triton.get_model_metadata("conv")["inputs"]] == [
            *("x", "weight", "bias", "residual")
        ]
        for outputs in (None, [InferRequestedOutput("y", binary_data=False)], [InferRequestedOutput("y")]):
            result = triton.infer("conv", inputs, outputs=outputs, request_id="7", parameters=asked)
            y = result.as_numpy("y")
            assert y.shape == problem.y_shape
            assert comparison.max_error(y, reference.convolve(problem, x, weight)) <= tolerance(problem)
            answer = result.get_response()
            assert (answer["id"], answer["parameters"]["variant"]) == ("7", "cpu.direct")
        with pytest.raises(InferenceServerException, match="unknown variant"):
            triton.infer("conv", inputs, parameters=asked | {"variant": "nobody"})
        with pytest.raises(InferenceServerException, match="Content-Encoding"):
            triton.infer("conv", inputs, parameters=asked, request_compression_algorithm="gzip")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_sends_and_receives_npy(running: Server, tmp_path: Path) -> None:
    problem = ConvProblem.parse("13-2-3-6-5")
    operands = reference.random_operands(problem, seed=1)
    for name, each in zip(("x", "weight"), operands, strict=True):
        np.save(tmp_path / f"{name}.npy", each)
    url = f"http://127.0.0.1:{running.port}/v1/convolutions?layer={problem.short}&variant=cpu.gemm"
    send = "cat x.npy weight.npy | curl -sf --data-binary @- -H 'content-type: application/x-npy' -o y.npy"
    subprocess.run(["/bin/sh", "-c", f"{send} '{url}'"], cwd=tmp_path, check=True)
    expected = reference.convolve(problem, *operands)
    assert comparison.max_error(np.load(tmp_path / "y.npy"), expected) <= tolerance(problem)


def test_the_server_has_loaded_neither_scikit_learn_nor_numba_whatever_it_did(running: Server) -> None:
    layers = {"layers": ["14-1-3-256-128", {"layer": "7-1-1-8-8", "dtype": "float16"}], "device": GPU.id}
    assert running.http.get("/v1/advice?layer=14-1-3-256-128").status_code == 200
    assert running.http.post("/v1/advice", json=layers).status_code == 200
    assert running.http.post("/v1/advice", json=layers | {"ranking": True}).status_code == 200
    convolved = running.http.post("/v1/convolutions", json={"layer": "7-1-1-8-8", "variant": "cpu.direct"})
    assert convolved.status_code == 200
    maps = Path(f"/proc/{running.process.pid}/maps").read_text()
    assert "numpy" in maps
    assert [name for name in ("sklearn", "llvmlite", "numba", "cupy") if name in maps] == []


def test_nan_and_infinity_are_computed_as_ieee_says(running: Server) -> None:
    x = np.array([np.nan, np.inf, -1, 0], np.float32).reshape(1, 1, 1, 4)
    content = save({"x": x, "weight": np.full((1, 1, 1, 1), 2, np.float32)}, {"variant": "cpu.direct"})
    response = running.http.post("/v1/convolutions", content=content, headers=SAFETENSORS)
    np.testing.assert_array_equal(load(response.content)["y"].ravel(), [np.nan, np.inf, -2, 0])


def test_what_was_measured_is_advised(running: Server) -> None:
    layer = "12-1-3-8-8"
    ran = running.http.post("/v1/convolutions", json={"layer": layer, "variant": "all"}).json()
    advice = running.http.get("/v1/advice", params={"layer": layer, "device": "cpu"}).json()
    assert advice["variant"] in [attempt["variant"] for attempt in ran["attempts"]]
    assert advice["ranking"][0]["source"] == "measured"


def busy_worker(server: Server) -> Callable[[], int]:
    """Which of its workers has computed for a while since now, for one that asks until there is one; else 0.

    The spare, which starts beside the first task, is waited for: it computes too until its imports are done.
    """
    assert eventually(lambda: len(server.workers()) == 2 and are_at_rest(server.workers()))
    ticks = {pid: cpu_ticks(pid) for pid in server.workers()}

    def busy() -> int:
        grown = {pid: cpu_ticks(pid) - ticks.get(pid, cpu_ticks(pid)) for pid in server.workers()}
        return next((pid for pid, more in grown.items() if more > 30), 0)

    return busy


def test_a_worker_killed_during_a_convolution_is_told_at_once_and_the_next_runs(running: Server) -> None:
    running.http.post("/v1/convolutions", json={"layer": "7-1-1-8-8", "variant": "cpu.direct"})
    with ThreadPoolExecutor(1) as thread:
        busy = busy_worker(running)
        asked = thread.submit(running.http.post, "/v1/convolutions", json=LONG)
        computing: list[int] = []
        assert eventually(lambda: computing.append(busy()) or computing[-1])
        os.kill(computing[-1], signal.SIGKILL)
        is_problem(asked.result(), 503, "worker-died")
    ran = running.http.post("/v1/convolutions", json={"layer": "7-1-1-8-8", "variant": "cpu.direct"})
    assert ran.status_code == 200, ran.text


def exchange(port: int, *parts: bytes) -> bytes:
    """Send parts of a request as they are; what comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        for part in parts:
            connection.sendall(part)
        answer = b""
        while received := connection.recv(65536):
            answer += received
        return answer


def test_a_body_beyond_the_limit_is_refused_before_it_is_sent(running: Server) -> None:
    head = b"POST /v1/convolutions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
    answer = exchange(running.port, head + b"Content-Length: 99999999999\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"application/problem+json" in answer
    chunk = b"100000\r\n" + bytes(2**20) + b"\r\n"
    answer = exchange(running.port, head + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 17)
    assert answer.startswith(b"HTTP/1.1 413")


def test_what_is_no_http_or_the_wrong_kind_is_refused(running: Server) -> None:
    assert exchange(running.port, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")
    plain = running.http.post("/v1/convolutions", content=b"{}", headers={"content-type": "text/plain"})
    is_problem(plain, 415, "unsupported-media-type")
    lying = (2**40).to_bytes(8, "little") + b"{}"
    is_problem(running.http.post("/v1/convolutions", content=lying, headers=SAFETENSORS), 400, "invalid-tensor")


def test_a_client_that_stops_in_the_middle_blocks_nobody(running: Server) -> None:
    head = b"POST /v1/convolutions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
    with socket.create_connection(("127.0.0.1", running.port), timeout=300) as connection:
        connection.sendall(head + b"Content-Length: 1000000\r\n\r\n" + bytes(1000))
        assert running.http.get("/livez").status_code == 200
    ran = running.http.post("/v1/convolutions", json={"layer": "7-1-1-8-8", "variant": "cpu.direct"})
    assert ran.status_code == 200


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Nobody else writes to a database within the block."""
    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as holding:
        holding.execute("BEGIN IMMEDIATE")
        yield


@pytest.mark.slow
def test_a_service_killed_during_a_retrain_finishes_it_after_the_next_start(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path / 'conv-advisor.db'}") as store:
        store.append(small_measurements(0.01))
    with server(tmp_path) as first:
        asked = first.http.post("/v1/models", json={"device": SMALL_DEVICE.id})
        assert asked.status_code == 202, asked.text
        job = f"/v1/jobs/{asked.json()['id']}"
        assert eventually(lambda: first.http.get(job).json()["state"] == "running"), first.http.get(job).text
        with locked(tmp_path / "conv-advisor.db"):  # so that it does not end before it is killed
            assert eventually(lambda: any(b"\0none\0" in command_of(pid) for pid in children(first.process.pid)))
            assert first.http.get(job).json()["state"] == "running"
            workers = children(first.process.pid)
            first.process.kill()
            first.process.wait()
    assert eventually(lambda: not any(map(is_running, workers))), "a worker outlived the service"
    with server(tmp_path) as second:
        assert eventually(lambda: second.http.get(job).json()["finished_at"])
        ended = second.http.get(job).json()
        assert (ended["state"], ended["attempt"]) == ("succeeded", 2), ended

        def models() -> list[tuple[str, bool]]:
            listed = second.http.get("/v1/models").json()["models"]
            return [(each["id"], each["is_active"]) for each in listed if each["device"] == SMALL_DEVICE.id]

        assert eventually(models)
        assert models() == [(ended["result"]["model"], True)]
        params = {"layer": "11-1-3-16-16", "device": SMALL_DEVICE.id}
        assert second.http.get("/v1/advice", params=params).json()["variant"] == "cpu.direct"
        ran = second.http.post("/v1/convolutions", json={"layer": "7-1-1-8-8", "variant": "cpu.direct"})
        assert ran.status_code == 200


@pytest.mark.slow
def test_it_stops_when_asked_to_and_leaves_nothing_behind(home: Path) -> None:
    with server(home) as own, ThreadPoolExecutor(1) as thread:
        own.http.post("/v1/convolutions", json={"layer": "7-1-1-8-8", "variant": "cpu.direct"})
        busy = busy_worker(own)
        asked = thread.submit(own.http.post, "/v1/convolutions", json=LONG)
        assert eventually(busy)
        workers = children(own.process.pid)
        assert workers
        own.process.send_signal(signal.SIGTERM)
        own.process.wait(timeout=300)
        assert asked.exception() or asked.result().status_code >= 500
    assert eventually(lambda: not any(map(is_running, workers)))
