"""How much faster a sweep is on 2 and 4 devices of one host than on one, through a Dask cluster and without.

Run it as ``python -m benchmarks.scale_out --devices cuda:0,cuda:1,cuda:2,cuda:3``; README.md one folder up says how.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.options import list_of, say
from benchmarks.scale_out.choosing import candidates, even, measured_s
from benchmarks.scale_out.compiling import compile_ahead
from benchmarks.scale_out.paths import START_TIMEOUT_S, Dask, Local
from benchmarks.scale_out.table import Row, table, too_short
from conv_advisor.app.sweep.sweep import sweep
from conv_advisor.app.workers import tasks
from conv_advisor.app.workers.any_engine import AnyEngine
from conv_advisor.data import networks
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.data.store import Store
from conv_advisor.kernels import catalog
from conv_advisor.kernels.bench import BenchOptions

PATHS: Final = ("local", "dask")
OPTIONS: Final = BenchOptions()
CANDIDATES_PER_S: Final = 6
"""Candidates for each second of one device; faster ones would take less time than was asked for."""
WARM_UP: Final = 4
"""Untimed problems for each worker of a cluster: they load the libraries. Local workers have chosen the problems."""


def main() -> None:
    """Choose problems, sweep them on all devices and on less and less, and print the ratios."""
    arguments = _arguments()
    devices, started_s = arguments.devices.split(","), time.monotonic()
    counts = [count for count in sorted(set(arguments.counts)) if count <= len(devices)]
    devices = devices[: counts[-1]]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, Store(f"sqlite:///{folder}/scale-out.db") as store:
        with ExitStack() as stack:
            offered = candidates(
                arguments.networks, arguments.batches, arguments.dtypes, int(CANDIDATES_PER_S * arguments.seconds)
            )
            n_launches = compile_ahead(devices, offered, OPTIONS)
            say(f"{time.monotonic() - started_s:.0f} s: {n_launches} launches of {len(offered)} problems are compiled")
            local = Local(devices, stack)
            problems = _choose(store, local.engines(len(devices)), offered, arguments.seconds)
            if "local" in arguments.paths:
                rows += _timed(store, local, counts, problems)
        if "dask" in arguments.paths:
            with ExitStack() as stack:
                cluster = Dask(devices, stack)
                _sweep(store, cluster.engines(len(devices)), problems[: WARM_UP * len(devices)], "untimed")
                rows += _timed(store, cluster, counts, problems)
    Console(width=130).print(table(rows))
    say(too_short(rows) or f"The longest problem is at most {max(row.longest for row in rows):.1%} of the whole.")
    say(f"{time.monotonic() - started_s:.0f} s in all")
    if arguments.output:
        arguments.output.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cuda:0", help="cuda:0,cuda:1 ... or cpu,cpu (default cuda:0)")
    parser.add_argument("--counts", type=_numbers, default=[1, 2, 4], help="how many of them to use (default 1,2,4)")
    parser.add_argument("--paths", type=list_of(PATHS), default=list(PATHS), help="local, dask, or both (default)")
    parser.add_argument("--seconds", type=float, default=60, help="about how long one device takes (default 60)")
    parser.add_argument("--networks", type=list_of(networks.names()), default=["seeds"], help="(default seeds)")
    parser.add_argument("--batches", type=_numbers, default=[1, 8, 32], help="layers take turns (default 1,8,32)")
    parser.add_argument("--dtypes", type=list_of(list(DType), DType), default=list(DType), help="(default all)")
    parser.add_argument("--output", type=Path, help="write the rows to this JSON file too")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _choose(
    store: Store, engines: Sequence[AnyEngine], offered: Sequence[ConvProblem], seconds: float
) -> list[ConvProblem]:
    """As many problems as one device measures in the time, without those that are too large a part of it."""
    times_s = measured_s(store, engines, offered, _variants(engines[0]), OPTIONS, seconds / len(engines))
    problems = even(times_s)
    total_s = sum(times_s[problem] for problem in problems)
    if not problems:
        raise SystemExit(f"no problem was measured in {seconds:g} s")
    longest_s = max(times_s[problem] for problem in problems)
    n_out = len(times_s) - len(problems)
    say(f"{len(problems)} problems take one device {total_s:.0f} s; {n_out} longer than {longest_s:.2f} s are left out")
    return problems


def _timed(store: Store, path: Local | Dask, counts: Sequence[int], problems: list[ConvProblem]) -> list[Row]:
    """A row for each number of devices, measured from the largest number to the least."""
    rows = [_sweep(store, path.engines(count), problems, path.name, count) for count in reversed(counts)]
    return rows[::-1]


def _sweep(store: Store, engines: Sequence[AnyEngine], problems: list[ConvProblem], name: str, count: int = 0) -> Row:
    report = sweep(store, engines, problems, _variants(engines[0]), options=OPTIONS, run_id=f"{name}-{count}")
    measured = report.outcomes[Outcome.MEASURED]
    row = Row(name, count, len(problems), report.n_attempts, measured, report.elapsed_s, report.time)
    say(str(row))
    return row


def _variants(engine: AnyEngine) -> list[str]:
    device = engine.run(tasks.describe_device, deadline_s=START_TIMEOUT_S)
    return [variant.id for variant in catalog.for_device_kind(device.kind)]


if __name__ == "__main__":
    main()
