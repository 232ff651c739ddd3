"""The trial of an image on a GPU host; here it asks a real server on the CPU."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from conv_advisor.app.guard.tokens import entry_of, make_token
from conv_advisor.app.wire.caller import Scope
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.reference import convolve
from deploy.image import trial
from tests.app.test_end_to_end import server


def test_its_reference_is_the_projects() -> None:
    problem = ConvProblem.parse(trial.LAYER)
    rng = np.random.default_rng(1)
    x, weight = (rng.standard_normal(shape, np.float32) for shape in (problem.x_shape, problem.weight_shape))
    np.testing.assert_allclose(trial.reference(x, weight), convolve(problem, x, weight), rtol=1e-4, atol=1e-5)


def test_wheels_are_brought_to_where_the_image_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packages = tmp_path / "site-packages"
    for name in ("nvidia/cu13/lib/libcublas.so.13", "nvidia/cudnn/lib/libcudnn.so.9", "nvidia/nccl/lib/libnccl.so.2"):
        (packages / name).parent.mkdir(parents=True)
        (packages / name).write_text(name)
    (packages / "nvidia_cublas-13.1.dist-info").mkdir()
    inside = tmp_path / "root/opt/conv-advisor/lib/python3.11/site-packages"
    inside.mkdir(parents=True)
    trial.add_wheels(tmp_path / "root", packages / "nvidia")
    brought = {path.name for path in inside.rglob("*") if path.is_file()}
    assert brought == {"libcublas.so.13", "libcudnn.so.9"}
    assert "nvidia_cublas-13.1" in capsys.readouterr().out


def test_of_nobody_there_is_no_answer() -> None:
    assert trial.Asked("http://127.0.0.1:9", "token").get("/readyz") == (0, None)


SERVER = """
import http.server, sys

class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

http.server.HTTPServer(("0.0.0.0", int(sys.argv[1])), Ready).serve_forever()
"""


@dataclass
class Stand:
    """What stands in for a container: it shares this machine's network too."""

    volume: Path

    def start(self, output: IO[str], **variables: str) -> subprocess.Popen[str]:
        port = variables["CONV_ADVISOR_PORT"]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", int(port)))  # between the choice of a port and the start of its server
        return subprocess.Popen([sys.executable, "-c", SERVER, port], stdout=output, stderr=output, text=True)


def test_its_port_is_given_to_nobody_else(tmp_path: Path) -> None:
    stand: Any = Stand(tmp_path)
    with trial._serving(stand, "cpu", "token") as (process, service):
        assert service.get("/readyz") == (200, {})
    assert process.poll() is not None


@pytest.mark.slow
def test_it_asks_a_server_all_that_it_should_and_tells_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = tmp_path / "tokens"
    reads, measures = make_token(), make_token()
    may_read, may_measure = entry_of("a", [Scope.READ], reads), entry_of("b", [Scope.READ, Scope.MEASURE], measures)
    tokens.write_text(f"{may_read}\n{may_measure}\n")
    monkeypatch.setenv("CONV_ADVISOR_TOKENS_FILE", str(tokens))
    with server(tmp_path) as running:
        url = f"http://127.0.0.1:{running.port}"
        asked = trial.Asked(url, measures)
        trial.ask(asked)
        trial.convolve(asked)
        trial.measure_all(asked)
        with pytest.raises(trial.Unlike, match="403"):
            trial.convolve(trial.Asked(url, reads))
        with pytest.raises(trial.Unlike, match="401 without a token, 401 with one"):
            trial.ask(trial.Asked(url, "nobody's"))
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["advice"].endswith("401 without a token")
    assert "cpu" in lines["its devices"]
    assert "'max_error'" in lines["a convolution"]
    assert "'measured': " in lines["all variants, float16 nhwc"]
