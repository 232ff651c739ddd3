"""Whole networks of torchvision, random weights, in evaluation: PyTorch's modes against ours, in one run on one GPU.

A table a precision and batch: device time of a replayed CUDA graph of one call in each mode, the best of PyTorch's
over ours, wall time of a call, in turns, our error against float64 over eager PyTorch's, and how many of the
convolutions run by a variant and end with what follows them. ``benchmark=True`` is timed in a thread of its own.

Several processes compile at once, for most of the time; what they time meanwhile, variants and Triton's kernels, has
the GPU for itself. Once all are done and still, cells are timed one after the other, each where it was compiled. So
first calls are told by ``python -m benchmarks.networks.first_call``, in processes that run alone.

Needs a GPU, PyTorch and torchvision, which this project does not install.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.networks.cells import (
    ALL,
    BATCHES,
    GIVEN,
    NETWORKS,
    PEERS,
    PRECISIONS,
    UNSEEN,
    Cell,
    Row,
    cells,
    report,
)
from benchmarks.networks.spread import Station, processes
from benchmarks.networks.spread import rows as rows_of
from conv_advisor.kernels.cpu.threads import available_cores


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells in order of importance until the time is up, and print what was reached."""
    chosen = _parser().parse_args(arguments)
    if chosen.report:
        print(report([row for path in chosen.report for row in _read(path)]))
        return 0
    done = {row.cell for path in chosen.skip for row in _read(path)}
    batches = [int(n) for n in chosen.batches.split(",")]
    networks = [network for name in chosen.networks.split(",") for network in (UNSEEN if name == "unseen" else (name,))]
    every_cell = cells(networks, chosen.precisions.split(","), batches)
    todo = [cell for cell in every_cell if cell not in done]
    rows: list[Row] = []
    for row in _run(todo, chosen):
        rows.append(row)
        print(_line(row), flush=True)
        if chosen.output:
            chosen.output.write_text(json.dumps([row.to_json() for row in rows], indent=1), encoding="utf-8")
    if missing := [cell for cell in todo if cell not in {row.cell for row in rows}]:
        print(f"the time is up: {len(missing)} of {len(todo)} cells are missing, from {missing[0]} on")
    print(report(rows))
    return 0


def _run(todo: Sequence[Cell], chosen: argparse.Namespace) -> Iterator[Row]:
    options = {
        "measure": chosen.measure,
        "fold": not chosen.no_fold,
        "fuse": not chosen.no_fuse,
        "overlap": not chosen.no_overlap,
        "graphs": chosen.graphs,
    }
    ours_too = {ALL: chosen.all, GIVEN: chosen.given}
    modes = (*chosen.modes.split(","), *(mode for mode, is_asked in ours_too.items() if is_asked))
    count = min(chosen.processes, len(todo))
    threads = max(1, 2 * available_cores() // max(1, count))
    with TemporaryDirectory() as folder:
        station = Station(modes, options, threads, folder)
        with processes(station, count) as executors:
            yield from rows_of(todo, executors, station, chosen.time_limit)


def _line(row: Row) -> str:
    times = ", ".join(f"{mode} {ms:.3f}" for mode, ms in row.device_ms.items())
    cell = row.cell
    failures = f" {row.failures}" if row.failures else ""
    return f"{cell.network} {cell.precision} batch {cell.batch}: {times}, gain {row.gain or 0:.3f}{failures}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--networks",
        default=",".join(NETWORKS),
        help="names of torchvision, divided by commas; unseen: three that nothing was tuned on",
    )
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument(
        "--time-limit",
        type=float,
        default=float("inf"),
        help="seconds, most of them for compiling; what is missing then is said",
    )
    parser.add_argument("--processes", type=int, default=8, help="how many compile at once (default 8)")
    parser.add_argument("--output", type=Path, help="JSON file of the rows, written after each cell")
    parser.add_argument("--skip", type=Path, nargs="*", default=[], help="files whose cells are done already")
    parser.add_argument("--report", type=Path, nargs="*", help="print the tables of such files; needs no GPU")
    parser.add_argument(
        "--modes",
        default="eager,benchmark,compile",
        help=f"PyTorch's: {', '.join(PEERS)}, which takes minutes a cell (default: all others)",
    )
    parser.add_argument("--all", action="store_true", help="run ours once more, with every variant measured")
    parser.add_argument("--given", action="store_true", help="run ours once more, in the layout that the network has")
    parser.add_argument("--measure", type=int, default=3, help="variants that ours times for each layer (default 3)")
    parser.add_argument("--no-fuse", action="store_true", help="leave what follows a convolution to Inductor")
    parser.add_argument("--graphs", action="store_true", help="choose variants for who replays graphs: no host counts")
    parser.add_argument("--no-overlap", action="store_true", help="let no kernel begin before the one ahead has ended")
    parser.add_argument("--no-fold", action="store_true", help="leave batch norms where they are")
    return parser


def _read(path: Path) -> list[Row]:
    return [Row.from_json(fields) for fields in json.loads(path.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    sys.exit(main())
