"""A tree's advice against PyTorch, cuDNN's heuristics, the single best variant and the oracle, in one run on one GPU.

Every layer is measured by everybody in turns, in the same way and on the same operands: the advised variant, what
cuDNN's heuristics choose (v7 of the legacy API, A and B of the graph API, asked here), the single best variant, and
PyTorch's conv2d by default and with cudnn.benchmark = True. The oracle is chosen among all of these and whatever the
measurements know to be near the best, on a pass of its own; times are reported from a later pass. Layers that the
measurements do not have are tried with every variant.

Run it on a GPU as ``python -m benchmarks.advice --networks ... --output rows.parquet``; a run that was ended or killed
goes on where it was when it is given the same output again. --report prints what runs wrote, without a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from benchmarks.options import interruptible, list_of, say, shard
from benchmarks.rivals.layer import OPERANDS, Order
from benchmarks.rivals.orders import Named, Near, of_networks, orders, shuffled
from benchmarks.rivals.rows import JOURNAL, LAYER, Row, append, merge, read, write
from benchmarks.rivals.tables import report
from benchmarks.rivals.worker import Worker
from conv_advisor.app.sweep.attempt import outcome_of
from conv_advisor.data import networks
from conv_advisor.data.errors import ConvAdvisorError, LaunchFailed, WorkerError
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.packing import attempts_in
from conv_advisor.data.problem import DType, Layout
from conv_advisor.data.problem_file import read_problems
from conv_advisor.data.shipped import TIMINGS
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.models.tree_file import TreeModel
from conv_advisor.models.tree_file import read as read_tree

OPENER: Final = "conv_advisor.kernels.bench:open_runner"
PEER_OPENER: Final = "benchmarks.rivals.pytorch:open_peer"
SHIPPED_TREE: Final = TIMINGS.parent.parent / "models" / "trained" / "nvidia-h200"

PROGRESS_S: Final = 10.0
MOST_RESTARTS: Final = 4
"""How often the worker may start again for one layer."""
MOST_STRIKES: Final = 3
"""Workers that a variant may bring down before it is left out of the rest."""
MOST_LOST: Final = 3
"""Layers in a row whose operands bring the worker down before the device counts as lost."""


def main(arguments: Sequence[str] | None = None, *, opener: str = OPENER, peer_opener: str = PEER_OPENER) -> int:
    """Measure or read, write, and print the tables; the exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the command line.
    opener, peer_opener : str
        What opens the device in the worker, and PyTorch on it; tests name fakes.
    """
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.report:
            rows, is_whole = merge(read(path) for path in chosen.report), True
            if chosen.output:
                write(rows, chosen.output)
        else:
            run = Run(chosen, Worker(chosen.device, opener, peer_opener))
            is_whole = run.go(_wanted(chosen), read_tree(chosen.tree))
            rows = run.rows
    except (ConvAdvisorError, OSError) as error:
        say(str(error))
        return 2
    print(report(rows))
    return 0 if is_whole else 1


@dataclass
class Run:
    """A run on one device.

    Parameters
    ----------
    chosen : argparse.Namespace
        The options.
    worker : Worker
    rows : list of Row
        What is measured so far, by an earlier run into the same output too.
    """

    chosen: argparse.Namespace
    worker: Worker
    rows: list[Row] = field(default_factory=list)
    strikes: Counter[str] = field(default_factory=Counter)
    """How many workers each variant, and each mode of PyTorch, brought down."""

    def go(self, wanted: Named, model: TreeModel) -> bool:
        """Measure layer after layer; False where the device was lost. The time limit and Ctrl-C end it early.

        Raises
        ------
        ConvAdvisorError
            The device cannot be opened.
        """
        started = time.monotonic()
        journal = _journal(self.chosen.output)
        earlier = merge(read(path) for path in (self.chosen.output, journal) if path and path.exists())
        self.rows = [row for row in earlier if row.rule != LAYER]
        done = {row.problem for row in self.rows}
        left = {problem: names for problem, names in wanted.items() if problem not in done}
        say(f"{len(left)} of {len(wanted)} layers to measure")
        is_lost = False
        with self.worker, interruptible():
            self.worker.start()
            try:
                is_lost = not self._measure_all(self._orders(left, model), len(left), started, journal)
            except KeyboardInterrupt:
                say("interrupted: what follows is what was measured until now")
            finally:
                self._save(journal)
        return not is_lost

    def layer(self, order: Order) -> list[Row]:
        """The rows of one layer; what brings the worker down is noted, and the rest tried again."""
        failed: dict[str, str] = {}
        for _ in range(MOST_RESTARTS):
            banned = {name for name, count in self.strikes.items() if count >= MOST_STRIKES}
            try:
                rows = self.worker.measure(
                    replace(order, excluded=frozenset(banned | set(failed))), self.chosen.deadline
                )
            except (LaunchFailed, WorkerError) as error:
                name = self.worker.in_hand
                failed[name] = f"{outcome_of(error)}: {error}"
                say(f"{order.problem.key}: {name}: {error}")
                if name in (OPERANDS, ""):
                    break
                self.strikes[name.split()[0]] += 1
            except ConvAdvisorError as error:
                failed[self.worker.in_hand] = f"{Outcome.CRASHED}: {error}"
                break
            else:
                return [replace(row, failure=_said(row, failed)) for row in rows]
        text = "; ".join(f"{why} ({name or 'start'})" for name, why in failed.items())
        return [Row(order.problem, LAYER, failure=text, networks=order.networks, tree=order.tree)]

    def _orders(self, wanted: Named, model: TreeModel) -> Iterator[Order]:
        chosen = self.chosen
        attempts = attempts_in(chosen.timings or TIMINGS / model.device.id)
        rule = StopRule(max_samples=chosen.max_samples, budget_ms=chosen.budget_ms)
        return orders(wanted, model, attempts, near=chosen.near, is_fresh=chosen.choose_now, rule=rule)

    def _measure_all(self, todo: Iterable[Order], total: int, started: float, journal: Path | None) -> bool:
        told, lost = started, 0
        for done, order in enumerate(todo):
            now = time.monotonic()
            if now - started >= self.chosen.time_limit:
                say(f"the time limit of {self.chosen.time_limit:g} s ends the run after {done} layers")
                return True
            if now - told >= PROGRESS_S:
                told = now
                say(_progress(done, total, now - started))
            rows = self.layer(order)
            lost = lost + 1 if rows[0].rule == LAYER and Outcome.OUT_OF_MEMORY not in rows[0].failure else 0
            if lost >= MOST_LOST:
                say(f"the device is lost: {rows[0].failure}")
                return False
            self.rows += rows
            if journal:
                append(rows, journal)
        say(_progress(total, total, time.monotonic() - started))
        return True

    def _save(self, journal: Path | None) -> None:
        """Put what the journal holds, and what was there before, into the output."""
        if journal:
            write(self.rows, self.chosen.output)
            journal.unlink(missing_ok=True)


def _journal(output: Path | None) -> Path | None:
    """Where the rows of a run are written layer by layer, so that killing it loses none."""
    return output.with_name(output.name + JOURNAL) if output else None


def _wanted(chosen: argparse.Namespace) -> Named:
    """The layers of a run, in an order that leaves a fair sample wherever it ends."""
    named: Named = {}
    if chosen.networks:
        named |= of_networks(chosen.networks, chosen.batches, chosen.dtypes, chosen.layouts)
    for path in chosen.problems:
        found = read_problems(path, chosen.dtypes, chosen.layouts)
        named |= {problem: path.stem for problem in found if problem not in named}
    index, count = chosen.shard
    order = shuffled(named, chosen.seed)[index::count][: chosen.count]
    return {problem: named[problem] for problem in order}


def _said(row: Row, failed: dict[str, str]) -> str:
    """What failed in a row, with what brought a worker down before."""
    mine = [f"{name}: {why}" for name, why in failed.items()] if row.rule in failed or not row.samples_ms else []
    if row.rule in failed:
        return failed[row.rule]
    return "; ".join(part for part in (row.failure, *mine) if part)


def _progress(done: int, total: int, elapsed_s: float) -> str:
    each_s = elapsed_s / max(1, done)
    return f"{done} of {total} layers in {elapsed_s:.0f} s: {each_s:.3f} s each, {each_s * (total - done):.0f} s to go"


def _near(text: str) -> Near:
    factor, most = text.split(",")
    return Near(float(factor), int(most))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.advice", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    every = tuple(networks.names())
    add("--report", nargs="+", type=Path, metavar="FILE", help="merge what runs wrote and print it; needs no GPU")
    add("--output", type=Path, help="write every row there, as Parquet; beside it a journal while the run lasts")
    add("--device", default="cuda:0", help="cuda:0 (default), cuda:1 ...")
    add("--tree", type=Path, default=SHIPPED_TREE, help="folder of the tree (default models/trained/nvidia-h200)")
    add("--networks", type=list_of(every), default=[], help=f"layers to measure, of: {', '.join(every)}")
    add("--problems", type=Path, action="append", default=[], metavar="FILE", help="lines of: layer [dtype [layout]]")
    add("--dtypes", type=list_of(tuple(DType), DType), default=list(DType), help="default all")
    add("--layouts", type=list_of(tuple(Layout), Layout), default=list(Layout), help="default both")
    add("--batches", type=list_of(range(1, 2**20), int), help="of --networks; default 1,8,16,32,64,128,256")
    add("--count", type=int, help="only so many layers, a random choice")
    add("--seed", type=int, default=0, help="of the random order (default 0)")
    add("--shard", type=shard, default=(0, 1), metavar="I/N", help="every Nth layer from the Ith on, I from 0")
    add("--timings", type=Path, help="folder of the measurements; default data/timings/<device of the tree>")
    add("--choose-now", action="store_true", help="try every variant on every layer, whatever the measurements know")
    add("--near", type=_near, default=Near(), metavar="F,N", help="near the best: within F times, at most N (1.3,6)")
    add("--time-limit", type=float, default=float("inf"), metavar="SECONDS", help="no layer is begun after it")
    add("--deadline", type=float, default=60, metavar="SECONDS", help="of one layer (default 60)")
    add("--max-samples", type=int, default=StopRule().max_samples, help="of one rule's choice (default 20)")
    add("--budget-ms", type=float, default=StopRule().budget_ms, help="device time of the same (default 40)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
