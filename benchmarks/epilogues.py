"""Convolutions with bias, residual and activation: our fused variants against compiled PyTorch and cuDNN's fused plans.

The layers are those of the seed papers' networks, each with the epilogue that it has there. In one run on one GPU every
variant of ours and every plan of cuDNN's three heuristics is tried, whether its epilogue is offered yet or not, and the
fastest of each side is chosen; everybody is then timed again, in turns with PyTorch's layer, eager under
cudnn.benchmark = True and compiled by Inductor in its default and its max-autotune mode, and with the plain
convolution of the variant that stands for ours.

Run it on a GPU as ``python -m benchmarks.epilogues --output rows.jsonl``; a run that was ended or killed goes on where
it was when it is given the same output again. --report prints what runs wrote, without a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from benchmarks.contest.scores import H200
from benchmarks.endings.layer import Order, measure
from benchmarks.endings.rows import AUTOTUNED, COMPILED, EAGER, Row, append, merge, read, write
from benchmarks.endings.tables import report
from benchmarks.endings.wanted import BATCHES, NETWORKS, OTHERS, wanted
from benchmarks.options import interruptible, list_of, say, shard
from benchmarks.rivals.orders import Named, shuffled
from benchmarks.turns.run import START_S, Run, paced
from conv_advisor.app.workers.engine import DEFAULT_OPENER, Engine
from conv_advisor.data.errors import ConvAdvisorError
from conv_advisor.data.problem import DType, Layout
from conv_advisor.kernels.stopping import StopRule

PEER_OPENER: Final = "benchmarks.endings.pytorch:open_peer"
_MODE: Final = {"eager": EAGER, "compiled": COMPILED, "max-autotune": AUTOTUNED}


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
            is_whole = match.go(layers(chosen))
            rows = match.rows
    except (ConvAdvisorError, OSError) as error:
        say(str(error))
        return 2
    print(report(rows, replace(H200, bytes_per_s=chosen.bandwidth)))
    return 0 if is_whole else 1


def layers(chosen: argparse.Namespace) -> Named:
    """The layers of a run, in an order that leaves a fair sample wherever it ends."""
    named = wanted(chosen.networks, chosen.batches, chosen.dtypes, chosen.layouts)
    index, count = chosen.shard
    return {problem: named[problem] for problem in shuffled(named, chosen.seed)[index::count][: chosen.count]}


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

    def go(self, named: Named) -> bool:
        """Measure layer after layer; False where the device was lost. The time limit and Ctrl-C end it early.

        Raises
        ------
        ConvAdvisorError
            The device cannot be opened.
        """
        chosen, output = self.chosen, self.chosen.output
        if output:
            self.rows = [row for row in read(output) if row.timed] if output.exists() else []
            write(self.rows, output)
        done = {row.problem for row in self.rows}
        rule = StopRule(max_samples=chosen.max_samples, budget_ms=chosen.budget_ms)
        modes = tuple(_MODE[mode] for mode in chosen.modes)
        orders = [Order(problem, rule, modes, names) for problem, names in named.items() if problem not in done]
        say(f"{len(orders)} of {len(named)} layers to measure")
        engine = Engine(chosen.device, start_timeout_s=START_S, has_spare=False, opener=self.opener)
        with engine, interruptible():
            run = Run[Order, Row](engine, measure, (self.peer_opener, chosen.device), chosen.deadline)
            run.open()
            try:
                for order in paced(orders, len(orders), chosen.time_limit):
                    self._keep(_row(order, *run.measure(order)))
                    if run.is_lost:
                        say("the device is lost")
                        return False
            except KeyboardInterrupt:
                say("interrupted: what follows is what was measured until now")
        return True

    def _keep(self, row: Row) -> None:
        self.rows.append(row)
        if self.chosen.output:
            append(row, self.chosen.output)


def _row(order: Order, rows: list[Row], failed: dict[str, str]) -> Row:
    """The row of a layer, with what brought workers down; where it has none, a row of that alone."""
    row = rows[0] if rows else Row(order.problem, networks=order.networks)
    return replace(row, failures=row.failures | failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.epilogues", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--report", nargs="+", type=Path, metavar="FILE", help="merge what runs wrote and print it; needs no GPU")
    add("--output", type=Path, help="write every layer there at once, a line of JSON each")
    add("--device", default="cuda:0", help="cuda:0 (default), cuda:1 ...")
    known = (*NETWORKS, *OTHERS)
    add(
        "--networks", type=list_of(known), default=list(NETWORKS), help=f"of {', '.join(known)}; default the first five"
    )
    add("--dtypes", type=list_of(tuple(DType), DType), default=list(DType), help="default all")
    add("--layouts", type=list_of(tuple(Layout), Layout), default=list(Layout), help="default both; float32 is NCHW")
    add("--batches", type=list_of(range(1, 2**20), int), default=list(BATCHES), help="default 1,8,32,256")
    add("--modes", type=list_of(tuple(_MODE)), default=list(_MODE), help=f"of PyTorch: {','.join(_MODE)} (default)")
    add("--count", type=int, help="only so many layers, a random choice")
    add("--seed", type=int, default=0, help="of the random order (default 0)")
    add("--shard", type=shard, default=(0, 1), metavar="I/N", help="every Nth layer from the Ith on, I from 0")
    add("--time-limit", type=float, default=float("inf"), metavar="SECONDS", help="no layer is begun after it")
    add("--deadline", type=float, default=300, metavar="SECONDS", help="of one layer, compilers included (default 300)")
    add("--max-samples", type=int, default=StopRule().max_samples, help="of one side (default 20)")
    add("--budget-ms", type=float, default=StopRule().budget_ms, help="device time of the same (default 40)")
    add("--bandwidth", type=float, default=H200.bytes_per_s, help=f"bytes a second (default {H200.bytes_per_s:g})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
