"""The service under load, on one core, against a raw ASGI application in the same run.

Run it as ``python -m benchmarks.serving``; it needs wrk (Debian's package of that name). The server has a core of its
own, and what loads it the others. Requests come over loopback, from connections that are kept.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save

from app.npy import write_npy
from app.service import KEPT_PARTS
from app.shipped import TIMINGS, import_shipped
from benchmarks.serving_apps import KEPT_PATH
from data.networks import problems
from data.problem import ConvProblem, DType, Layout
from data.sampling import sample_problems
from data.store import Store

DEVICE: Final = "nvidia-h200"
CONNECTIONS: Final = 16
"""Enough that the server never waits for the next request."""
HALF_LOAD_CONNECTIONS: Final = 64
LAYERS_A_LIST: Final = 1000
TENSOR_SHAPE: Final = (10, 64, 64, 64)
"""10 MiB of float32."""


@dataclass(frozen=True)
class Effort:
    """How long everything takes.

    Parameters
    ----------
    seconds : int
        Of one load.
    rounds : int
        Of loads that are compared.
    shapes : int
        New layers of a load, each in every dtype and layout: more than the service keeps.
    exchanges : int
        Of a tensor.
    """

    seconds: int
    rounds: int
    shapes: int
    exchanges: int


FULL: Final = Effort(seconds=4, rounds=5, shapes=700, exchanges=30)
QUICK: Final = Effort(seconds=1, rounds=1, shapes=700, exchanges=3)


@dataclass(frozen=True)
class Load:
    """What wrk saw.

    Parameters
    ----------
    per_s : float
        Requests a second.
    p99_ms : float
        Latency that 99 % of them did not exceed.
    failed : int
        Answers other than 2xx and 3xx, and errors of the socket.
    requests : int
    cpu_s : float
        That the server took for them.
    """

    per_s: float
    p99_ms: float
    failed: int
    requests: int
    cpu_s: float = math.nan

    @property
    def per_cpu_s(self) -> float:
        """Requests a second of the server's core, however many others it is shared with."""
        return self.requests / self.cpu_s if self.cpu_s else math.nan


@dataclass(frozen=True)
class Server:
    """A server process on loopback."""

    port: int
    pid: int

    @property
    def cpu_s(self) -> float:
        """Time on the processor so far, in user and system mode."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
        if not arguments.quick:
            with Store(f"sqlite:///{home / 'conv-advisor.db'}") as store:
                import_shipped(store, TIMINGS)
        raw, service, forms = (stack.enter_context(_served(name, home)) for name in ("raw", "service", "forms"))
        bench = Bench(effort, home, raw, service, forms)
        for table in (bench.single(), bench.lists(), bench.tensors()):
            console.print(table)


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
        self._new = iter(sample_problems(effort.shapes * (effort.rounds + 1), seed=os.getpid()))

    def single(self) -> Table:
        """Requests of one layer."""
        table = Table(title="One layer a request, one core; ratios to a raw ASGI application in the same round")
        for column in ("", "requests/s", "ratio", "a CPU-second", "ratio", "kept", "p99 ms", "p99 ms at half load"):
            table.add_column(column, justify="left" if not column else "right")
        seeds = [_query(problem) for problem in problems("seeds")]
        cases: list[tuple[str, Server, list[str]]] = [
            ("raw ASGI", self._raw, ["/"]),
            ("raw ASGI, an answer of 8 KiB", self._raw, ["/long"]),
            ("GET /livez, by FastAPI", self._service, ["/livez"]),
            (f"GET /v1/advice, {len(seeds)} layers", self._service, seeds),
            ("GET /v1/advice, every layer new", self._service, []),
        ]
        found: list[list[tuple[Load, float]]] = [[] for _ in cases]
        for _ in range(self._effort.rounds):
            for loads, (_, server, paths) in zip(found, cases, strict=True):
                loads.append(self._counted(server, paths or self._unseen(), warm=bool(paths)))
        for (name, server, paths), loads in zip(cases, found, strict=True):
            per_s = median(load.per_s for load, _ in loads)
            per_cpu_s = median(load.per_cpu_s for load, _ in loads)
            pairs = [(load, first) for (load, _), (first, _) in zip(loads, found[0], strict=True)]
            ratio = median(load.per_s / first.per_s for load, first in pairs)
            cpu_ratio = median(load.per_cpu_s / first.per_cpu_s for load, first in pairs)
            if paths:
                _visit(server.port, paths, [])  # the rows of new layers have pushed these out
            half = self._wrk(server, paths or self._unseen(), half_of=per_s)
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
        kept = [(seeds * (LAYERS_A_LIST // len(seeds) + 1))[:LAYERS_A_LIST]]
        cases: list[tuple[str, list[list[Any]], bool]] = [
            ("short forms, every layer new", self._lists(_short), False),
            ("objects of a short form and dtype, every layer new", self._lists(_short_object), False),
            ("objects of named sizes, every layer new", self._lists(_named_object), False),
            (f"short forms, {len(set(kept[0]))} layers", kept, True),
        ]
        for name, lists, is_warm in cases:
            common = {"device": DEVICE, "dtype": "float16", "layout": "nhwc"}
            bodies = [json.dumps(common | {"layers": layers}) for layers in lists]
            load, kept_share = self._counted(self._service, ["/v1/advice"], bodies=bodies, warm=is_warm)
            rates = (f"{each * LAYERS_A_LIST:,.0f}" for each in (load.per_s, load.per_cpu_s))
            table.add_row(name, *rates, f"{kept_share:.0%}", f"{load.p99_ms:.1f}")
        return table

    def tensors(self) -> Table:
        """A tensor of 10 MiB there and back, in every form."""
        table = Table(title="10 MiB of float32 there and back over loopback, without a convolution")
        for column in ("form", "ms", "ratio"):
            table.add_column(column, justify="left" if column == "form" else "right")
        x = np.random.default_rng(0).random(TENSOR_SHAPE, np.float32)
        weight = np.ones((1, TENSOR_SHAPE[1], 1, 1), np.float32)
        cases = _requests(x, weight)
        connections = {path: http.client.HTTPConnection("127.0.0.1", self._forms.port) for path in cases}
        times: dict[str, list[float]] = {path: [] for path in cases}
        for _ in range(self._effort.exchanges):
            for path, (body, headers) in cases.items():
                times[path].append(_exchange_ms(connections[path], path, body, headers, x.nbytes))
        first = times["/bytes"]
        for path, taken in times.items():
            ratio = median(each / one for each, one in zip(taken, first, strict=True))
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

    def _unseen(self) -> list[str]:
        """Layers that nobody has asked for yet; by the time that one comes again, the service has forgotten it."""
        shapes = list(islice(self._new, self._effort.shapes))
        kinds = [(dtype, layout) for dtype in DType for layout in Layout]
        return [_query(problem, str(dtype), str(layout)) for dtype, layout in kinds for problem in shapes]

    def _lists(self, write: Callable[[ConvProblem], Any]) -> list[list[Any]]:
        """Layers of which none comes twice before the service has forgotten it."""
        shapes = sample_problems(LAYERS_A_LIST * 10, seed=os.getpid())
        wider = (replace(problem, k=problem.k + more) for more in count() for problem in shapes)
        distinct = {problem.short: problem for problem in islice(wider, int(1.3 * KEPT_PARTS))}
        layers = [write(problem) for problem in distinct.values()]
        return [layers[start : start + LAYERS_A_LIST] for start in range(0, len(layers), LAYERS_A_LIST)]

    def _wrk(
        self,
        server: Server,
        paths: Sequence[str],
        *,
        seconds: int | None = None,
        bodies: Sequence[str] = (),
        half_of: float | None = None,
    ) -> Load:
        lines, script = self._home / f"{next(_SEEDS)}.txt", self._home / f"{next(_SEEDS)}.lua"
        lines.write_text("\n".join(bodies or paths) + "\n")
        if bodies:
            asked = f'wrk.format("POST", "{paths[0]}", {{["content-type"] = "application/json"}}, line)'
        else:
            asked = 'wrk.format("GET", line)'
        connections = 2 if bodies else CONNECTIONS
        delay = ""
        if half_of is not None:
            connections = HALF_LOAD_CONNECTIONS
            mean_ms = connections / (half_of / 2) * 1e3
            delay = f"function delay() return math.floor(math.random() * {2 * mean_ms:.6f} + 0.5) end\n"
        script.write_text(_SCRIPT.format(lines=lines, asked=asked) + delay)
        spent = f"{seconds or self._effort.seconds}s"
        command = ["wrk", "-t1", f"-c{connections}", f"-d{spent}", "--latency", "-s", str(script)]
        command += [f"http://127.0.0.1:{server.port}"]
        cores = os.sched_getaffinity(0)
        pinned = _on(cores - {min(cores)} or cores, command)
        before = server.cpu_s
        printed = subprocess.run(pinned, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own words
        load = replace(read_wrk(printed), cpu_s=server.cpu_s - before)
        if load.failed:
            raise RuntimeError(f"{load.failed} requests such as {paths[0]} failed")
        return load


_SEEDS: Final = count(1)

_SCRIPT: Final = """
local asked = {{}}
for line in io.lines("{lines}") do asked[#asked + 1] = {asked} end
local place = 0
function request()
  place = place % #asked + 1
  return asked[place]
end
"""


def read_wrk(printed: str) -> Load:
    """The figures that wrk prints.

    Raises
    ------
    ValueError
        It printed something else.
    """
    per_s = re.search(r"Requests/sec:\s+([\d.]+)", printed)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s|m)\b", printed)
    requests = re.search(r"(\d+) requests in", printed)
    if per_s is None or p99 is None or requests is None:
        raise ValueError(f"not what wrk prints: {printed[:500]}")
    scale = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}[p99[2]]
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", printed)
    broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", printed)
    failed = sum(int(each) for found in (refused, broken) if found for each in found.groups())
    return Load(float(per_s[1]), float(p99[1]) * scale, failed, int(requests[1]))


def _query(problem: ConvProblem, dtype: str = "float32", layout: str = "nchw") -> str:
    return f"/v1/advice?layer={problem.short}&dtype={dtype}&layout={layout}&device={DEVICE}"


def _short(problem: ConvProblem) -> str:
    return problem.short


def _short_object(problem: ConvProblem) -> dict[str, Any]:
    return {"layer": problem.short, "dtype": "bfloat16"}


def _named_object(problem: ConvProblem) -> dict[str, Any]:
    sizes = {name: getattr(problem, name) for name in ("n", "c", "h", "w", "k", "r", "s", "pad_h", "pad_w")}
    return sizes | {"stride": problem.stride_h}


def _requests(x: np.ndarray, weight: np.ndarray) -> dict[str, tuple[bytes, dict[str, str]]]:
    inputs = [
        {"name": name, "datatype": "FP32", "shape": each.shape, "parameters": {"binary_data_size": each.nbytes}}
        for name, each in (("x", x), ("weight", weight))
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    tensors = x.tobytes() + weight.tobytes()
    return {
        "/bytes": (tensors, {}),
        "/safetensors": (save({"x": x, "weight": weight}), {}),
        "/npy": (write_npy(x) + write_npy(weight), {}),
        "/inference": (head + tensors, {"Inference-Header-Content-Length": str(len(head))}),
    }


def _exchange_ms(
    connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str], least_bytes: int
) -> float:
    start = time.perf_counter()
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    content = response.read()
    taken = time.perf_counter() - start
    if response.status != 200 or len(content) < least_bytes:
        raise RuntimeError(f"{path}: {response.status} and {len(content)} bytes")
    return taken * 1e3


def _visit(port: int, paths: Sequence[str], bodies: Sequence[str]) -> None:
    """Ask everything once."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    asked: list[tuple[str, str, str | None]] = [("POST", paths[0], body) for body in bodies]
    asked += [] if bodies else [("GET", path, None) for path in paths]
    for method, path, body in asked:
        connection.request(method, path, body, {"content-type": "application/json"} if body else {})
        connection.getresponse().read()
    connection.close()


def _kept(port: int) -> dict[str, int]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", KEPT_PATH)
    counts: dict[str, int] = json.loads(connection.getresponse().read())
    connection.close()
    return counts


@contextmanager
def _served(name: str, home: Path) -> Iterator[Server]:
    """A server process on a core of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    environment = os.environ | {
        "CONV_ADVISOR_HOME": str(home),
        "CONV_ADVISOR_DEVICE": "cpu",
        "CONV_ADVISOR_LOG_LEVEL": "warning",
    }
    command = [sys.executable, "-m", "benchmarks.serving_apps", name, str(port)]
    pinned = _on({min(os.sched_getaffinity(0))}, command)
    process = subprocess.Popen(pinned, env=environment)  # noqa: S603 - our own words
    try:
        _wait_until_ready(port, process)
        yield Server(port, process.pid)
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers that it is ready, so that nothing of its start is on its core any more."""
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.2)
    raise RuntimeError("the server does not start")


def _on(cores: set[int], command: list[str]) -> list[str]:
    """The command, kept to these cores."""
    return ["taskset", "-c", ",".join(map(str, sorted(cores))), *command]


if __name__ == "__main__":
    main()
