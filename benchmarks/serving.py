"""The service under load, on one core, against a raw ASGI application in the same run.

Run it as ``python -m benchmarks.serving``; it needs wrk (Debian's package of that name). The server has a core of its
own, and what loads it the others. Requests come over loopback, from connections that are kept. The raw application
answers 17 bytes under two headers, as a rule; the service 9 KB under eight, which a second raw application does too.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.prediction import prediction_table
from benchmarks.serving_apps import KEPT_PATH
from benchmarks.serving_asks import (
    DEVICE,
    LAYERS_A_LIST,
    MORE_THAN_KEPT,
    exchange_ms,
    lists_of,
    named_object,
    query_of,
    short,
    short_object,
    tensors_of,
)
from benchmarks.wrk import Load, Server, run_wrk, served
from conv_advisor.data.networks import problems
from conv_advisor.data.problem import DType, Layout
from conv_advisor.data.sampling import sample_problems

TENSOR_SHAPE: Final = (10, 64, 64, 64)
"""10 MiB of float32."""
ALONE: Final = "&ranking=false"


@dataclass(frozen=True)
class Effort:
    """How long everything takes.

    Parameters
    ----------
    seconds : int
        How long one load lasts.
    rounds : int
        How often loads that are compared take turns.
    shapes : int
        New layers of a load, each in every dtype and layout: in full more than the service keeps.
    listed : int
        New layers in lists: in full more than the service keeps.
    exchanges : int
        How often a tensor goes there and back.
    predictions : int
        Layers in one call.
    """

    seconds: int
    rounds: int
    shapes: int
    listed: int
    exchanges: int
    predictions: int


FULL: Final = Effort(seconds=4, rounds=5, shapes=700, listed=MORE_THAN_KEPT, exchanges=30, predictions=100_000)
QUICK: Final = Effort(seconds=1, rounds=1, shapes=100, listed=5_000, exchanges=3, predictions=1_000)
"""To see whether it runs: layers come again while their answers are kept, as the column says."""


def main() -> None:
    """Load everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a second each, and nothing measured in the store")
    arguments = parser.parse_args()
    missing = [tool for tool in ("wrk", "taskset") if shutil.which(tool) is None]
    if missing:
        parser.error(f"{' and '.join(missing)} not found; Debian has them in wrk and util-linux")
    effort = QUICK if arguments.quick else FULL
    console = Console(width=max(Console().width, 120))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        raw, service, forms = (stack.enter_context(served(name, home)) for name in ("raw", "service", "forms"))
        bench = Bench(effort, home, raw, service, forms)
        for table in (bench.single(), bench.lists(), bench.tensors()):
            console.print(table)
    console.print(prediction_table(effort.predictions))


class Bench:
    """The tables.

    Parameters
    ----------
    effort : Effort
    home : Path
        For scripts.
    raw, service, forms : Server
    """

    def __init__(self, effort: Effort, home: Path, raw: Server, service: Server, forms: Server) -> None:
        self._effort = effort
        self._home = home
        self._raw, self._service, self._forms = raw, service, forms
        self._new = iter(sample_problems(2 * effort.shapes * (effort.rounds + 1), seed=os.getpid()))

    def single(self) -> Table:
        """Requests of one layer."""
        table = Table(title="One layer a request, one core; ratios to a raw ASGI application in the same round")
        for column in ("", "requests/s", "ratio", "a CPU-second", "ratio", "kept", "p99 ms", "p99 ms at half load"):
            table.add_column(column, justify="left" if not column else "right")
        seeds = [query_of(problem) for problem in problems("seeds")]
        cases: list[tuple[str, Server, list[str]]] = [
            ("raw ASGI", self._raw, ["/"]),
            ("raw ASGI, an answer like advice", self._raw, ["/long"]),
            ("GET /livez, by FastAPI", self._service, ["/livez"]),
            (f"GET /v1/advice, {len(seeds)} layers", self._service, seeds),
            ("GET /v1/advice, every layer new", self._service, []),
            ("GET /v1/advice?ranking=false, every layer new", self._service, []),
        ]
        by_case: list[list[tuple[Load, float]]] = [[] for _ in cases]
        for _ in range(self._effort.rounds):
            for loads, (name, server, paths) in zip(by_case, cases, strict=True):
                loads.append(self._counted(server, paths or self._unseen(name), warm=bool(paths)))
        for (name, server, paths), loads in zip(cases, by_case, strict=True):
            per_s = median(load.per_s for load, _ in loads)
            per_cpu_s = median(load.per_cpu_s for load, _ in loads)
            pairs = [(load, first) for (load, _), (first, _) in zip(loads, by_case[0], strict=True)]
            ratio = median(load.per_s / first.per_s for load, first in pairs)
            cpu_ratio = median(load.per_cpu_s / first.per_cpu_s for load, first in pairs)
            if paths:
                _visit(server.port, paths, [])  # the rows of new layers have pushed these out
            half = self._wrk(server, paths or self._unseen(name), half_of=per_s)
            kept = f"{median(share for _, share in loads):.0%}" if "advice" in name else ""
            p99_ms = median(load.p99_ms for load, _ in loads)
            rates = f"{per_s:,.0f}", f"{ratio:.2f}", f"{per_cpu_s:,.0f}", f"{cpu_ratio:.2f}"
            table.add_row(name, *rates, kept, f"{p99_ms:.2f}", f"{half.p99_ms:.2f}")
        return table

    def lists(self) -> Table:
        """Requests of a thousand layers."""
        table = Table(title=f"{LAYERS_A_LIST} layers a request, one core")
        for column in ("POST /v1/advice", "layers/s", "a CPU-second", "kept", "p99 ms"):
            table.add_column(column, justify="left" if column.startswith("POST") else "right")
        seeds = [problem.short for problem in problems("seeds")]
        seed_lists = [(seeds * (LAYERS_A_LIST // len(seeds) + 1))[:LAYERS_A_LIST]]
        cases: list[tuple[str, list[list[Any]], bool]] = [
            ("short forms, every layer new", lists_of(short, self._effort.listed), False),
            ("objects of a short form and dtype, every layer new", lists_of(short_object, self._effort.listed), False),
            ("objects of named sizes, every layer new", lists_of(named_object, self._effort.listed), False),
            (f"short forms, {len(set(seed_lists[0]))} layers", seed_lists, True),
        ]
        for name, lists, is_warm in cases:
            common = {"device": DEVICE, "dtype": "float16", "layout": "nhwc"}
            bodies = [json.dumps(common | {"layers": layers}) for layers in lists]
            load, kept_share = self._counted(self._service, ["/v1/advice"], bodies=bodies, warm=is_warm)
            rates = (f"{rate * LAYERS_A_LIST:,.0f}" for rate in (load.per_s, load.per_cpu_s))
            table.add_row(name, *rates, f"{kept_share:.0%}", f"{load.p99_ms:.1f}")
        return table

    def tensors(self) -> Table:
        """A tensor of 10 MiB there and back, in every form."""
        table = Table(title="10 MiB of float32 there and back over loopback, without a convolution")
        for column in ("form", "ms", "ratio"):
            table.add_column(column, justify="left" if column == "form" else "right")
        x = np.random.default_rng(0).random(TENSOR_SHAPE, np.float32)
        weight = np.ones((1, TENSOR_SHAPE[1], 1, 1), np.float32)
        cases = tensors_of(x, weight)
        connections = {path: http.client.HTTPConnection("127.0.0.1", self._forms.port) for path in cases}
        times: dict[str, list[float]] = {path: [] for path in cases}
        for _ in range(self._effort.exchanges):
            for path, (body, headers) in cases.items():
                times[path].append(exchange_ms(connections[path], path, body, headers, x.nbytes))
        first = times["/bytes"]
        for path, taken in times.items():
            ratio = median(own / base for own, base in zip(taken, first, strict=True))
            table.add_row(path[1:].partition("?")[0], f"{median(taken):.1f}", f"{ratio:.2f}")
        return table

    def _counted(
        self, server: Server, paths: Sequence[str], *, warm: bool, bodies: Sequence[str] = ()
    ) -> tuple[Load, float]:
        """A load, and the share of its layers whose answers were kept."""
        if warm:
            _visit(server.port, paths, bodies)
        if server is not self._service:
            return self._wrk(server, paths), 0.0
        before = _kept(server.port)
        load = self._wrk(server, paths, bodies=bodies)
        after = _kept(server.port)
        hits, misses = after["hits"] - before["hits"], after["misses"] - before["misses"]
        return load, hits / max(hits + misses, 1)

    def _unseen(self, name: str) -> list[str]:
        """Layers that nobody has asked for yet; by the time that one comes again, the service has forgotten it."""
        shapes = list(islice(self._new, self._effort.shapes))
        kinds = [(dtype, layout) for dtype in DType for layout in Layout]
        option = ALONE if ALONE[1:] in name else ""
        return [query_of(problem, str(dtype), str(layout)) + option for dtype, layout in kinds for problem in shapes]

    def _wrk(
        self, server: Server, paths: Sequence[str], *, bodies: Sequence[str] = (), half_of: float | None = None
    ) -> Load:
        return run_wrk(server, paths, folder=self._home, seconds=self._effort.seconds, bodies=bodies, half_of=half_of)


def _visit(port: int, paths: Sequence[str], bodies: Sequence[str]) -> None:
    """Ask everything once."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    requests: list[tuple[str, str, str | None]] = [("POST", paths[0], body) for body in bodies]
    requests += [] if bodies else [("GET", path, None) for path in paths]
    for method, path, body in requests:
        connection.request(method, path, body, {"content-type": "application/json"} if body else {})
        connection.getresponse().read()
    connection.close()


def _kept(port: int) -> dict[str, int]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", KEPT_PATH)
    counts: dict[str, int] = json.loads(connection.getresponse().read())
    connection.close()
    return counts


if __name__ == "__main__":
    main()
