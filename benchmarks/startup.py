"""What a start costs: a new user's first server, and commands that answer, each in an empty home.

    python -m benchmarks.startup

Processor time is that of the command and its children, the least of several runs, with bytecode as an installation has
it. Memory is the proportional share (PSS) of all processes of an idle server, so that pages they share count once.
Times on a machine that does other work say little; processor time and memory hardly change with it.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.wrk import kept_port

COMMAND: Final = (sys.executable, "-P", "-c", "from conv_advisor.app.cli import main; main()")
ADVISE: Final = ("advise", "14-1-3-256-128", "--dtype", "float16", "--layout", "nhwc")
_LONGEST_START_S: Final = 60.0
_SETTLED_S: Final = 5.0
"""After it is ready: a spare worker may still be imported."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line a figure; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.startup", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="of each command (default 5)")
    parser.add_argument("--device", default="auto", help="of the server (default auto)")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        figures = {
            "--help, processor time": f"{_cpu_s(home, ('--help',), chosen.runs):.2f} s",
            "advise, processor time": f"{_cpu_s(home, ADVISE, chosen.runs):.2f} s",
            **_server(home, chosen.device),
        }
    for name, figure in figures.items():
        print(f"{name:28} {figure}")
    return 0


def _cpu_s(home: Path, arguments: Sequence[str], runs: int) -> float:
    """Least processor time of a command, s."""
    taken = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run((*COMMAND, *arguments), env=_environment(home), check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own command
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(taken)


def _server(home: Path, device: str) -> dict[str, str]:
    began = time.monotonic()
    with serving(home, device) as (process, url):
        wait_for(f"{url}/readyz")
        ready_s, page_began = time.monotonic() - began, time.monotonic()
        _get(f"{url}/")
        page_s = time.monotonic() - page_began
        time.sleep(_SETTLED_S)
        shares = {pid: pss_bytes(pid) for pid in tree_of(process.pid)}
        cpu_s = sum(map(_cpu_of, shares))
    figures = {"server, ready after": f"{ready_s:.2f} s", "first page": f"{page_s:.2f} s"}
    figures |= {"server, processor time": f"{cpu_s:.2f} s of all processes until idle"}
    figures |= {"memory of an idle server": f"{sum(shares.values()) / 1e6:.0f} MB in {len(shares)} processes"}
    figures |= {
        "what it wrote": f"{sum(file.stat().st_size for file in home.rglob('*') if file.is_file()) / 1e6:.2f} MB"
    }
    return figures


@contextmanager
def serving(home: Path, device: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server on a free port with a home of its own: its process and its address; it ends with the block."""
    with kept_port() as port:
        command = (*COMMAND, "serve", "--port", str(port), "--device", device)
        process = subprocess.Popen(command, env=_environment(home), stderr=subprocess.DEVNULL)  # noqa: S603 - our own command
        try:
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(_LONGEST_START_S)


def _environment(home: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {"CONV_ADVISOR_HOME": str(home)}


def wait_for(url: str) -> None:
    """Ask until it is answered without an error, for a minute at most."""
    give_up_at = time.monotonic() + _LONGEST_START_S
    while True:
        try:
            return _get(url)
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.02)


def _get(url: str) -> None:
    with urllib.request.urlopen(url, timeout=_LONGEST_START_S) as answer:  # noqa: S310 - our own server
        answer.read()


def tree_of(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    below = [int(child) for file in children for child in file.read_text().split()]
    return [pid, *(descendant for child in below for descendant in tree_of(child))]


def pss_bytes(pid: int) -> int:
    """Proportional share of the memory of a process, bytes; Linux."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
