"""Builds in the user's cache: made once, whole or not at all, and forgotten when nobody asks for them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conv_advisor.kernels import builds
from conv_advisor.kernels.builds import UNUSED_S, kept_build


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    builds._home.cache_clear()
    yield tmp_path / "conv-advisor" / "cc"
    builds._home.cache_clear()


def write(folder: Path, text: str = "built") -> None:
    (folder / "result").write_text(text)


def never(_folder: Path) -> None:
    raise AssertionError("it was built before")


def test_the_same_is_built_once() -> None:
    kept = kept_build("cc", ["int x;", "-O2", "12.2"], write)
    assert (kept / "result").read_text() == "built"
    assert kept_build("cc", ["int x;", "-O2", "12.2"], never) == kept


@pytest.mark.parametrize("key", [["int y;", "-O2"], ["int x;", "-O3"], ["int x;-O2"], ["int x;", "-O2", "13"]])
def test_whatever_differs_is_built_apart(key: list[str]) -> None:
    assert kept_build("cc", ["int x;", "-O2"], write) != kept_build("cc", key, write)


def test_what_fails_leaves_nothing(home: Path) -> None:
    def fail(folder: Path) -> None:
        write(folder, "half")
        raise ValueError("line 1: no such type")

    with pytest.raises(ValueError, match="no such type"):
        kept_build("cc", ["x"], fail)
    assert list(home.iterdir()) == []
    assert (kept_build("cc", ["x"], write) / "result").read_text() == "built"


def test_of_two_processes_that_build_at_once_both_get_it(home: Path) -> None:
    def build_second(folder: Path) -> None:
        kept_build("cc", ["x"], lambda other: write(other, "first"))
        write(folder, "second")

    kept = kept_build("cc", ["x"], build_second)
    assert (kept / "result").read_text() == "first"
    assert list(home.iterdir()) == [kept]


def test_what_nobody_asked_for_is_deleted_and_what_is_in_use_stays(home: Path) -> None:
    unused, used = (kept_build("cc", [name], write) for name in ("unused", "used"))
    long_ago = time.time() - UNUSED_S - 60
    for folder in (unused, used):
        os.utime(folder, (long_ago, long_ago))
    kept_build("cc", ["used"], never)
    builds._home.cache_clear()
    kept_build("cc", ["used"], never)
    assert list(home.iterdir()) == [used]


def test_where_the_cache_cannot_be_written_it_is_built_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "tmp").mkdir()
    program = (
        "from conv_advisor.kernels.builds import kept_build\n"
        "kept = kept_build('cc', ['x'], lambda folder: (folder / 'result').touch())\n"
        "assert (kept / 'result').exists()\n"
    )
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path / "tmp")}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert list((tmp_path / "tmp").iterdir()) == []
