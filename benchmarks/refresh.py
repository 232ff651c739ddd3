"""What ``conv-advisor refresh`` finds where things really changed: between two GPUs, or versions of our kernels.

``python -m benchmarks.refresh`` takes an H100 for what became of an H200: the facts of both ship, and what both have
tried is compared. ``--after FILE`` is a sweep of another; ``--before FILE`` a Parquet file of times of the device
before, which stand in for those that ship: what ships is then after, and with ``--backward`` before. What came after
is replayed for what is chosen to be measured, and everything that is said is held against all of it.

The tree is the one that ships, trained on what ships: forward of ``--before`` it knows already what came after, and its
slowdown says nothing there. Times of the first version of ``cuda.implicit_gemm`` are in this repository's history:
``git show eeafcee:data/timings/nvidia-h200/implicit-gemm.parquet``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from conv_advisor.data import parquet
from conv_advisor.data.measurement import Device, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.records import Records
from conv_advisor.models.adapting.adapt import adapted
from conv_advisor.models.adapting.correction import Fit
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import Costs, from_table
from conv_advisor.models.evaluation.judging import Score, judge
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.tree.file import TreeModel, read
from conv_advisor.models.upgrades.compare import compare
from conv_advisor.models.upgrades.moves import REGRESSED
from conv_advisor.models.upgrades.refresh import MOST_SHARE, Findings, Refresh, has_moved

_SUCCESSOR = "nvidia-h100-80gb-hbm3"
_LINE = "{:>5} {:>9} {:>7} {:>9} {:>15} {:>17} {:>9} {:>6} {:>7} {:>9} {:>15} {:>17}\n"
_HEAD = (
    *("seed", "measured", "share", "problems", "variants moved", "recall, precision", "regressed", "named", "recall"),
    *("precision", "times off by", "slowdown"),
)


@dataclass(frozen=True)
class Scores:
    """What was found, against all that really changed."""

    found: Findings
    n_problems: int
    moved: tuple[int, int, int]
    """Variants that moved, that are said to have, and of these, those that did."""
    regressed: tuple[int, int, int]
    """The same of layers."""
    slowdowns: tuple[float, float]
    """Those of the tree's choices, before it was repaired and after."""


def main() -> None:
    """Print a table, a line a seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="nvidia-h200", help="device whose facts and tree ship")
    parser.add_argument("--after", type=Path, help="Parquet file of a sweep of what came after it")
    parser.add_argument("--before", type=Path, nargs="+", help="Parquet files of times that what ships came after")
    parser.add_argument("--backward", action="store_true", help="with --before: what ships was before them")
    parser.add_argument("--share", type=float, default=MOST_SHARE, help="of the times known that are measured again")
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    tree = read(SHIPPED / asked.device)
    ships = from_table(Records().table(asked.device), asked.device)
    if asked.before:
        before, after = versions(ships, asked.before)
    else:
        later = _swept(asked.after) if asked.after else from_table(Records().table(_SUCCESSOR), _SUCCESSOR)
        before, after = alike(ships, later)
    if asked.backward:
        before, after = after, before
    sys.stdout.write(_LINE.format(*_HEAD))
    for seed in range(asked.seeds):
        sys.stdout.write(_line(seed, scored(before, after, tree, seed=seed, share=asked.share)))
        sys.stdout.flush()


def scored(before: Costs, after: Costs, tree: TreeModel, *, seed: int, share: float = MOST_SHARE) -> Scores:
    """Refresh by the replayed answers of `after`, and hold what is said against all of it.

    Parameters
    ----------
    before, after : Costs
        Of the same problems and variants.
    tree : TreeModel
        That was in use before.
    """
    refresh, tried = Refresh(before, share=share, seed=seed), set()
    row = {problem: place for place, problem in enumerate(after.problems)}
    column = {name: place for place, name in enumerate(after.variants)}
    for wanted in refresh.rounds():
        for problem, name in wanted:
            at = row[problem], column[name]
            is_timed = np.isfinite(after.time_ms[at]) and not after.is_pruned[at]
            refresh.take(problem, name, float(after.time_ms[at]) if is_timed else None, float(after.noise[at]))
            tried.add(problem)
    found = refresh.findings()
    moved = {line.name for line in compare(before, after).variants if has_moved(line)}
    regressed = {
        problem.key
        for problem, ratio in zip(before.problems, after.best_ms / before.best_ms, strict=True)
        if ratio > 1 + REGRESSED
    }
    named = {each.problem for each in found.regressed}
    repaired = adapted(Fit(tree, tree.device, refresh.corrected(found.moved), before)) if found.moved else tree
    slowdowns = [
        Score.of([each for each in judge(after, Advisor(each_tree).predict_order) if each.is_timed]).geometric_mean
        for each_tree in (tree, repaired)
    ]
    return Scores(
        found,
        len(tried),
        (len(moved), len(found.moved), len(moved & set(found.moved))),
        (len(regressed), len(named), len(regressed & named)),
        (slowdowns[0], slowdowns[1]),
    )


def alike(before: Costs, after: Costs) -> tuple[Costs, Costs]:
    """Two data sets on the problems and variants that both have; what the second never tried, the first forgets."""
    theirs, names = set(after.problems), set(after.variants)
    problems = [problem for problem in before.problems if problem in theirs]
    variants = [name for name in before.variants if name in names]
    one, other = (_part(costs, problems, variants) for costs in (before, after))
    is_tried = other.is_known & ~other.is_pruned
    return replace(one, time_ms=np.where(is_tried, one.time_ms, np.nan), is_known=one.is_known & is_tried), other


def versions(ships: Costs, files: Sequence[Path]) -> tuple[Costs, Costs]:
    """What ships with the times of these files in place of its own, and as it is, on the problems of the files."""
    row = {problem: place for place, problem in enumerate(ships.problems)}
    column = {name: place for place, name in enumerate(ships.variants)}
    time_ms, noise, rows = ships.time_ms.copy(), ships.noise.copy(), set()
    for file in files:
        table = parquet.read(file, parquet.SCHEMA)
        problems, places = parquet.distinct_problems(table)
        found_ms, found_noise = parquet.times(table)
        names, outcomes = table["variant"].to_pylist(), table["outcome"].to_pylist()
        for each, (name, outcome) in enumerate(zip(names, outcomes, strict=True)):
            problem = problems[places[each]]
            if outcome != Outcome.MEASURED or problem not in row or name not in column:
                continue
            at = row[problem], column[name]
            if np.isfinite(ships.time_ms[at]) and not ships.is_pruned[at]:
                time_ms[at], noise[at] = found_ms[each], found_noise[each]
                if found_ms[each] != ships.time_ms[at]:
                    rows.add(at[0])
    wanted = sorted(rows)
    return replace(ships, time_ms=time_ms, noise=noise).take(wanted), ships.take(wanted)


def _swept(file: Path) -> Costs:
    """What a sweep of one device found."""
    table = parquet.read(file, parquet.SCHEMA)
    (device_id,) = {Device.from_json(text).id for text in table["device"].unique().to_pylist()}
    return from_table(table, device_id)


def _part(costs: Costs, problems: Sequence[ConvProblem], variants: Sequence[str]) -> Costs:
    """These problems and variants, in this order."""
    row = {problem: place for place, problem in enumerate(costs.problems)}
    taken = costs.take([row[problem] for problem in problems])
    columns = [costs.variants.index(name) for name in variants]
    arrays: dict[str, Any] = {
        field.name: value[:, columns]
        for field in fields(taken)
        if isinstance(value := getattr(taken, field.name), np.ndarray)
    }
    return replace(taken, variants=tuple(variants), **arrays)


def _line(seed: int, scores: Scores) -> str:
    """One line of the table."""
    found, (n_moved, n_said, n_both) = scores.found, scores.moved
    n_regressed, n_named, n_right = scores.regressed
    off = f"{found.off_before:.1%} -> {found.off_after:.1%}"
    slowdown = "{:.4f} -> {:.4f}".format(*scores.slowdowns)
    return _LINE.format(
        *(seed, found.n_measured, f"{found.share:.2%}", scores.n_problems, f"{n_said} of {n_moved}"),
        *(_shares(n_both, n_moved, n_said), n_regressed, n_named),
        *(_shares(n_right, n_regressed, n_named).split(", ")),
        *(off, slowdown),
    )


def _shares(n_both: int, n_true: int, n_said: int) -> str:
    """Recall and precision."""
    return ", ".join(f"{n_both / count:.3f}" if count else "-" for count in (n_true, n_said))


if __name__ == "__main__":
    main()
