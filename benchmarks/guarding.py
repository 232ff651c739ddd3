"""What metrics, tokens, rates and the log cost a GET of advice, on one core: ratios to the service without them.

Run it as ``python -m benchmarks.guarding``; it needs wrk. Ratios of requests a second of the server's own processor
time, and of the time of a call without a socket; what is compared takes turns in every round.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from starlette.types import ASGIApp, Message

from benchmarks.wrk import Server, run_wrk, served
from conv_advisor.app.guard.tokens import entry_of, make_token
from conv_advisor.app.main import create_app
from conv_advisor.app.server.application import Application
from conv_advisor.app.settings import Settings
from conv_advisor.app.wire.caller import Scope
from conv_advisor.data.networks import problems

DEVICE: Final = "nvidia-h200"
_PATHS: Final = [f"/v1/advice?layer={problem.short}&device={DEVICE}" for problem in problems("seeds")]
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
"""The second case, the same as the first, shows how small a difference this can tell."""

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
            name: stack.enter_context(_service(home, env)) for name, env in islice(CASES.items(), arguments.cases)
        }
        by_case: dict[str, list[float]] = {name: [] for name in servers}
        for turn in range(arguments.rounds):
            names = list(servers)
            for name in names if turn % 2 else names[::-1]:
                load = run_wrk(servers[name], _PATHS, folder=home, seconds=arguments.seconds, headers=_HEADERS)
                by_case[name].append(load.per_cpu_s)
    Console(width=100).print(_table(by_case))
    Console(width=100).print(_table_of_calls(asyncio.run(_called(arguments.rounds))))


@contextmanager
def _service(home: Path, env: dict[str, str]) -> Iterator[Server]:
    """The service with these settings on a core of its own, its answers kept."""
    with served("service", home, **env) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        for path in _PATHS:
            connection.request("GET", path, headers=_HEADERS)
            response = connection.getresponse()
            response.read()
            if response.status != HTTPStatus.OK:
                raise RuntimeError(f"{path} gets no answer")
        connection.close()
        yield server


async def _called(rounds: int) -> dict[str, list[float]]:
    """Processor time of one answer in microseconds, in every round; the application is called as a server calls it."""
    by_case: dict[str, list[float]] = {name: [] for name in SETTINGS}
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
                by_case[name].append(await _call_us(app))
    return {name: taken[1:] for name, taken in by_case.items()}


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


def _table_of_calls(by_case: dict[str, list[float]]) -> Table:
    table = Table(title="The same, called in one process without a socket: microseconds of processor time")
    for column in ("", "least", "more than the first", "median"):
        table.add_column(column, justify="left" if not column else "right")
    first = min(next(iter(by_case.values())))
    for name, taken in by_case.items():
        table.add_row(name, f"{min(taken):.2f}", f"{min(taken) - first:+.2f}", f"{median(taken):.2f}")
    return table


def _table(by_case: dict[str, list[float]]) -> Table:
    table = Table(title="GET /v1/advice, kept answers, one core")
    for column in ("", "requests a CPU-second", "ratio", "quartiles"):
        table.add_column(column, justify="left" if not column else "right")
    first = next(iter(by_case.values()))
    for name, rates in by_case.items():
        ratios = [rate / base for rate, base in zip(rates, first, strict=True)]
        low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        table.add_row(name, f"{median(rates):,.0f}", f"{middle:.3f}", f"{low:.3f} to {high:.3f}")
    return table


if __name__ == "__main__":
    main()
