"""What goes with a release: one version everywhere, and workflows that run what exists on every Python promised."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import conv_advisor

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read_yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_there_is_one_version() -> None:
    version = PROJECT["version"]
    assert conv_advisor.__version__ == version
    assert read_yaml("CITATION.cff")["version"] == version
    (newest, *_) = re.findall(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest == version


def test_every_python_that_is_promised_is_tried() -> None:
    promised = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    matrix = read_yaml(".github/workflows/ci.yml")["jobs"]["python"]["strategy"]["matrix"]["python"]
    assert matrix == promised == [f"3.{minor}" for minor in range(11, 11 + len(promised))]
    assert PROJECT["requires-python"] == f">={promised[0]}"


@pytest.mark.parametrize("path", [".github/workflows/ci.yml", ".github/workflows/release.yml"])
def test_a_workflow_runs_what_exists_with_no_more_rights_than_it_needs(path: str) -> None:
    workflow = read_yaml(path)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    for command in (step["run"] for step in steps(workflow) if "run" in step):
        if found := re.match(r"(?:ba)?sh (\S+)", command):
            assert (ROOT / found[1]).is_file(), command
        if found := re.match(r"make (\S+)", command):
            assert f"\n{found[1]}:" in (ROOT / "Makefile").read_text(), command
        assert "${{" not in command  # what others can write, such as a branch's name, is never part of a script
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in steps(workflow) if "uses" in step)


def test_ci_runs_everything() -> None:
    assert "bash .ci/run" in [step.get("run") for step in steps(read_yaml(".github/workflows/ci.yml"))]


def test_the_lists_that_are_tried_are_pinned() -> None:
    for path in ("ci", "release"):
        (command,) = [
            step["run"]
            for step in steps(read_yaml(f".github/workflows/{path}.yml"))
            if ".ci/installed.sh" in step.get("run", "")
        ]
        assert all((ROOT / f"constraints/{name}.txt").exists() for name in command.split()[2:])


def test_the_hooks_before_a_commit_are_the_projects_own_tools() -> None:
    hooks = [hook for repo in read_yaml(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    assert all(hook["entry"].split()[0] in lint for hook in hooks)


LISTS = {
    "base": ("build",),
    "serve": ("build", "cpu", "train"),
    "cluster": ("build", "cpu", "train", "cluster"),
    "cuda": ("cpu", "train", "cluster", "cuda"),
    "dev": ("build", "cpu", "train", "cluster", "dev"),
}
"""Extras beside the base that each pinned list has."""


@pytest.mark.parametrize(("name", "extras"), LISTS.items())
def test_a_list_pins_all_that_its_extras_name(name: str, extras: tuple[str, ...]) -> None:
    wanted = [*PROJECT["dependencies"], *(each for extra in extras for each in PROJECT["optional-dependencies"][extra])]
    names = {match[0] for each in wanted if (match := re.match(r"[\w.-]+", each))} - {PROJECT["name"]}
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / f"constraints/{name}.txt").read_text(), re.MULTILINE))
    assert names <= pinned, names - pinned
    assert f"compile {name}.txt" in (ROOT / "constraints/lock.sh").read_text()


def test_there_is_no_other_list() -> None:
    assert {path.stem for path in (ROOT / "constraints").glob("*.txt")} == {*LISTS, "pytorch"}
