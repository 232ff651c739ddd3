"""What epilogues add on a device, fitted to rows of ``benchmarks.epilogues``, and how good advice is by that.

    python -m benchmarks.ending_costs rows.jsonl --device nvidia-h200 --write

Costs are fitted to the time of each variant with the epilogue beside that of its convolution alone, in the same run
where it was timed there, else as it ships. How far predicted times are off, and how much slower what is advised is
than the fastest that was tried, are told of each half of the layers by the costs that the other half teaches; what is
written is fitted to all. Needs no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.contest.scores import geometric_mean
from benchmarks.contest.tables import markdown
from benchmarks.endings.costs import RULES, Score, fitted, held_out, prediction_errors, scores
from benchmarks.endings.rows import merge, read
from benchmarks.options import say
from conv_advisor.data.errors import ConvAdvisorError, UnknownDevice
from conv_advisor.data.measurement import Device
from conv_advisor.data.records import Records
from conv_advisor.models.ranking import endings
from conv_advisor.models.ranking.endings import Endings
from conv_advisor.models.registry import on_disk as registry
from conv_advisor.models.tree.file import CARD_FILE, TreeModel
from conv_advisor.models.tree.file import read as read_tree
from conv_advisor.models.tree.loan import lent_to

TARGET = 1.03
"""Geometric mean of the advised variant's time over that of the fastest, at most."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, score, print, and write if asked; the exit status."""
    chosen = _parser().parse_args(arguments)
    device_id = chosen.device
    try:
        rows = [
            row for row in merge(map(read, chosen.rows)) if row.device == (chosen.rows_of or device_id) and row.timed
        ]
        if not rows:
            say(f"no row is of {chosen.rows_of or device_id}")
            return 2
        known = Records().summaries([row.problem.plain for row in rows], device_id)
        costs = fitted(rows, known, device_id)
        taught = held_out(rows, known, device_id)
        print(cost_table(costs))
        print(error_table(prediction_errors(taught, known)))
        device = Records().devices()[device_id]
        print(score_table(scores(taught, known, _tree_for(device), device)))
        if chosen.write:
            endings.write(costs, (chosen.output or endings.FOLDER) / f"{device_id}.json")
    except (ConvAdvisorError, OSError) as error:
        say(str(error))
        return 2
    return 0


def _tree_for(device: Device) -> TreeModel:
    """The tree that ships for a device, or the one that it borrows.

    Raises
    ------
    UnknownDevice
        Nobody lends it one.
    """
    trees = {folder.parent.name: read_tree(folder.parent) for folder in registry.SHIPPED.glob(f"*/{CARD_FILE}")}
    tree = trees.get(device.id) or lent_to(device, trees.values())
    if tree is None:
        raise UnknownDevice(device.id, sorted(trees))
    return tree


def cost_table(costs: Endings) -> str:
    """A line a way to end."""
    lines = [
        (
            kind,
            f"{cost.n_times:,}",
            f"{cost.factor:.3f}",
            f"{1e3 * cost.kernel_ms:.2f}",
            f"{1e9 * cost.byte_ms:.2f}",
            f"{cost.spread:.3f}",
            f"{cost.share:.2f}",
        )
        for kind, cost in costs.costs.items()
    ]
    head = ("ends", "times", "factor", "µs a kernel", "µs a MB", "spread", "share that runs")
    return f"## Costs on {costs.device_id}: {costs.n_layers} layers\n\n{markdown(head, lines)}\n"


def error_table(errors: Mapping[str, Sequence[float]]) -> str:
    """How far predicted times are off, a line a way to end."""
    lines = [
        (kind, f"{len(off):,}", f"{np.exp(median(off)) - 1:+.1%}", *(f"{_off(off, q):.1%}" for q in (50, 95)))
        for kind, off in errors.items()
    ]
    head = ("ends", "times", "median", "off by, median", "95th percentile")
    return f"## Times predicted from times alone, by the other half's costs\n\n{markdown(head, lines)}\n"


def _off(off: Sequence[float], percentile: float) -> float:
    return float(np.expm1(np.percentile(np.abs(off), percentile)))


def score_table(by_epilogue: Mapping[str, Mapping[str, Score]]) -> str:
    """A line an epilogue, and one for all of them: geometric mean, 95th percentile, worst."""
    every = {rule: Score() for rule in RULES}
    for by_rule in by_epilogue.values():
        for rule, score in by_rule.items():
            every[rule].slowdowns += score.slowdowns
            every[rule].n_untimed += score.n_untimed
    lines = [
        (name, *(_said(by_rule.get(rule, Score())) for rule in RULES))
        for name, by_rule in [*sorted(by_epilogue.items()), ("all", every)]
    ]
    return f"## Slowdown of what is advised (asked: {TARGET})\n\n{markdown(('epilogue', *RULES), lines)}\n"


def _said(score: Score) -> str:
    if not score.slowdowns:
        return f"- ({score.n_untimed} without a time)"
    ratios = score.slowdowns
    text = f"{geometric_mean(ratios):.3f} · {np.percentile(ratios, 95):.2f} · {max(ratios):.1f} of {len(ratios)}"
    return f"{text} ({score.n_untimed} without a time)" if score.n_untimed else text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ending_costs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("rows", nargs="+", type=Path, help="what benchmarks.epilogues wrote")
    add("--device", default="nvidia-h200", help="whose tree and measurements (default nvidia-h200)")
    add("--rows-of", metavar="DEVICE", help="take the rows of another device, to look at them; by default its own")
    add("--write", action="store_true", help="write what is fitted, to where it ships")
    add("--output", type=Path, metavar="FOLDER", help="or there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
