"""What a start must not load: libraries that take longer to import than the answer takes to make."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from conv_advisor.app.cli import cli

ROOT = Path(__file__).parent.parent
TRAINING = ("numba", "pandas", "pyarrow", "scipy", "sklearn")
ELSEWHERE = ("alembic", "cupy", "dask", "distributed", "psycopg", "torch")
SERVING = ("fastapi", "jinja2", "sqlalchemy", "starlette", "uvicorn")
COMMAND = """
import sys
sys.argv[0] = "conv-advisor"
from conv_advisor.app.cli import main
try:
    main()
except SystemExit as done:
    assert not done.code, done.code
"""
FIRST_PAGE = """
import asyncio
import httpx
from conv_advisor.app.main import create_app
from conv_advisor.app.settings import load_settings
from conv_advisor.data.errors import WorkerError

def refuse(_settings):
    raise WorkerError("no worker is wanted here")

async def ask():
    app = create_app(load_settings(), open_engine=refuse)
    transport = httpx.ASGITransport(app)
    client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
    async with app.router.lifespan_context(app), client:
        for address in ("/readyz", "/", "/v1/advice?layer=14-1-3-256-128", "/metrics"):
            answer = await client.get(address)
            assert answer.status_code == (503 if address == "/readyz" else 200), answer.text

asyncio.run(ask())
"""
MODULES = "\nimport json, sys\nsys.stderr.write(json.dumps([n for n in sys.modules if n.startswith('conv_advisor.')]))"
SAY = "\nimport json, sys\nsys.stderr.write(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"


def loaded(code: str, home: Path, *arguments: str, say: str = SAY) -> set[str]:
    """The packages that a process has imported when it is done, or what else it says then."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code + say, *arguments],
        env=os.environ | {"CONV_ADVISOR_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_help_needs_neither_arrays_nor_models(tmp_path: Path) -> None:
    modules = loaded(COMMAND, tmp_path, "--help")
    assert "typer" in modules
    assert modules & {*TRAINING, *ELSEWHERE, *SERVING, "asyncio", "numpy", "pydantic", "rich"} == set()


def test_a_command_imports_no_other(tmp_path: Path) -> None:
    modules = loaded(COMMAND, tmp_path, "advise", "14-1-3-256-128", say=MODULES)
    assert "conv_advisor.app.cli.advise" in modules
    others = ("access", "ask", "cluster", "database", "jobs", "learn", "measure", "serve", "transfer", "upgrade")
    assert modules & {f"conv_advisor.app.cli.{name}" for name in others} == set()


def test_advice_asks_the_rules_of_kernels_and_imports_no_launcher(tmp_path: Path) -> None:
    modules = loaded(COMMAND, tmp_path, "advise", "14-1-3-256-128", say=MODULES)
    ours = {name for name in modules if name.startswith("conv_advisor.kernels.cuda.")}
    assert "conv_advisor.kernels.cuda.pointwise" in ours
    assert [name for name in ours if name.rpartition(".")[2] in ("launch", "menu", "cost", "compile")] == []


def test_every_command_is_there_under_its_name() -> None:
    commands = typer.main.get_command(cli).commands
    assert {name: command.name for name, command in commands.items()} == {name: name for name in commands}
    assert "advise" in commands


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--pareto",)])
def test_advice_needs_no_server_no_database_and_no_tables(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    modules = loaded(COMMAND, tmp_path, "advise", "14-1-3-256-128", *arguments)
    assert "numpy" in modules
    assert modules & {*TRAINING, *ELSEWHERE, *SERVING} <= ({"jinja2"} if arguments == ("--pareto",) else set())


def test_an_answer_in_words_needs_neither_pydantic_nor_bfloat16(tmp_path: Path) -> None:
    modules = loaded(COMMAND, tmp_path, "advise", "14-1-3-256-128", "--dtype", "fp16", "--layout", "nhwc")
    assert {"numpy", "typer"} <= modules
    assert modules & {"email", "ml_dtypes", "pydantic"} == set()


THREADS = """
from conv_advisor.app.cli.environment import import_numpy_alone
import_numpy_alone()
import json, os, sys
from threadpoolctl import threadpool_info
found = [pool["num_threads"] for pool in threadpool_info() if pool["internal_api"] == "openblas"]
sys.stderr.write(json.dumps([*map(str, found), os.environ.get("OPENBLAS_NUM_THREADS", "unset")]))
"""


def test_a_command_that_multiplies_nothing_starts_no_threads_and_tells_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    assert loaded(THREADS, tmp_path, say="") <= {"1", "unset"}
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    assert "2" in loaded(THREADS, tmp_path, say="")


def test_a_store_that_holds_nothing_is_not_opened_for_advice(tmp_path: Path) -> None:
    loaded(FIRST_PAGE, tmp_path)
    assert (tmp_path / "conv-advisor.db").exists()
    assert "sqlalchemy" not in loaded(COMMAND, tmp_path, "advise", "14-1-3-256-128")


def test_the_first_page_needs_nothing_that_trains_or_measures(tmp_path: Path) -> None:
    modules = loaded(FIRST_PAGE, tmp_path)  # an empty home, whose database is made at once
    assert {"fastapi", "sqlalchemy"} <= modules
    assert modules & {*TRAINING, *ELSEWHERE, "typer"} == set()


HANGS = """
import sys, time
sys.stdout.write("importing\\n")
sys.stdout.flush()
time.sleep(60)
"""


@pytest.fixture
def heard_interrupts() -> Iterator[None]:
    """A shell starts what runs in its background with Ctrl-C ignored, and so do all that inherit from it."""
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, inherited)


@pytest.mark.usefixtures("heard_interrupts")
def test_an_interrupt_while_a_command_is_imported_ends_it_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(HANGS, encoding="utf-8")
    process = subprocess.Popen(
        [Path(sys.executable).with_name("conv-advisor"), "advise", "14-1-3-256-128"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == -signal.SIGINT
