"""Whole networks of torchvision, random weights, in evaluation: PyTorch's modes against ours, in one run on one GPU.

A table a precision and batch: device time of a replayed CUDA graph of one call in each mode, the best of PyTorch's over
ours, seconds of ours from ``torch.compile`` to the first answer, our error against float64 over eager PyTorch's, and
how many of the convolutions run by a variant. ``benchmark=True`` is timed in a thread of its own.

Needs a GPU, PyTorch and torchvision, which this project does not install.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.networks.cells import BATCHES, NETWORKS, PRECISIONS, Row, cells, report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells in order of importance until the time is up, and print what was reached."""
    chosen = _parser().parse_args(arguments)
    if chosen.report:
        print(report([row for path in chosen.report for row in _read(path)]))
        return 0
    begin = time.monotonic()
    from benchmarks.networks.running import run_cell

    options = {"measure": chosen.measure, "fold": not chosen.no_fold}
    modes = ("eager", "benchmark", "compile", *(("max-autotune",) if chosen.max_autotune else ()))
    rows: list[Row] = []
    todo = list(
        cells(chosen.networks.split(","), chosen.precisions.split(","), [int(n) for n in chosen.batches.split(",")])
    )
    done = {row.cell for path in chosen.skip for row in _read(path)}
    todo = [cell for cell in todo if cell not in done]
    longest_s = 0.0
    for count, cell in enumerate(todo):
        started = time.monotonic()
        if started - begin + longest_s > chosen.time_limit:
            print(f"the time is up: {len(todo) - count} of {len(todo)} cells are missing, from {cell} on")
            break
        row = run_cell(cell, modes, options)
        rows.append(row)
        longest_s = max(longest_s, time.monotonic() - started)
        times = ", ".join(f"{mode} {ms:.3f}" for mode, ms in row.device_ms.items())
        print(
            f"{cell.network} {cell.precision} batch {cell.batch}: {times}, gain {row.gain or 0:.3f}",
            row.failures or "",
            flush=True,
        )
        if chosen.output:
            chosen.output.write_text(json.dumps([row.to_json() for row in rows], indent=1), encoding="utf-8")
    print(report(rows))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", default=",".join(NETWORKS), help="names of torchvision, divided by commas")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds after which no cell is begun")
    parser.add_argument("--output", type=Path, help="JSON file of the rows, written after each cell")
    parser.add_argument("--skip", type=Path, nargs="*", default=[], help="files whose cells are done already")
    parser.add_argument("--report", type=Path, nargs="*", help="print the tables of such files; needs no GPU")
    parser.add_argument("--max-autotune", action="store_true", help="PyTorch's max-autotune too: minutes a cell")
    parser.add_argument("--measure", type=int, default=3, help="variants that ours times for each layer (default 3)")
    parser.add_argument("--no-fold", action="store_true", help="leave batch norms where they are")
    return parser


def _read(path: Path) -> list[Row]:
    return [Row.from_json(fields) for fields in json.loads(path.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    sys.exit(main())
