"""The benchmark of serving: it reads what wrk prints, and runs."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.wrk import read_wrk

ROOT = Path(__file__).parent.parent.parent

PRINTED = """Running 1s test @ http://127.0.0.1:8101
  1 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.03ms    2.10ms  23.11ms   91.81%
    Req/Sec    25.57k     3.45k   30.90k    70.00%
  Latency Distribution
     50%  534.00us
     75%  696.00us
     90%    2.10ms
     99%   10.90ms
  25531 requests in 1.01s, 3.29MB read
Requests/sec:  25324.02
Transfer/sec:      3.26MB
"""


def test_what_wrk_prints_is_read() -> None:
    load = read_wrk(PRINTED)
    assert (load.per_s, load.p99_ms, load.failed, load.requests) == (25324.02, 10.9, 0, 25531)
    assert math.isnan(load.per_cpu_s)
    assert read_wrk(PRINTED.replace("10.90ms", "1.50s")).p99_ms == 1500
    assert read_wrk(PRINTED.replace("10.90ms", "900.00us")).p99_ms == pytest.approx(0.9)


def test_failures_are_counted() -> None:
    refused = PRINTED + "  Non-2xx or 3xx responses: 7\n"
    broken = "  Socket errors: connect 1, read 2, write 3, timeout 4\n"
    assert read_wrk(refused + broken).failed == 17


def test_anything_else_is_refused() -> None:
    with pytest.raises(ValueError, match="unable to connect"):
        read_wrk("unable to connect to 127.0.0.1:1 Connection refused")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_the_benchmark_runs() -> None:
    command = [sys.executable, "-m", "benchmarks.serving", "--quick"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    for row in (
        "raw ASGI",
        "every layer new",
        "objects of named sizes",
        "ranking=false",
        "safetensors",
        "inference",
        "in one call",
    ):
        assert row in finished.stdout
