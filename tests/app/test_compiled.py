"""Compiled templates are kept between starts, and a page never needs that they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import DictLoader, Environment

from conv_advisor.app.web.compiled import Compiled

SOURCES = {"page.html": "{{ 6 * 7 }}"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the caches of this user are."""
    monkeypatch.setattr("conv_advisor.app.web.compiled.user_cache_path", lambda _name: tmp_path)
    return tmp_path


def rendered(environment: Environment) -> str:
    return environment.get_template("page.html").render()


def started(sources: dict[str, str] = SOURCES) -> Environment:
    return Environment(loader=DictLoader(sources), autoescape=True, bytecode_cache=Compiled())


def test_a_template_is_compiled_by_the_first_start_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendered(started()) == "42"
    assert [file.parent for file in folder.rglob("*.cache")] == [folder / "templates"]
    again = started()
    monkeypatch.setattr(again, "compile", lambda *_args, **_kwargs: pytest.fail("it is compiled again"))
    assert rendered(again) == "42"


def test_a_template_that_was_changed_is_compiled_anew(folder: Path) -> None:
    rendered(started())
    assert rendered(started({"page.html": "{{ 6 + 7 }}"})) == "13"


def test_a_page_is_made_where_nothing_can_be_kept(folder: Path) -> None:
    (folder / "templates").write_text("no folder", encoding="utf-8")
    assert rendered(started()) == "42"


@pytest.mark.parametrize("content", [b"", b"j2", b"no bytecode"])
def test_what_is_damaged_is_compiled_anew(folder: Path, content: bytes) -> None:
    rendered(started())
    (kept,) = folder.rglob("*.cache")
    kept.write_bytes(content)
    assert rendered(started()) == "42"
