"""Processes that time launches on one device take turns; the turn of one that dies is free."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conv_advisor.kernels import exclusive
from conv_advisor.kernels.exclusive import Exclusive

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked there")

_HOLD = """
import sys, time
from conv_advisor.kernels.exclusive import Exclusive
with Exclusive("0000:0B:00.0"):
    print(time.monotonic(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@contextmanager
def _process() -> Iterator[subprocess.Popen[str]]:
    """A process that takes the device's turn, says when it has it, and gives it back when its input ends."""
    command = [sys.executable, "-c", _HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def _began_s(process: subprocess.Popen[str]) -> float:
    assert process.stdout
    return float(process.stdout.readline())


@contextmanager
def _holder() -> Iterator[subprocess.Popen[str]]:
    """A process that has the device's turn."""
    with _process() as process:
        _began_s(process)
        yield process


def test_another_process_waits_for_the_end_of_a_turn() -> None:
    with _holder() as holder, _process() as waiter:
        time.sleep(1)  # it has begun to wait, or a lock that does not lock lets it begin
        ended_s = time.monotonic()
        assert holder.stdin
        holder.stdin.close()
        assert _began_s(waiter) >= ended_s


def test_the_turn_of_a_killed_process_is_free() -> None:
    with _holder() as holder:
        holder.kill()
        holder.wait()
        with Exclusive("0000:0B:00.0"):
            pass


def test_other_devices_are_not_waited_for_and_turns_nest() -> None:
    other = Exclusive("0000:0C:00.0")
    with _holder(), other, other:
        pass


def test_without_a_cache_that_can_be_written_nothing_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with _holder(), Exclusive("0000:0B:00.0"):
        pass


def test_where_the_file_is_another_user_s_nothing_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: str | Path, *how: int, **more: int) -> int:
        if Path(path).name == "0000-0B-00.0":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *how, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        alone = Exclusive("0000:0B:00.0")
    with _holder(), alone:
        pass


def test_where_the_file_system_has_no_locks_nothing_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(_file: int, operation: int) -> None:
        asked.append(operation)
        raise OSError(errno.ENOLCK, "No locks available")

    assert exclusive.fcntl
    monkeypatch.setattr(exclusive.fcntl, "flock", refuse)
    alone = Exclusive("0000:0B:00.0")
    for _ in range(2):
        with alone, alone:
            pass
    assert len(asked) == 1


def test_a_turn_that_does_not_end_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exclusive, "LONGEST_WAIT_S", 0.5)
    alone = Exclusive("0000:0B:00.0")

    def waited_s() -> float:
        began_s = time.monotonic()
        with alone, alone:
            return time.monotonic() - began_s

    for _ in range(2):
        with _holder():
            assert waited_s() >= 0.5
            assert waited_s() + waited_s() < 0.5
        assert waited_s() < 0.5  # the holder is dead: from here on others are waited for again
    assert [(record.levelno, record.args) for record in caplog.records] == 2 * [
        (logging.WARNING, ("0000:0B:00.0", 0.5))
    ]
