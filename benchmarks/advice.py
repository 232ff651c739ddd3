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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from benchmarks.options import existing, interruptible, list_of, say, shard
from benchmarks.rivals.layer import Order, measure
from benchmarks.rivals.orders import Named, Near, of_networks, orders, shuffled
from benchmarks.rivals.rows import JOURNAL, LAYER, Row, append, merge, read, write
from benchmarks.rivals.tables import report
from benchmarks.turns.run import START_S, Run, paced
from conv_advisor.app.workers.engine import DEFAULT_OPENER, Engine
from conv_advisor.data import networks
from conv_advisor.data.errors import ConvAdvisorError
from conv_advisor.data.packing import attempts_in
from conv_advisor.data.problem import DType, Layout
from conv_advisor.data.problem_file import read_problems
from conv_advisor.data.shipped import TIMINGS
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.models.tree.file import TreeModel
from conv_advisor.models.tree.file import read as read_tree

PEER_OPENER: Final = "benchmarks.rivals.pytorch:open_peer"
SHIPPED_TREE: Final = TIMINGS.parent.parent / "models" / "trained" / "nvidia-h200"


def main(
    arguments: Sequence[str] | None = None, *, opener: str = DEFAULT_OPENER, peer_opener: str = PEER_OPENER
) -> int:
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
            match = Match(chosen, opener, peer_opener)
            is_whole = match.go(_wanted(chosen), read_tree(chosen.tree))
            rows = match.rows
    except (ConvAdvisorError, OSError) as error:
        say(str(error))
        return 2
    print(report(rows))
    return 0 if is_whole else 1


@dataclass
class Match:
    """A run on one device.

    Parameters
    ----------
    chosen : argparse.Namespace
        The options.
    opener, peer_opener : str
    rows : list of Row
        What was measured so far, an earlier run into the same output included.
    """

    chosen: argparse.Namespace
    opener: str
    peer_opener: str
    rows: list[Row] = field(default_factory=list)

    def go(self, named: Named, model: TreeModel) -> bool:
        """Measure layer after layer; False where the device was lost. The time limit and Ctrl-C end it early.

        Raises
        ------
        ConvAdvisorError
            The device cannot be opened.
        """
        chosen, journal = self.chosen, _journal(self.chosen.output)
        earlier = merge(read(path) for path in (chosen.output, journal) if path and path.exists())
        self.rows = [row for row in earlier if row.rule != LAYER]
        done = {row.problem for row in self.rows}
        left = {problem: names for problem, names in named.items() if problem not in done}
        say(f"{len(left)} of {len(named)} layers to measure")
        engine = Engine(chosen.device, start_timeout_s=START_S, has_spare=False, opener=self.opener)
        with engine, interruptible():
            run = Run[Order, Row](engine, measure, (self.peer_opener, chosen.device), chosen.deadline)
            run.open()
            try:
                for order in paced(self._orders(left, model), len(left), chosen.time_limit):
                    rows = _rows(order, *run.measure(order))
                    if run.is_lost:
                        say(f"the device is lost: {rows[0].failure}")
                        return False
                    self.rows += rows
                    if journal:
                        append(rows, journal)
            except KeyboardInterrupt:
                say("interrupted: what follows is what was measured until now")
            finally:
                self._save(journal)
        return True

    def _orders(self, named: Named, model: TreeModel) -> Iterator[Order]:
        chosen = self.chosen
        attempts = attempts_in(chosen.timings or TIMINGS / model.device.id)
        rule = StopRule(max_samples=chosen.max_samples, budget_ms=chosen.budget_ms)
        return orders(named, model, attempts, near=chosen.near, is_fresh=chosen.choose_now, rule=rule)

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
        listed = read_problems(path, chosen.dtypes, chosen.layouts)
        named |= {problem: path.stem for problem in listed if problem not in named}
    index, count = chosen.shard
    order = shuffled(named, chosen.seed)[index::count][: chosen.count]
    return {problem: named[problem] for problem in order}


def _rows(order: Order, rows: list[Row], failed: dict[str, str]) -> list[Row]:
    """The rows of a layer, with what brought workers down; where there are none, one that says why."""
    if rows:
        return [replace(row, failure=_said(row, failed)) for row in rows]
    text = "; ".join(f"{why} ({name})" for name, why in failed.items())
    return [Row(order.problem, LAYER, failure=text, networks=order.networks, tree=order.tree)]


def _said(row: Row, failed: dict[str, str]) -> str:
    """What failed in a row, with what brought a worker down before."""
    mine = [f"{name}: {why}" for name, why in failed.items()] if row.rule in failed or not row.samples_ms else []
    if row.rule in failed:
        return failed[row.rule]
    return "; ".join(part for part in (row.failure, *mine) if part)


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
    add("--timings", type=existing, help="folder of the measurements; default data/timings/<device of the tree>")
    add("--choose-now", action="store_true", help="try every variant on every layer, whatever the measurements know")
    add("--near", type=_near, default=Near(), metavar="F,N", help="near the best: within F times, at most N (1.3,6)")
    add("--time-limit", type=float, default=float("inf"), metavar="SECONDS", help="no layer is begun after it")
    add("--deadline", type=float, default=60, metavar="SECONDS", help="of one layer (default 60)")
    add("--max-samples", type=int, default=StopRule().max_samples, help="of one rule's choice (default 20)")
    add("--budget-ms", type=float, default=StopRule().budget_ms, help="device time of the same (default 40)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
