"""The wheel in an environment of its own, used from a project that has folders of the same names as our rooms."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.processes import PATIENT, eventually, free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
LAYER = "14-1-3-16-16"
THEIRS = ("app", "data", "kernels", "models", "tests", "benchmarks")
"""Folders of the project; ours must not be found in their place, nor the other way round."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the wheel in it, and the project that it is used from."""

    bin: Path
    project: Path

    def variables(self) -> dict[str, str]:
        """No search path of ours, and a home of its own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CONV_ADVISOR_"))}
        return kept | PATIENT | {"CONV_ADVISOR_HOME": str(self.project / "var"), "PATH": f"{self.bin}:{kept['PATH']}"}

    def run(self, *command: str) -> str:
        """Standard output of a command that is run in the project's folder."""
        done = subprocess.run(
            command, cwd=self.project, env=self.variables(), capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def build(kind: str, source: Path, folder: Path) -> Path:
    """The file that hatchling builds: ``sdist`` or ``wheel``."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=source, capture_output=True, timeout=300, check=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made as a user's pip would make it: from the source distribution alone."""
    folder = tmp_path_factory.mktemp("dist")
    with tarfile.open(build("sdist", ROOT, folder / "sdist")) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    return build("wheel", source, folder / "wheel")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """The wheel, another project's ``kernels``, and what both depend on, borrowed from here: nothing is fetched."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    found = Environment(folder / "venv" / "bin", folder / "project")
    command = [sys.executable, "-m", "pip", f"--python={found.bin / 'python'}", "install", "--quiet"]
    subprocess.run([*command, "--no-index", "--no-deps", wheel], check=True, timeout=300)
    packages = Path(sysconfig.get_path("purelib", vars={"base": folder / "venv"}))
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    hub = packages / "kernels"
    hub.mkdir()
    (hub / "__init__.py").write_text("def get_kernel(name): return name\n")
    for name in THEIRS:
        (found.project / name).mkdir(parents=True)
        (found.project / name / "__init__.py").write_text(f"raise RuntimeError('the project\\'s own {name}')\n")
    return found


def test_the_wheel_has_one_name(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"conv_advisor"}


def test_the_wheel_has_types_data_and_nothing_compiled(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "conv_advisor/py.typed" in names
    assert any(name.startswith("conv_advisor/models/trained/") for name in names)
    assert any(name.startswith("conv_advisor/data/timings/") for name in names)
    assert not [name for name in names if "__pycache__" in name]


def test_a_module_called_kernels_stays_whose_it_is(environment: Environment) -> None:
    program = "import conv_advisor.kernels.catalog; from kernels import get_kernel; print(get_kernel('hub'))"
    assert environment.run("python", "-P", "-c", program) == "hub\n"


def test_the_library_advises(environment: Environment) -> None:
    program = "import conv_advisor as c; print(c.__file__, c.__version__, c.advise('14-1-3-256-128').device_id)"
    file, version, device = environment.run("python", "-c", program).split()
    assert Path(file).is_relative_to(environment.bin.parent)
    assert version
    assert device == "nvidia-h200"


def test_the_command_line_advises(environment: Environment) -> None:
    command = ("conv-advisor", "advise", "14-1-3-256-128", "--device", "nvidia-h200", "--json")
    assert json.loads(environment.run(*command))["device"] == "nvidia-h200"


def test_the_command_line_convolves_on_the_cpu(environment: Environment) -> None:
    found = environment.run("conv-advisor", "convolve", LAYER, "--device", "cpu", "--variant", "cpu.direct", "--json")
    assert "measured" in found


def test_the_service_advises_and_convolves(environment: Environment) -> None:
    with served(environment) as url:
        with urllib.request.urlopen(f"{url}/v1/advice?layer={LAYER}&device=nvidia-h200", timeout=600) as answer:  # noqa: S310 - our own
            assert json.load(answer)["device"] == "nvidia-h200"
        with urllib.request.urlopen(request_to_convolve(url), timeout=600) as answer:  # noqa: S310 - our own
            y = np.load(io.BytesIO(answer.read()))
    np.testing.assert_allclose(y, np.full((1, 3, 2, 2), 2 * 9), rtol=1e-6)


def request_to_convolve(url: str) -> urllib.request.Request:
    """Ones over ones: each y is the number of products."""
    body = io.BytesIO()
    np.save(body, np.ones((1, 2, 4, 4), np.float32))
    np.save(body, np.ones((3, 2, 3, 3), np.float32))
    where = f"{url}/v1/convolutions?variant=cpu.direct"
    return urllib.request.Request(where, body.getvalue(), {"content-type": "application/x-npy"})  # noqa: S310 - our own


@contextmanager
def served(environment: Environment) -> Iterator[str]:
    """A server that the wheel's command runs, once it is ready."""
    port = str(free_port())
    log = environment.project / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [environment.bin / "conv-advisor", "serve", "--device", "cpu", "--port", port],
            cwd=environment.project,
            env=environment.variables(),
            stdout=file,
            stderr=file,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        assert eventually(lambda: process.poll() is not None or is_ready(url)), log.read_text()
        assert process.poll() is None, log.read_text()
        yield url
    finally:
        process.terminate()
        process.wait(300)


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:  # noqa: S310 - our own
            return bool(answer.status == 200)
    except OSError:
        return False
