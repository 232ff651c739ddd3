"""The same question gets the same answer from the library, the command line and a server, wherever they are started."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import conv_advisor
from conv_advisor.app.advice import library
from conv_advisor.app.advice import local as local_module
from conv_advisor.app.cli import cli
from conv_advisor.app.main import create_app
from conv_advisor.app.settings import Settings
from conv_advisor.data.errors import WorkerError
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.shipped import Shipped, problem_of
from tests.app.serving import Client

DEVICE = "nvidia-h200"


def refuse(_settings: Settings) -> Any:
    raise WorkerError("no worker here")


def measured(count: int) -> list[ConvProblem]:
    table = Shipped().table(DEVICE)
    assert table is not None
    return [problem_of(key) for key in random.Random(0).sample(table.keys, count)]  # noqa: S311 - a repeatable choice, no secret


def made_up(count: int) -> list[ConvProblem]:
    draw = random.Random(1)  # noqa: S311 - a repeatable choice, no secret
    return [
        ConvProblem.parse(
            f"{draw.randrange(4, 130)}-{draw.choice((1, 2, 8, 32))}-{draw.choice((1, 3, 5, 7))}"
            f"-{draw.randrange(1, 600)}-{draw.randrange(1, 600)}",
            dtype=draw.choice(list(DType)),
            layout=draw.choice(list(Layout)),
        )
        for _ in range(count)
    ]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a store; what is asked in one process loads the tree once."""
    monkeypatch.setenv("CONV_ADVISOR_HOME", str(tmp_path / "home"))
    once = cache(local_module.Local)
    monkeypatch.setattr(local_module, "Local", once)
    monkeypatch.setattr(library, "Local", once)
    library._local.cache_clear()
    yield tmp_path / "home"
    library._local.cache_clear()


@pytest.mark.slow
def test_library_command_line_and_server_answer_the_same_from_any_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("here", "there")]
    for folder in folders:
        folder.mkdir()
    problems = [*measured(250), *made_up(250)]
    n_measured = 0
    client = Client(create_app(Settings(home=home), open_engine=refuse))
    try:
        for index, problem in enumerate(problems):
            monkeypatch.chdir(folders[index % 2])
            asked = {"layer": problem.short, "dtype": str(problem.dtype), "layout": str(problem.layout)}
            only = {"only": "cudnn"} if index % 5 == 0 else {}
            served = client.get("/v1/advice", params={**asked, **only, "device": DEVICE}).json()
            words = ["--dtype", asked["dtype"], "--layout", asked["layout"], "--device", DEVICE, "--json"]
            words += [word for name, value in only.items() for word in (f"--{name}", value)]
            printed = CliRunner().invoke(cli, ["advise", problem.short, *words])
            assert printed.exit_code == 0, printed.output
            assert json.loads(printed.stdout) == served
            assert conv_advisor.advise(problem, device=DEVICE, **only).to_dict() == served
            n_measured += any(choice["source"] == "measured" for choice in served["ranking"])
    finally:
        client.close()
    assert n_measured > 190


def test_a_command_started_anywhere_answers_as_the_library_does(home: Path, tmp_path: Path) -> None:
    (problem,) = measured(1)
    question = ("advise", problem.short, "--dtype", str(problem.dtype), "--layout", str(problem.layout), "--json")
    (tmp_path / "data").mkdir()
    for folder in (tmp_path, tmp_path / "data"):
        command = (sys.executable, "-P", "-c", "from conv_advisor.app.cli import main; main()", *question)
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        assert json.loads(found.stdout) == conv_advisor.advise(problem).to_dict()
    assert not home.exists()
