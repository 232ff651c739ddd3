"""Our own kernels against the best of cuDNN's two APIs, over the 602 configurations of the seed papers.

Chosen on one run, reported on another: which variant stands for each side comes from the measurements that ship with
the project, or with --choose-now from a first pass of this run over all variants and plans; its time from samples taken
afterwards, the two sides in turns. Run it on a GPU as ``python -m benchmarks.kernels``; --report prints what several
runs wrote, without a GPU.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from benchmarks.contest.choice import CUDNN, OURS, from_timings
from benchmarks.contest.layer import Order, measure
from benchmarks.contest.rows import Row, merge, read, write
from benchmarks.contest.scores import COLUMNS, H200, Peaks, missing
from benchmarks.contest.tables import N_LAYERS, missing_text, report
from benchmarks.options import existing, interruptible, list_of, say, shard
from benchmarks.turns.layer import Choice
from benchmarks.turns.run import START_S, Run, paced
from conv_advisor.app.sweep.sweep import shard_of
from conv_advisor.app.workers.engine import DEFAULT_OPENER, Engine
from conv_advisor.data.errors import ConvAdvisorError
from conv_advisor.data.measurement import Device, L2State
from conv_advisor.data.networks import SEED_BATCHES, problems
from conv_advisor.data.packing import attempts_in
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.shipped import TIMINGS
from conv_advisor.kernels.stopping import StopRule

CHECKPOINT_S: Final = 60.0


def main(arguments: Sequence[str] | None = None, *, opener: str = DEFAULT_OPENER) -> int:
    """Measure or read, write, and print the tables; the exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the command line.
    opener : str
        What opens the device in the worker; tests name a fake.
    """
    chosen = _parser().parse_args(arguments)
    layers = _wanted(chosen)
    if chosen.report:
        rows, is_whole = merge(read(path) for path in chosen.report), True
        if chosen.output:
            write(rows, chosen.output)
        layers = [problem for problem in layers if (problem.dtype, problem.layout) in {row.column for row in rows}]
    else:
        contest = Contest(chosen, opener)
        is_whole = contest.run(layers)
        rows = contest.rows
    peaks = replace(H200, flops={**H200.flops, **dict(chosen.peak)}, bytes_per_s=chosen.bandwidth)
    print(_heading(rows))
    for l2 in sorted({row.l2 for row in rows}, reverse=True):
        print(report(rows, l2, peaks=peaks, n_layers=chosen.layers), end="\n\n")
    print(missing_text(missing(rows, layers)))
    return 0 if is_whole else 1


@dataclass
class Contest:
    """A run on one device.

    Parameters
    ----------
    chosen : argparse.Namespace
        The options.
    opener : str
    rows : list of Row
        What is measured so far.
    """

    chosen: argparse.Namespace
    opener: str
    rows: list[Row] = field(default_factory=list)

    def run(self, layers: Sequence[ConvProblem]) -> bool:
        """Measure layer after layer; False where the device was lost. The time limit and Ctrl-C end it early."""
        saved, chosen = time.monotonic(), self.chosen
        with Engine(chosen.device, start_timeout_s=START_S, has_spare=False, opener=self.opener) as engine:
            run = Run[Order, Row](engine, measure, (), chosen.deadline)
            try:
                with interruptible():
                    orders = list(self._orders(layers, run.open()))
                    for order in paced(orders, len(orders), chosen.time_limit):
                        self.rows += _rows(order, *run.measure(order))
                        if run.is_lost:
                            say("the device is lost")
                            return False
                        if time.monotonic() - saved >= CHECKPOINT_S:
                            saved = time.monotonic()
                            self._save()
            except KeyboardInterrupt:
                say("interrupted: what follows is what was measured until now")
            except ConvAdvisorError as error:
                say(f"the device is lost: {error}")
                return False
            finally:
                self._save()
        return True

    def _save(self) -> None:
        if self.chosen.output:
            write(self.rows, self.chosen.output)

    def _orders(self, layers: Sequence[ConvProblem], device: Device) -> Iterator[Order]:
        chosen = self.chosen
        ours = tuple(reversed(chosen.variants))  # the catalogue has the plain ones first: the fast ones set the mark
        fresh = {"all": (*CUDNN, *ours), "ours": ours, None: ()}[chosen.choose_now]
        known = () if chosen.choose_now == "all" else tuple(v for v in (*CUDNN, *chosen.variants) if v not in fresh)
        timings = chosen.timings or TIMINGS / device.id
        candidates = from_timings(attempts_in(timings), layers, known) if known else {}
        _say_unknown(known, candidates.values())
        choosing = " and ".join(
            ([f"the measurements in {timings.name}"] if known else []) + (["a first pass of this run"] if fresh else [])
        )
        for problem in layers:
            yield Order(
                problem,
                candidates.get(problem, {}),
                fresh,
                not chosen.first_plans,
                chosen.candidates,
                chosen.l2,
                StopRule(max_samples=chosen.max_samples, budget_ms=chosen.budget_ms),
                choosing=choosing,
            )


def _wanted(chosen: argparse.Namespace) -> list[ConvProblem]:
    """The layers of a run, in an order that leaves a fair sample of all wherever it ends."""
    columns = [column for column in COLUMNS if column[0] in chosen.dtypes and column[1] in chosen.layouts]
    every = [
        problem
        for dtype, layout in columns
        for problem in problems("seeds", batches=chosen.batches, dtypes=[DType(dtype)], layouts=[Layout(layout)])
    ]
    random.Random(0).shuffle(every)  # noqa: S311 - an order, no secret
    index, count = chosen.shard
    return shard_of(every, index, count)


def _heading(rows: Sequence[Row]) -> str:
    devices = ", ".join(sorted({row.device for row in rows if row.device})) or "no device"
    choosing = "; ".join(sorted({f"{row.l2}: {row.choosing}" for row in rows}, reverse=True))
    return f"# Ours against the best of cuDNN's two APIs, on {devices}\n\nChosen on {choosing}.\n"


def _rows(order: Order, rows: list[Row], failures: dict[str, str]) -> list[Row]:
    """The rows of a layer, with what brought workers down; where there are none, rows that say why."""
    rows = rows or [Row(order.problem, l2, None, None, order.choosing) for l2 in order.states]
    return [replace(row, failures=failures | row.failures) for row in rows]


def _say_unknown(known: Collection[str], candidates: Iterable[Iterable[Choice]]) -> None:
    there = {choice.variant for of_layer in candidates for choice in of_layer}
    unknown = [variant for variant in known if variant in OURS and variant not in there]
    if unknown:
        say(f"not in the measurements, so never chosen (see --choose-now): {', '.join(unknown)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    states = tuple(L2State)
    add("--report", nargs="+", type=Path, metavar="FILE", help="merge what runs wrote and print it; needs no GPU")
    add("--output", type=Path, help="write every row there: .parquet, or .csv")
    add("--device", default="cuda:0", help="cuda:0 (default), cuda:1 ...")
    add("--dtypes", type=list_of({dtype for dtype, _ in COLUMNS}), default=[dtype for dtype, _ in COLUMNS])
    add("--layouts", type=list_of({layout for _, layout in COLUMNS}), default=[layout for _, layout in COLUMNS])
    add("--batches", type=list_of(SEED_BATCHES, int), default=SEED_BATCHES, help="default 1,8,16,32,64,128,256")
    add("--variants", type=list_of(OURS), default=OURS, help="which of ours; default all that use no library")
    add("--l2", type=list_of(states, L2State), default=states, help="warm,cold (default)")
    add("--shard", type=shard, default=(0, 1), metavar="I/N", help="every Nth layer from the Ith on, I from 0")
    add(
        "--choose-now",
        nargs="?",
        const="all",
        choices=("all", "ours"),
        help="choose by a first pass of this run, for both sides or for ours alone, not from the shipped measurements",
    )
    add("--first-plans", action="store_true", help="with --choose-now: of cuDNN's engines only the first plan")
    add("--timings", type=existing, help="folder of the measurements to choose from; default those of the device")
    add("--candidates", type=_pair, default=(3, 2), metavar="C,O", help="timed of each side (default 3,2)")
    add("--time-limit", type=float, default=float("inf"), metavar="SECONDS", help="no layer is begun after it")
    add("--deadline", type=float, default=30, metavar="SECONDS", help="of one layer (default 30)")
    add("--max-samples", type=int, default=StopRule().max_samples, help="of one candidate and L2 state (default 20)")
    add("--budget-ms", type=float, default=StopRule().budget_ms, help="device time of the same (default 40)")
    add("--layers", type=int, default=N_LAYERS, help="best and worst layers that are shown (default 10)")
    add("--peak", type=_peak, action="append", default=[], metavar="DTYPE=FLOPS", help=f"default {_peaks_text(H200)}")
    add("--bandwidth", type=float, default=H200.bytes_per_s, help=f"bytes a second (default {H200.bytes_per_s:g})")
    return parser


def _pair(text: str) -> tuple[int, int]:
    cudnn, ours = (int(part) for part in text.split(","))
    return cudnn, ours


def _peak(text: str) -> tuple[str, float]:
    dtype, _, flops = text.partition("=")
    return str(DType(dtype)), float(flops)


def _peaks_text(peaks: Peaks) -> str:
    return " ".join(f"{dtype}={flops:g}" for dtype, flops in peaks.flops.items())


if __name__ == "__main__":
    sys.exit(main())
