"""An image that was built: whole, bare, and serving as an orchestrator that grants nothing would run it.

As root: ``python -m deploy.image.build cpu``, then ``IMAGE=localhost/conv-advisor:cpu pytest tests/deploy``;
``IMAGE_STORE`` is the folder that was given as ``--store``.
"""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx
import numpy as np
import pytest

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.reference import convolve
from deploy.image import trial
from deploy.image.buildah import Buildah
from deploy.image.container import USER, Container, mounted, stop
from tests.processes import children, eventually, free_port

IMAGE = os.environ.get("IMAGE", "")
INSIDE = Path(__file__).resolve().parents[2] / "deploy" / "image" / "inside.py"
LAYER = "14-2-3-32-16"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # much is read from a cold disk
    pytest.mark.skipif(not IMAGE, reason="no image: build one and name it in IMAGE"),
]


needs_cuda = pytest.mark.skipif(not IMAGE.endswith(":gpu"), reason="not the image with CUDA")


@dataclass(frozen=True)
class Served:
    """The image's own command, running."""

    container: Container
    process: subprocess.Popen[str]
    port: int

    @property
    def pid(self) -> int:
        """The id that this machine gives its process 1."""
        (child,) = children(self.process.pid)
        return child

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=300)


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    store = os.environ.get("IMAGE_STORE")
    buildah = Buildah(Path(store) if store else None)
    name, container = mounted(buildah, IMAGE, tmp_path_factory.mktemp("volume"))
    try:
        yield container
    finally:
        buildah.call("rm", name)


@contextmanager
def _serving(container: Container, log: Path, **variables: str) -> Iterator[Served]:
    port = free_port()
    with log.open("w") as output, container.start(output, CONV_ADVISOR_PORT=str(port), **variables) as process:
        try:
            assert eventually(lambda: process.poll() is not None or _is_ready(port), 240), log.read_text()
            assert process.poll() is None, log.read_text()
            yield Served(container, process, port)
        finally:
            stop(process)


@pytest.fixture
def served(container: Container, tmp_path: Path) -> Iterator[Served]:
    with _serving(container, tmp_path / "log", CONV_ADVISOR_HOST="127.0.0.1") as served:
        yield served


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def _tensors(problem: ConvProblem) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((problem.n, problem.c, problem.h, problem.w), np.float32)
    return x, rng.standard_normal((problem.k, problem.c, problem.r, problem.s), np.float32)


def _npy(*tensors: np.ndarray) -> bytes:
    body = io.BytesIO()
    for tensor in tensors:
        np.save(body, tensor)
    return body.getvalue()


def _convolve(client: httpx.Client, problem: ConvProblem) -> np.ndarray:
    answer = client.post(
        "/v1/convolutions",
        params={"layer": LAYER, "variant": "advised"},
        content=_npy(*_tensors(problem)),
        headers={"content-type": "application/x-npy"},
    )
    assert answer.status_code == 200, answer.text
    return np.load(io.BytesIO(answer.content))


def test_nothing_in_it_is_broken_unused_or_writable(container: Container) -> None:
    """Every library loads; there is no shell, package manager or compiler, no test, nothing of the driver's."""
    assert container.call("python", "-c", INSIDE.read_text()) == (0, "")


def test_it_needs_no_right_at_all(served: Served) -> None:
    status = _status(served.pid)
    assert status["NSpid"].split()[-1] == "1"
    assert set(status["Uid"].split()) == {str(USER)}
    assert {status[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"


def test_its_root_cannot_be_written(container: Container) -> None:
    status, said = container.call("python", "-c", "open('/opt/conv-advisor/new', 'w')")
    assert status == 1
    assert "Read-only file system" in said


def test_its_own_health_check_agrees(served: Served) -> None:
    _, *command = served.container.config["Healthcheck"]["Test"]
    assert served.container.call(*command, CONV_ADVISOR_PORT=str(served.port)) == (0, "")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        status, _ = served.container.call(*command, CONV_ADVISOR_PORT=str(nobody.getsockname()[1]))
    assert status == 1


def test_it_does_not_listen_to_everybody_without_tokens(container: Container) -> None:
    status, said = container.call(*container.config["Cmd"], timeout_s=300)
    assert status == 2, said
    assert "CONV_ADVISOR_HOST" in said or "host" in said


def test_it_listens_to_everybody_who_has_a_token(container: Container, tmp_path: Path) -> None:
    """As the image starts by itself, but for a file of tokens."""
    file = "/var/lib/conv-advisor/tokens"
    status, said = container.call("conv-advisor", "token", "me", "--file", file)
    assert status == 0, said
    token = said.splitlines()[-1]
    with _serving(container, tmp_path / "log", CONV_ADVISOR_TOKENS_FILE=file) as served, served.client() as client:
        asked = {"layer": "14-1-3-256-128", "device": "nvidia-h200"}
        assert client.get("/v1/advice", params=asked).status_code == 401
        answer = client.get("/v1/advice", params=asked, headers={"authorization": f"Bearer {token}"})
        assert answer.status_code == 200, answer.text


def test_it_advises(served: Served) -> None:
    asked = {"layer": "14-1-3-256-128", "dtype": "float16", "layout": "nhwc", "device": "nvidia-h200"}
    with served.client() as client:
        answer = client.get("/v1/advice", params=asked)
        listed = client.post("/v1/advice", json={"layers": ["14-1-3-256-128"]} | {k: asked[k] for k in list(asked)[1:]})
        page = client.get("/", params=asked)
        assert answer.status_code == listed.status_code == page.status_code == 200, (answer.text, listed.text)
        for path in ("/static/page.css", "/openapi.json", "/v1/networks", "/v1/models"):
            assert client.get(path).status_code == 200, path
    ranking = answer.json()["ranking"]
    assert len(ranking) > 10
    assert all(row["slowdown"] < 1.01 * slower["slowdown"] for row, slower in pairwise(ranking)), "but for ties"
    assert ranking[0]["variant"] in page.text


def test_it_convolves(served: Served) -> None:
    problem = ConvProblem.parse(LAYER)
    x, weight = _tensors(problem)
    with served.client() as client:
        y = _convolve(client, problem)
        everything = client.post("/v1/convolutions", json={"layer": LAYER, "variant": "all"}).json()
    np.testing.assert_allclose(y, convolve(problem, x, weight), rtol=1e-3, atol=1e-3)
    outcomes = {row["variant"]: row["outcome"] for row in [everything, *everything["attempts"]]}
    assert {name for name in outcomes if name.startswith("cpu.")} == set(outcomes)
    assert len(outcomes) == 8
    assert set(outcomes.values()) <= {"measured", "pruned"}
    assert list(outcomes.values()).count("measured") >= 4


def test_workers_that_are_killed_are_collected_and_replaced(served: Served) -> None:
    workers = {pid for pid in children(served.pid) if "\0cpu\0" in Path(f"/proc/{pid}/cmdline").read_text()}
    assert workers
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not workers & set(children(served.pid)), 60)
    assert eventually(lambda: _is_ready(served.port), 120)
    with served.client() as client:
        assert np.isfinite(_convolve(client, ConvProblem.parse(LAYER))).all()
    assert all(_status(pid)["State"][0] != "Z" for pid in children(served.pid))


def test_sigterm_ends_it_after_what_it_was_asked(served: Served) -> None:
    """The signal comes when half of the question has been sent."""
    question = b'{"layer": "%s", "variant": "cpu.direct"}' % LAYER.encode()

    def halves() -> Iterator[bytes]:
        yield question[:20]
        time.sleep(0.5)
        os.kill(served.pid, signal.SIGTERM)
        yield question[20:]

    headers = {"content-type": "application/json", "content-length": str(len(question))}
    with served.client() as client:
        _convolve(client, ConvProblem.parse(LAYER))  # what is compiled first may take longer than an end by SIGTERM
        answer = client.post("/v1/convolutions", content=halves(), headers=headers)
    assert answer.status_code == 200, answer.text
    assert served.process.wait(60) in (0, 128 + signal.SIGTERM)


def test_what_clusters_need_is_in_it(container: Container) -> None:
    modules = "psycopg, alembic, distributed, opentelemetry.exporter.otlp.proto.http.trace_exporter, sklearn.ensemble"
    assert container.call("python", "-c", f"import {modules}") == (0, "")


def test_a_trial_of_it_finds_all_as_it_should_be(container: Container, capsys: pytest.CaptureFixture[str]) -> None:
    trial.try_out(container, "cpu")
    assert "ended by SIGTERM: status 0" in capsys.readouterr().out


COMPILE_ALL = """
import cupy
from conv_advisor.kernels.cuda.sources import SOURCES
from conv_advisor.kernels.cuda.compile import _include_path, compile_cubin
from conv_advisor.kernels.cuda.parts.source import STORAGES
from conv_advisor.kernels.cudnn import library

print("cupy", cupy.__version__, "cudnn", library.version(), "headers", *_include_path())
for name, source in SOURCES.items():
    for storage in STORAGES:
        for defines in source.instantiations(storage)[:1]:
            arch = source.architectures[-1]
            cubin, _ = compile_cubin(source, storage, defines, arch)
            print(name, storage, arch, len(cubin))
"""


@needs_cuda
def test_cuda_s_libraries_load_and_compile_every_kernel_without_a_gpu(container: Container) -> None:
    status, said = container.call("python", "-c", COMPILE_ALL)
    assert status == 0, said
    first, *compiled = said.splitlines()
    assert re.fullmatch(r"cupy 14\.\S+ cudnn 9\.\S+ headers /opt/conv-advisor/\S+", first), first
    assert len(compiled) >= 25
    assert all(int(line.rpartition(" ")[2]) > 1000 for line in compiled)


@needs_cuda
def test_without_a_gpu_it_says_so_and_works_on_the_cpu(container: Container, served: Served, tmp_path: Path) -> None:
    with served.client() as client:
        devices = client.get("/v1/devices").json()
    assert "cpu" in str(devices)
    status, said = container.call("conv-advisor", "convolve", "8-1-3-4-4", "--device", "cuda:0")
    assert status != 0
    assert "cuda:0" in said
