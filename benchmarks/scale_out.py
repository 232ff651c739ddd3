"""How much faster a sweep is on 2 and 4 devices of one host than on one, through a Dask cluster and without.

Run it as ``python -m benchmarks.scale_out --devices cuda:0,cuda:1,cuda:2,cuda:3``; README.md here says how it is done.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from conv_advisor.app.sweep.sweep import sweep
from conv_advisor.app.workers import tasks
from conv_advisor.app.workers.any_engine import AnyEngine
from conv_advisor.app.workers.cluster.engine import ClusterEngine
from conv_advisor.app.workers.cluster.link import Link
from conv_advisor.app.workers.engine import Engine
from conv_advisor.data import networks
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.store import Store
from conv_advisor.kernels import catalog
from conv_advisor.kernels.bench import BenchOptions

COMMAND: Final = (sys.executable, "-c", "from conv_advisor.app.cli import main; main()")
START_TIMEOUT_S: Final = 120.0
OPTIONS: Final = BenchOptions()
SHUFFLE_SEED: Final = 0


@dataclass(frozen=True)
class Row:
    """One timed sweep."""

    path: str
    n_devices: int
    n_problems: int
    n_attempts: int
    n_measured: int
    elapsed_s: float


class Local:
    """The devices of this host, each with a child of this process."""

    name = "local"

    def __init__(self, devices: Sequence[str], stack: ExitStack) -> None:
        self._engines = [
            stack.enter_context(Engine(device, start_timeout_s=START_TIMEOUT_S, has_spare=False)) for device in devices
        ]

    def engines(self, count: int) -> Sequence[AnyEngine]:
        """The engines of the first so many devices."""
        return self._engines[:count]


class Dask:
    """A scheduler and one worker a device, all of them processes of their own."""

    name = "dask"

    def __init__(self, devices: Sequence[str], stack: ExitStack) -> None:
        self._stack = stack
        scheduler = stack.enter_context(_process("scheduler", "--port", "0"))
        self._link = Link(_first_line(scheduler))
        workers = [
            stack.enter_context(_process("worker", "--scheduler", self._link.address, "--device", device))
            for device in devices
        ]
        for process in workers:
            _first_line(process)
        self._workers = workers
        self._engine: ClusterEngine | None = None

    def engines(self, count: int) -> Sequence[AnyEngine]:
        """The cluster once it has so many workers: the others are ended, so ask for fewer every time."""
        for process in self._workers[count:]:
            process.send_signal(signal.SIGTERM)
            process.wait(START_TIMEOUT_S)
        self._workers = self._workers[:count]
        if self._engine:
            self._engine.close()
        self._engine = self._stack.enter_context(ClusterEngine(self._link, start_timeout_s=START_TIMEOUT_S))
        if not self._engine.wait_ready(START_TIMEOUT_S, count):
            raise SystemExit(f"{self._engine.n_workers} of {count} workers have joined {self._link.address}")
        return [self._engine]


PATHS: Final[dict[str, type[Local] | type[Dask]]] = {"local": Local, "dask": Dask}


def main() -> None:
    """Choose layers, sweep them on all devices and on less and less, and print the ratios."""
    arguments = _arguments()
    devices, counts = arguments.devices.split(","), sorted({int(word) for word in arguments.counts.split(",")})
    counts = [count for count in counts if count <= len(devices)]
    rows = []
    with tempfile.TemporaryDirectory() as folder, Store(f"sqlite:///{folder}/scale-out.db") as store:
        problems = _choose(store, devices[0], arguments)
        for name in arguments.paths.split(","):
            rows += _measure(store, name, devices[: counts[-1]], counts, problems)
    Console(width=100).print(table(rows))
    if arguments.output:
        arguments.output.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def table(rows: Sequence[Row]) -> Table:
    """Time, throughput, and how many times faster than on one device of the same path."""
    drawn = Table("path", "devices", "problems", "attempts", "seconds", "attempts/s", "times one", title_justify="left")
    one_s = {row.path: row.elapsed_s for row in rows if row.n_devices == 1}
    for row in rows:
        ratio = f"{one_s[row.path] / row.elapsed_s:.2f}" if row.path in one_s else ""
        numbers = (row.n_devices, row.n_problems, row.n_attempts, f"{row.elapsed_s:.1f}")
        drawn.add_row(row.path, *map(str, numbers), f"{row.n_attempts / row.elapsed_s:.1f}", ratio)
    return drawn


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cuda:0", help="cuda:0,cuda:1 ... or cpu,cpu (default cuda:0)")
    parser.add_argument("--counts", default="1,2,4", help="how many of them to use (default 1,2,4)")
    parser.add_argument("--paths", default="local,dask", help="local, dask, or both (default)")
    parser.add_argument("--seconds", type=float, default=30, help="about how long one device takes (default 30)")
    parser.add_argument("--networks", default="seeds")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--dtypes", default="float32,float16")
    parser.add_argument("--output", type=Path, help="write the rows to this JSON file too")
    return parser.parse_args()


def _choose(store: Store, device: str, arguments: argparse.Namespace) -> list[ConvProblem]:
    """As many layers, in a shuffled order that is always the same, as one device measures in the time.

    It also leaves every kernel that they need in the caches on disk, so that no timed sweep compiles.
    """
    candidates = networks.problems(
        arguments.networks,
        batches=[int(word) for word in arguments.batches.split(",")],
        dtypes=[DType(word) for word in arguments.dtypes.split(",")],
        layouts=[Layout.NCHW],
    )
    layers: dict[ConvProblem, list[ConvProblem]] = {}
    for problem in dict.fromkeys(candidates):
        layers.setdefault(replace(problem, n=1), []).append(problem)
    order = list(layers)
    random.Random(SHUFFLE_SEED).shuffle(order)  # noqa: S311 - nobody is to be surprised
    problems = [problem for layer in order for problem in layers[layer]]
    with Engine(device, start_timeout_s=START_TIMEOUT_S, has_spare=False) as engine:
        names = _variants(engine)
        sweep(store, engine, problems, names, options=OPTIONS, run_id="chosen", time_limit_s=arguments.seconds)
    measured = {key for key, _ in store.attempted("chosen")}
    return [problem for problem in problems if problem.key in measured]


def _measure(
    store: Store, name: str, devices: Sequence[str], counts: Sequence[int], problems: list[ConvProblem]
) -> list[Row]:
    """Time a sweep on all devices, then on less and less; before that one that is not timed, to load the code."""
    rows = []
    with ExitStack() as stack:
        path = PATHS[name](devices, stack)
        for count in (0, *reversed(counts)):
            engines = path.engines(count or counts[-1])
            run_id = f"{name}-{count}"
            report = sweep(store, engines, problems, _variants(engines[0]), options=OPTIONS, run_id=run_id)
            measured = report.outcomes[Outcome.MEASURED]
            row = Row(name, count, len(problems), report.n_attempts, measured, report.elapsed_s)
            sys.stderr.write(f"{'untimed' if not count else row}\n")
            rows.append(row)
    return rows[:0:-1]


def _variants(engine: AnyEngine) -> list[str]:
    device = engine.run(tasks.describe_device, deadline_s=START_TIMEOUT_S)
    return [variant.id for variant in catalog.for_device_kind(device.kind)]


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True, env=_environment())  # noqa: S603 - our own
    try:
        yield process
    finally:
        process.terminate()
        process.wait(START_TIMEOUT_S)


def _environment() -> dict[str, str]:
    """This process's environment, without settings of another cluster."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CONV_ADVISOR_SCHEDULER")}


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout  # noqa: S101 - it is a pipe
    line = process.stdout.readline().strip()
    if not line:
        raise SystemExit(f"{process.args!r} ended with status {process.wait()}")
    return line


if __name__ == "__main__":
    main()
