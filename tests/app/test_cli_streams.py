"""What a command does whose output goes nowhere: to a full disk, to nobody, or to whom has seen enough."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("conv-advisor")
ADVISE = "advise 14-1-3-256-128"


def shell(line: str, home: Path) -> subprocess.CompletedProcess[str]:
    """A line that a shell runs, in which ``$C`` is the command."""
    environment = os.environ | {"CONV_ADVISOR_HOME": str(home), "C": str(COMMAND)}
    return subprocess.run(
        ["/bin/sh", "-c", line], env=environment, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.parametrize("asked", [ADVISE, f"{ADVISE} --json", "variants", "--version", "--help"])
def test_a_full_disk_is_one_line_and_status_1(tmp_path: Path, asked: str) -> None:
    done = shell(f"$C {asked} > /dev/full", tmp_path)
    assert (done.returncode, done.stderr) == (1, "conv-advisor: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        (f"{ADVISE} >&-", 0, ""),
        (f"{ADVISE} <&- >&- 2>&-", 0, ""),
        ("variants >&-", 0, ""),
        ("advise nothing >&-", 2, "conv-advisor: layer is 'nothing'"),
        ("advise nothing 2>&-", 2, ""),
    ],
)
def test_a_stream_that_is_closed_is_nobodys(tmp_path: Path, line: str, status: int, said: str) -> None:
    done = shell(f"$C {line}", tmp_path)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(said)
    assert bool(done.stderr) == bool(said)


def test_who_reads_no_more_is_told_nothing(tmp_path: Path) -> None:
    done = shell("$C variants | head -n 1", tmp_path)
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")


def test_a_token_that_cannot_be_kept_is_not_shown(tmp_path: Path) -> None:
    done = shell(f"$C token me --file {tmp_path}/nowhere/tokens", tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"conv-advisor: [Errno 2] No such file or directory: '{tmp_path}/nowhere/tokens'\n"
