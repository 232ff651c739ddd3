"""The benchmark of what every request passes: it runs, and has a row for every case."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_the_benchmark_runs() -> None:
    command = [sys.executable, "-m", "benchmarks.guarding", "--rounds", "1", "--seconds", "1", "--cases", "3"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    rows = [line.split("│") for line in finished.stdout.splitlines() if line.startswith("│")]
    names = [row[1].strip() for row in rows]
    assert names[:3] == ["without metrics", "without metrics, again", "with metrics (the default)"]
    assert names[3:] == [*names[:3], "and a token", "and a rate"]
    for row in rows[:3]:
        assert int(row[2].replace(",", "")) > 100
        assert 0.1 < float(row[3]) < 10
    assert all(float(row[2]) > 0 for row in rows[3:])
