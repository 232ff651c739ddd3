"""The base installation: what it can, and that whatever else is asked for names the extra that brings it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from conv_advisor.data.errors import NotInstalled
from conv_advisor.data.extras import EXTRA_OF, require
from tests.processes import eventually, free_port

ROOT = Path(__file__).parent.parent
COMMAND = Path(sys.executable).with_name("conv-advisor")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LEFT_OUT = (*EXTRA_OF, "llvmlite", "joblib", "dask", "cudnn", "psycopg2")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables under which every process finds only what the base installation has."""
    folder = tmp_path_factory.mktemp("base")
    blocked = f"import sys\nfor name in {LEFT_OUT!r}: sys.modules[name] = None\n"
    (folder / "sitecustomize.py").write_text(blocked)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CONV_ADVISOR_")}
    path = f"{folder}{os.pathsep}{kept['PYTHONPATH']}"
    return kept | {"PYTHONPATH": path, "CONV_ADVISOR_HOME": str(folder / "home")}


def run(base: dict[str, str], *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments], env=base | more, capture_output=True, text=True, timeout=600, check=False
    )


def said(extra: str) -> str:
    return f"pip install 'conv-advisor[{extra}]'"


@pytest.mark.parametrize(
    ("extra", "command", "more"),
    [
        ("cpu", ("convolve", "8-1-3-4-4", "--device", "cpu"), {}),
        ("cpu", ("convolve", "8-1-3-4-4", "--device", "auto"), {}),
        ("cpu", ("sweep", "--device", "cpu", "--networks", "", "--sampled", "1"), {}),
        ("cuda", ("convolve", "8-1-3-4-4", "--device", "cuda:0"), {}),
        ("train", ("train",), {}),
        ("train", ("evaluate",), {}),
        ("train", ("compare", "nvidia-h200", "another.parquet"), {}),
        ("train", ("data", "import", __file__), {}),
        ("train", ("data", "pack", __file__, "--device", "nvidia-h200"), {}),
        ("train", ("sweep", "--networks", "alexnet", "--output", "sweep.parquet"), {}),
        ("onnx", ("plan", __file__), {}),
        ("cluster", ("sweep",), {"CONV_ADVISOR_SCHEDULER": "tcp://127.0.0.1:9"}),
        ("cluster", ("advise", "8-1-3-4-4"), {"CONV_ADVISOR_DATABASE_URL": "postgresql://nobody@127.0.0.1:9/nothing"}),
        ("cluster", ("serve", "--port", "0"), {"CONV_ADVISOR_OTLP_ENDPOINT": "http://127.0.0.1:9"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_command_names_the_extra_that_it_needs(
    base: dict[str, str], extra: str, command: tuple[str, ...], more: dict[str, str]
) -> None:
    done = run(base, *command, **more)
    assert done.returncode == 2, done.stderr
    assert said(extra) in done.stderr
    assert "Traceback" not in done.stderr


def test_the_base_installation_advises(base: dict[str, str]) -> None:
    done = run(base, "advise", "14-1-3-256-128", "--json")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def service(base: dict[str, str]) -> Iterator[httpx.Client]:
    """A service of the base installation."""
    port = str(free_port())
    log = Path(base["CONV_ADVISOR_HOME"] + ".log")
    with log.open("wb") as file:
        process = subprocess.Popen([COMMAND, "serve", "--port", port], env=base, stdout=file, stderr=file)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:
        try:
            assert eventually(lambda: process.poll() is not None or is_ready(client)), log.read_text()
            assert process.poll() is None, log.read_text()
            yield client
        finally:
            process.terminate()
            process.wait(300)


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_a_service_without_the_extras_is_ready_and_advises(service: httpx.Client) -> None:
    assert service.get("/v1/advice", params={"layer": "14-1-3-256-128"}).json()["device"] == "nvidia-h200"
    assert service.get("/").status_code == 200
    assert "advice only" in service.get("/status", headers={"hx-request": "true"}).text


@pytest.mark.parametrize(
    ("extra", "address", "body"),
    [
        ("cpu", "/v1/convolutions", {"layer": "8-1-3-4-4"}),
        ("cpu", "/v1/jobs", {"kind": "measure", "layers": ["8-1-3-4-4"]}),
        ("train", "/v1/jobs", {"kind": "retrain", "device": "nvidia-h200"}),
        ("train", "/v1/models", {"device": "nvidia-h200"}),
    ],
)
def test_a_request_names_the_extra_that_it_needs(service: httpx.Client, extra: str, address: str, body: dict) -> None:
    answer = service.post(address, json=body)
    assert answer.status_code == 501, answer.text
    document = answer.json()
    assert (document["type"], document["extra"]) == ("/problems/not-installed", extra)
    assert said(extra) in document["detail"]


def test_every_extra_that_is_named_exists() -> None:
    extras = PROJECT["optional-dependencies"]
    assert set(EXTRA_OF.values()) == set(extras) - {"all", "build", "dev"}
    (everything,) = extras["all"]
    assert set(re.findall(r"\w+", everything.partition("[")[2])) == set(EXTRA_OF.values())


def test_what_extras_bring_is_not_in_the_base() -> None:
    distributions = {
        "sklearn": "scikit-learn",
        "cupy": "cupy-cuda13x",
        "pynvml": "nvidia-ml-py",
        "opentelemetry.sdk": "opentelemetry-sdk",
    }
    extras = PROJECT["optional-dependencies"]
    for package, extra in EXTRA_OF.items():
        named = distributions.get(package, package)
        assert any(re.match(rf"{named}\b", each) for each in extras[extra]), package
        assert not any(re.match(rf"{named}\b", each) for each in PROJECT["dependencies"]), package


def test_what_is_installed_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require("numba", "sklearn")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(NotInstalled) as caught:
        require("numba", "sklearn")
    assert (caught.value.extra, caught.value.package) == ("train", "sklearn")
