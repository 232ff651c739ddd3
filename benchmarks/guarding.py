"""What metrics, tokens, rates and the log cost a GET of advice, on one core: ratios to the service without them.

Run it as ``python -m benchmarks.guarding``; it needs wrk. Ratios of requests a second of the server's own processor
time, and of the time of a call without a socket; what is compared takes turns in every round.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from starlette.types import ASGIApp, Message

from benchmarks.wrk import Load, Server, read_wrk
from conv_advisor.app.guard.tokens import entry_of, make_token
from conv_advisor.app.main import create_app
from conv_advisor.app.server.application import Application
from conv_advisor.app.settings import Settings
from conv_advisor.app.wire.caller import Scope
from conv_advisor.data.networks import problems

DEVICE: Final = "nvidia-h200"
_PATHS: Final = [f"/v1/advice?layer={problem.short}&device={DEVICE}" for problem in problems("seeds")]
_SCRIPT: Final = """
local paths, asked, place = {{{paths}}}, {{}}, 0
for _, path in ipairs(paths) do asked[#asked + 1] = wrk.format("GET", path, {{{headers}}}) end
function request()
  place = place % #asked + 1
  return asked[place]
end
"""
_TOKEN: Final = make_token()
_HEADERS: Final = {"Host": "127.0.0.1", "Authorization": f"Bearer {_TOKEN}"}
_TOKENS: Final = entry_of("benchmark", [Scope.READ], _TOKEN)

CASES: Final[dict[str, dict[str, str]]] = {
    "without metrics": {"CONV_ADVISOR_METRICS": "false"},
    "without metrics, again": {"CONV_ADVISOR_METRICS": "false"},
    "with metrics (the default)": {},
    "and a token": {"CONV_ADVISOR_TOKENS": _TOKENS},
    "and a rate": {"CONV_ADVISOR_TOKENS": _TOKENS, "CONV_ADVISOR_RATE_LIMIT_PER_S": "1000000"},
    "with metrics and the access log": {"CONV_ADVISOR_LOG_LEVEL": "info"},
}
"""The second is how well this can tell anything apart."""

SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "without metrics": {"metrics": False},
    "without metrics, again": {"metrics": False},
    "with metrics (the default)": {},
    "and a token": {"tokens": _TOKENS},
    "and a rate": {"tokens": _TOKENS, "rate_limit_per_s": 1e6},
}
CALLS: Final = 2000


def main() -> None:
    """Load everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=int, default=2, help="of one load")
    parser.add_argument("--cases", type=int, default=len(CASES), help="only so many, from the first")
    arguments = parser.parse_args()
    missing = [tool for tool in ("wrk", "taskset") if shutil.which(tool) is None]
    if missing:
        parser.error(f"{' and '.join(missing)} not found; Debian has them in wrk and util-linux")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        servers = {
            name: stack.enter_context(_service(home, more)) for name, more in islice(CASES.items(), arguments.cases)
        }
        found: dict[str, list[float]] = {name: [] for name in servers}
        for turn in range(arguments.rounds):
            names = list(servers)
            for name in names if turn % 2 else names[::-1]:
                found[name].append(_load(servers[name], home, arguments.seconds).per_cpu_s)
    Console(width=100).print(_table(found))
    Console(width=100).print(_table_of_calls(asyncio.run(_called(arguments.rounds))))


@contextmanager
def _service(home: Path, more: dict[str, str]) -> Iterator[Server]:
    """The service with these settings on a core of its own, ready, its answers kept."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    ours = {"CONV_ADVISOR_HOME": str(home), "CONV_ADVISOR_DEVICE": "cpu", "CONV_ADVISOR_LOG_LEVEL": "warning"}
    command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-m", "benchmarks.serving_apps"]
    command += ["service", str(port)]
    process = subprocess.Popen(command, env=os.environ | ours | more, stderr=subprocess.DEVNULL)  # noqa: S603 - our own
    try:
        _warm_up(port, process)
        yield Server(port, process.pid)
    finally:
        process.terminate()
        process.wait()


def _warm_up(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the service is ready, and ask for everything once."""
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            if _asked(connection, "/readyz") == 200:
                failed = [path for path in _PATHS if _asked(connection, path) != 200]
                if failed:
                    raise RuntimeError(f"{failed[0]} gets no answer")
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.2)
    raise RuntimeError("the server does not start")


def _asked(connection: http.client.HTTPConnection, path: str) -> int:
    connection.request("GET", path, headers=_HEADERS)
    response = connection.getresponse()
    response.read()
    return response.status


def _load(server: Server, home: Path, seconds: int) -> Load:
    script = home / "asked.lua"
    paths = ", ".join(f'"{path}"' for path in _PATHS)
    headers = ", ".join(f'["{name}"] = "{value}"' for name, value in _HEADERS.items())
    script.write_text(_SCRIPT.format(paths=paths, headers=headers))
    cores = os.sched_getaffinity(0)
    others = ",".join(map(str, sorted(cores - {min(cores)} or cores)))
    command = ["taskset", "-c", others, "wrk", "-t1", "-c16", f"-d{seconds}s", "--latency", "-s", str(script)]
    before = server.cpu_s
    command.append(f"http://127.0.0.1:{server.port}")
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own words
    load = replace(read_wrk(printed), cpu_s=server.cpu_s - before)
    if load.failed:
        raise RuntimeError(f"{load.failed} requests failed")
    return load


async def _called(rounds: int) -> dict[str, list[float]]:
    """Processor time of one answer in microseconds, the application called as a server calls it, in every round."""
    found: dict[str, list[float]] = {name: [] for name in SETTINGS}
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        apps: dict[str, Application] = {}
        for name, settings in SETTINGS.items():
            app = create_app(Settings(home=home, device="cpu", **settings), timings=home / "nothing")
            await stack.enter_async_context(app.router.lifespan_context(app))
            await app.state.service.worker.opened()
            apps[name] = app
        for _ in range(rounds + 1):
            for name, app in apps.items():
                found[name].append(await _call_us(app))
    return {name: taken[1:] for name, taken in found.items()}


async def _call_us(app: ASGIApp) -> float:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
    common: dict[str, Any] = {"type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "root_path": ""}
    common |= {"headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}
    path, _, query = _PATHS[0].partition("?")
    common |= {"path": path, "raw_path": path.encode(), "query_string": query.encode()}
    before = time.process_time()
    for _ in range(CALLS):
        await app(dict(common), receive, send)
    taken_s = time.process_time() - before
    if any(message.get("status", 200) != 200 for message in sent):
        raise RuntimeError("a call was refused")
    return taken_s / CALLS * 1e6


def _table_of_calls(found: dict[str, list[float]]) -> Table:
    table = Table(title="The same, called in one process without a socket: microseconds of processor time")
    for column in ("", "least", "more than the first", "median"):
        table.add_column(column, justify="left" if not column else "right")
    first = min(next(iter(found.values())))
    for name, taken in found.items():
        table.add_row(name, f"{min(taken):.2f}", f"{min(taken) - first:+.2f}", f"{median(taken):.2f}")
    return table


def _table(found: dict[str, list[float]]) -> Table:
    table = Table(title="GET /v1/advice, kept answers, one core")
    for column in ("", "requests a CPU-second", "ratio", "quartiles"):
        table.add_column(column, justify="left" if not column else "right")
    first = next(iter(found.values()))
    for name, rates in found.items():
        ratios = [rate / base for rate, base in zip(rates, first, strict=True)]
        low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        table.add_row(name, f"{median(rates):,.0f}", f"{middle:.3f}", f"{low:.3f} to {high:.3f}")
    return table


if __name__ == "__main__":
    main()
