"""The notebooks of the documentation run, from the first cell to the last, against a running server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.app.test_end_to_end import server

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"
RUN = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""
"""In a process of its own: what its libraries warn of is theirs."""


def outputs(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [output for cell in notebook["cells"] for output in cell.get("outputs", ())]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_its_outputs(path: Path) -> None:
    assert outputs(json.loads(path.read_text())) == []


@pytest.mark.slow
def test_measuring_and_retraining_teaches_the_server_this_machine(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="who runs notebooks; the pinned list of developers has it")
    written = (NOTEBOOKS / "measure-and-retrain.ipynb").read_text()
    given, executed = tmp_path / "given.ipynb", tmp_path / "executed.ipynb"
    with server(tmp_path) as running:
        given.write_text(written.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{running.port}"))
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(given), str(executed)],
            env=os.environ | {"MPLCONFIGDIR": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        models = [each for each in running.http.get("/v1/models").json()["models"] if not each["is_shipped"]]
    said = outputs(json.loads(executed.read_text()))
    printed = "".join(text for output in said for text in output.get("text", ()))
    drawn = [output for output in said if "image/png" in output.get("data", {})]
    tables = ["".join(output["data"]["text/html"]) for output in said if "text/html" in output.get("data", {})]
    assert len(drawn) == 4
    assert "53 convolutions take" in printed
    assert "x as long: pytorch_default" in printed
    assert len(tables) == 1
    assert "measured" in tables[0]
    assert "409" in printed  # before anything was measured
    assert [each["is_active"] for each in models] == [True]
    assert models[0]["id"] in printed
    assert printed.count("x the least") == 3
