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
    """The findings of a refresh, against all that really changed."""

    found: Findings
    n_problems: int
    moved: tuple[int, int, int]
    """How many variants moved, are said to have moved, and both."""
    regressed: tuple[int, int, int]
    """The same of layers that regressed."""
    slowdowns: tuple[float, float]
    """Slowdowns of the tree's choices, before it was repaired and after."""


def main() -> None:
    """Print a table, a line a seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="nvidia-h200", help="device whose facts and tree ship")
    parser.add_argument("--after", type=Path, help="Parquet file of a sweep of what came after it")
    parser.add_argument("--before", type=Path, nargs="+", help="Parquet files of times that what ships came after")
    parser.add_argument("--backward", action="store_true", help="with --before: what ships was before them")
    parser.add_argument("--share", type=float, default=MOST_SHARE, help="of the times known that are measured again")
    parser.add_argument("--seeds", type=int, default=5)
    chosen = parser.parse_args()
    tree = read(SHIPPED / chosen.device)
    ships = from_table(Records().table(chosen.device), chosen.device)
    if chosen.before:
        before, after = versions(ships, chosen.before)
    else:
        later = _swept(chosen.after) if chosen.after else from_table(Records().table(_SUCCESSOR), _SUCCESSOR)
        before, after = alike(ships, later)
    if chosen.backward:
        before, after = after, before
    sys.stdout.write(_LINE.format(*_HEAD))
    for seed in range(chosen.seeds):
        sys.stdout.write(_line(seed, scored(before, after, tree, seed=seed, share=chosen.share)))
        sys.stdout.flush()


def scored(before: Costs, after: Costs, tree: TreeModel, *, seed: int, share: float = MOST_SHARE) -> Scores:
    """Refresh by the replayed answers of `after`, and compare the findings to all of it.

    Parameters
    ----------
    before, after : Costs
        Of the same problems and variants.
    tree : TreeModel
        The one that was in use before.
    """
    refresh, tried = Refresh(before, share=share, seed=seed), set()
    row = {problem: place for place, problem in enumerate(after.problems)}
    column = {name: place for place, name in enumerate(after.variants)}
    for attempts in refresh.rounds():
        for problem, name in attempts:
            at = row[problem], column[name]
            is_timed = np.isfinite(after.time_ms[at]) and not after.is_pruned[at]
            refresh.take(problem, name, float(after.time_ms[at]) if is_timed else None, float(after.noise[at]))
            tried.add(problem)
    findings = refresh.findings()
    moved = {line.name for line in compare(before, after).variants if has_moved(line)}
    regressed = {
        problem.key
        for problem, ratio in zip(before.problems, after.best_ms / before.best_ms, strict=True)
        if ratio > 1 + REGRESSED
    }
    named = {layer.problem for layer in findings.regressed}
    repaired = adapted(Fit(tree, tree.device, refresh.corrected(findings.moved), before)) if findings.moved else tree
    slowdowns = [
        Score.of([result for result in judge(after, Advisor(model).predict_order) if result.is_timed]).geometric_mean
        for model in (tree, repaired)
    ]
    return Scores(
        findings,
        len(tried),
        (len(moved), len(findings.moved), len(moved & set(findings.moved))),
        (len(regressed), len(named), len(regressed & named)),
        (slowdowns[0], slowdowns[1]),
    )


def alike(before: Costs, after: Costs) -> tuple[Costs, Costs]:
    """Two data sets on the problems and variants that both have; what the second never tried, the first forgets."""
    theirs, names = set(after.problems), set(after.variants)
    problems = [problem for problem in before.problems if problem in theirs]
    variants = [name for name in before.variants if name in names]
    first, second = (_part(costs, problems, variants) for costs in (before, after))
    is_tried = second.is_known & ~second.is_pruned
    return replace(first, time_ms=np.where(is_tried, first.time_ms, np.nan), is_known=first.is_known & is_tried), second


def versions(ships: Costs, files: Sequence[Path]) -> tuple[Costs, Costs]:
    """What ships with the times of these files in place of its own, and as it is, on the problems of the files."""
    row = {problem: place for place, problem in enumerate(ships.problems)}
    column = {name: place for place, name in enumerate(ships.variants)}
    time_ms, noise, rows = ships.time_ms.copy(), ships.noise.copy(), set()
    for file in files:
        table = parquet.read(file, parquet.SCHEMA)
        problems, places = parquet.distinct_problems(table)
        new_ms, new_noise = parquet.times(table)
        names, outcomes = table["variant"].to_pylist(), table["outcome"].to_pylist()
        for index, (name, outcome) in enumerate(zip(names, outcomes, strict=True)):
            problem = problems[places[index]]
            if outcome != Outcome.MEASURED or problem not in row or name not in column:
                continue
            at = row[problem], column[name]
            if np.isfinite(ships.time_ms[at]) and not ships.is_pruned[at]:
                time_ms[at], noise[at] = new_ms[index], new_noise[index]
                if new_ms[index] != ships.time_ms[at]:
                    rows.add(at[0])
    changed = sorted(rows)
    return replace(ships, time_ms=time_ms, noise=noise).take(changed), ships.take(changed)


def _swept(file: Path) -> Costs:
    """What a sweep of one device found."""
    table = parquet.read(file, parquet.SCHEMA)
    (device_id,) = {Device.from_json(text).id for text in table["device"].unique().to_pylist()}
    return from_table(table, device_id)


def _part(costs: Costs, problems: Sequence[ConvProblem], variants: Sequence[str]) -> Costs:
    """The costs of these problems and variants, in this order."""
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
    findings, (n_moved, n_said, n_both) = scores.found, scores.moved
    n_regressed, n_named, n_right = scores.regressed
    off = f"{findings.off_before:.1%} -> {findings.off_after:.1%}"
    slowdown = "{:.4f} -> {:.4f}".format(*scores.slowdowns)
    return _LINE.format(
        *(seed, findings.n_measured, f"{findings.share:.2%}", scores.n_problems, f"{n_said} of {n_moved}"),
        *(_shares(n_both, n_moved, n_said), n_regressed, n_named),
        *(_shares(n_right, n_regressed, n_named).split(", ")),
        *(off, slowdown),
    )


def _shares(n_both: int, n_true: int, n_said: int) -> str:
    """Recall and precision."""
    return ", ".join(f"{n_both / count:.3f}" if count else "-" for count in (n_true, n_said))


if __name__ == "__main__":
    main()
