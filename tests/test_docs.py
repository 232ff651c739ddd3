"""The documentation: its commands do what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image

from conv_advisor.app.cli import cli
from conv_advisor.data.database.schema import HEAD
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.store import Store
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.models.training.enough import ENOUGH_MEASURED
from tests.processes import PATIENT, free_port

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
PAGES = ("docs/tutorial.md", "docs/how-to.md")
"""Whose commands are run."""
ALL_PAGES = (
    *("README.md", "CONTRIBUTING.md", "benchmarks/README.md"),
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")),
)
SERVE = "conv-advisor serve --device cpu"
"""Started once for all commands; its port is a free one."""
NOT_RUN = {
    "conv-advisor sweep": "needs GPUs, a cluster or minutes; tests/app/test_cli.py runs a small one",
    "conv-advisor calibrate": "needs a GPU; tests/app/test_calibrate.py has one that answers as one would",
    "conv-advisor refresh": "needs a GPU; tests/app/test_refresh.py has one that answers as one would",
    "conv-advisor train": "reads all measurements that ship, for a minute or more, after a sweep of minutes",
    "conv-advisor advise 13-1-3-384-256 --device cpu": "needs the tree of that training",
    "conv-advisor scheduler": "needs the address and the certificates of a cluster",
    "conv-advisor worker": "needs a scheduler",
    "conv-advisor compare": "needs two data sets",
    "CONV_ADVISOR_DATABASE_URL=": "needs PostgreSQL",
    "CONV_ADVISOR_TOKENS_FILE=": "listens beyond loopback until it is stopped",
    "export CONV_ADVISOR_SCHEDULER_CA_FILE": "names certificates of a cluster",
    'curl -H "Authorization: Bearer $TOKEN"': "needs the server of the line before, and its token",
    "CONV_ADVISOR_LOG_FORMAT=": "serves until it is stopped; tests/app/test_observe.py has a collector",
    "openssl": "is no dependency; tests/deploy/test_compose.py makes and verifies such certificates where it is",
    "sh deploy/secrets.sh": "writes secrets into the working tree",
    "docker": "needs Docker and its registry",
}
"""How commands begin that do not run here, and why; they are parsed."""


def commands(pages: tuple[str, ...] = PAGES) -> list[str]:
    """Every command of the blocks marked ``sh``, in order."""
    blocks = [
        block
        for page in pages
        for block in re.findall(r"^```sh\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    ]
    lines = [line for block in blocks for line in re.sub(r"\\\n\s*", "", block).splitlines()]
    return [line for line in lines if line.strip() and not line.startswith("#")]  # what is answered is a comment


def test_the_next_migration_is_numbered_as_the_next() -> None:
    (number,) = re.findall(r"--rev-id (\d+)", (ROOT / "CONTRIBUTING.md").read_text())
    assert int(number) == int(HEAD) + 1


def asked_in_the_readme() -> list[str]:
    """Its questions for advice, which a server without more can answer."""
    asked = (".venv/bin/conv-advisor advise", "curl 'http", "curl -H 'content-type: application/json' http")
    of_jobs = ("Idempotency-Key", "/v1/convolutions")
    found = [each for each in commands(("README.md",)) if each.startswith(asked)]
    return [each.replace(".venv/bin/", "") for each in found if not any(word in each for word in of_jobs)]


def is_run(command: str) -> bool:
    return command != SERVE and not any(command.startswith(prefix) for prefix in NOT_RUN)


def test_the_explanation_names_every_variant_whose_method_is_known() -> None:
    text = (ROOT / "docs" / "algorithms.md").read_text()
    known = [each.removesuffix("_tc") for each in VARIANTS if not each.startswith("cudnn.graph.")]
    assert [each for each in known if f"`{each}`" not in text] == []


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A folder and a running server for the commands."""
    folder = tmp_path_factory.mktemp("commands")
    port = free_port()
    environment = (
        os.environ
        | PATIENT
        | {
            "CONV_ADVISOR_HOME": str(folder / "home"),
            "CONV_ADVISOR_PORT": str(port),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "PWD": str(folder),
        }
    )
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(shlex.split(SERVE), env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        assert is_ready(f"http://127.0.0.1:{port}/readyz"), (folder / "log").read_text()
        measure_once(f"http://127.0.0.1:{port}/v1/convolutions")
        sweep_enough(folder / "home" / "conv-advisor.db")
        yield environment
    finally:
        server.terminate()
        server.wait(300)


def measure_once(url: str) -> None:
    """Have one layer measured: commands that carry measurements out find the device."""
    asked = urllib.request.Request(  # noqa: S310 - our own server
        url, b'{"layer": "7-1-1-8-8", "variant": "cpu.direct"}', {"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=600) as answer:  # noqa: S310 - our own server
        assert answer.status == 200


def sweep_enough(database: Path) -> None:
    """What the sweep of minutes would have measured before the retrain that follows it: as much as that needs."""
    with Store(f"sqlite:///{database}") as store:
        device = store.device("cpu")
        layers = [ConvProblem.parse(f"7-1-1-{8 + index}-8") for index in range(ENOUGH_MEASURED)]
        times_ms = (0.1, 0.1, 0.1)
        store.append(
            [Measurement(layer, "cpu.direct", device, Outcome.MEASURED, "", times_ms, 0, 1e-7) for layer in layers]
        )


def is_ready(url: str, within_s: float = 300.0) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own server
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return False


def test_the_server_of_the_tutorial_is_the_one_that_is_started() -> None:
    assert commands()[0] == SERVE


@pytest.mark.parametrize("command", [*(each for each in commands() if is_run(each)), *asked_in_the_readme()])
def test_command_runs(command: str, environment: dict[str, str]) -> None:
    here = command.replace("127.0.0.1:8000", f"127.0.0.1:{environment['CONV_ADVISOR_PORT']}")
    done = subprocess.run(
        ["/bin/bash", "-c", here],
        env=environment,
        cwd=environment["PWD"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr or ">" in command


def test_the_photograph_of_the_tutorial_goes_through_its_filters(environment: dict[str, str], tmp_path: Path) -> None:
    pictures = ROOT / "docs" / "pictures"
    shutil.copy(pictures / "photograph.jpg", tmp_path)
    (program,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs" / "tutorial.md").read_text(), re.DOTALL | re.MULTILINE
    )
    here = program.replace("127.0.0.1:8000", f"127.0.0.1:{environment['CONV_ADVISOR_PORT']}")
    done = subprocess.run(
        [sys.executable, "-c", here],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert (measured["outcome"], measured["n_compared"]) == ("measured", 6 * 256 * 256)
    for name in ("blurred", "second-derivative"):
        shown, made = (np.asarray(Image.open(folder / f"{name}.jpg"), float) for folder in (pictures, tmp_path))
        assert np.abs(shown - made).max() < 32, "the page shows what the program makes, but for JPEG's own rounding"
        assert np.abs(shown - made).mean() < 1


@pytest.mark.parametrize("command", [each for each in commands() if not is_run(each)])
def test_command_that_cannot_run_here_is_parsed(command: str) -> None:
    assert subprocess.run(["/bin/bash", "-n", "-c", command], check=False).returncode == 0
    words = shlex.split(command, comments=True)
    if "conv-advisor" in words:
        arguments = words[words.index("conv-advisor") + 1 :]
        parse(typer.main.get_command(cli), arguments)


@pytest.mark.parametrize("page", ALL_PAGES)
def test_every_command_names_what_exists(page: str) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in commands((page,)):
        assert subprocess.run(["/bin/bash", "-n", "-c", command], check=False).returncode == 0, command
        words = [word.removeprefix(".venv/bin/") for word in shlex.split(command, comments=True)]
        ends = [place for place, word in enumerate(words) if word in (">", "|", "&&", ";")]
        first = next(place for place, word in enumerate(words) if not re.match(r"[A-Z_]+=", word))
        words = words[first : ends[0] if ends else None]
        if words[0] == "conv-advisor":
            parse(typer.main.get_command(cli), words[1:])
        if words[:2] == ["python", "-m"]:
            assert find_spec(words[2]), command
        if words[0] == "make":
            assert set(words[1:]) <= set(targets), command
        written = [word for word in words if re.fullmatch(r"[a-z]+/[\w/.-]+\.(py|sh)|tests/[\w/]+", word)]
        assert [path for path in written if not (ROOT / path).exists()] == [], command


def parse(command: Any, arguments: list[str]) -> None:
    """Parse as the command line would, running nothing; an unknown command, option or value raises."""
    while commands := getattr(command, "commands", None):
        command, arguments = commands[arguments[0]], arguments[1:]
    command.make_context(command.name, arguments)


def test_what_a_room_weighs_is_what_the_page_of_the_images_says() -> None:
    """Within a tenth, so that a page is not written anew for every line; sizes of other layers have their date."""
    said = dict(re.findall(r"(data|models|app|kernels) ([\d.]+) MB", (ROOT / "docs" / "docker.md").read_text()))
    assert set(said) == {"data", "models", "app", "kernels"}
    for room, megabytes in said.items():
        files = [path for path in (ROOT / room).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert sum(path.stat().st_size for path in files) / 1e6 == pytest.approx(float(megabytes), rel=0.1, abs=0.1)


def test_every_reason_is_needed() -> None:
    assert [prefix for prefix in NOT_RUN if not any(each.startswith(prefix) for each in commands())] == []


def test_parsing_refuses_what_does_not_exist() -> None:
    with pytest.raises(typer.BadParameter.__base__):  # UsageError, which Typer does not name
        parse(typer.main.get_command(cli), ["train", "--no-such-option"])
