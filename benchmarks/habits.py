"""What cuDNN's heuristic A and PyTorch's modes run, learned from what they ran: the baselines of advice.

    python -m benchmarks.habits --device nvidia-h200

Fits a small tree to the choices of heuristic A that ship, scores it on layers held out, takes what PyTorch took beside
that heuristic from the run of ``benchmarks.advice``, and writes ``data/peers/<device>.json``. Needs no GPU; a minute or
two.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow.parquet as pq

from conv_advisor.data.packing import attempts_in
from conv_advisor.data.problem import FIELDS, ConvProblem
from conv_advisor.data.shipped import SUFFIX, TIMINGS, ShippedTable, problem_of
from conv_advisor.models.advice import habits
from conv_advisor.models.advice.baselines import CUDNN, ENGINE, has_kernel_of_pytorch
from conv_advisor.models.advice.habits import FORMAT, HEURISTIC, Habits
from conv_advisor.models.costs import from_table
from conv_advisor.models.evaluation import peers
from conv_advisor.models.tree.features import FEATURES, feature_matrix

LEAVES: Final = 200
"""With 1,000 the choice on layers held out is right in 82 %, with 3,000 in 81 %."""
LEAST_OF_A_LEAF: Final = 3
FOLDS: Final = 5
NEAR: Final = 0.05


@dataclass(frozen=True)
class Beside:
    """PyTorch's times in a run, by problem key, and how often its default took as long as the heuristic's choice."""

    n_problems: int
    share: float
    default_ms: dict[str, float]
    tuned_ms: dict[str, float]
    software: str


class Tuned(NamedTuple):
    """PyTorch with ``cudnn.benchmark`` beside cuDNN's fastest engine: problems, share within 5 %, mean ratio."""

    n_problems: int
    share: float
    ratio: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, score, write, and say how good it is."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.habits", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="nvidia-h200", help="whose choices")
    parser.add_argument("--output", type=Path, help="file to write (default: where it ships)")
    chosen = parser.parse_args(arguments)
    fitted = fit(chosen.device)
    path = chosen.output or habits.FOLDER / f"{chosen.device}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(fitted), indent=-1) + b"\n")
    habits.read(path)
    print(f"{fitted.n_asked:,} problems, {sum(feature == -1 for feature in fitted.feature)} leaves")
    print(f"on layers held out: right in {fitted.share_right:.1%}, time within 5 % in {fitted.share_near:.1%}")
    print(f"PyTorch's default within 5 % of it in {fitted.share_beside:.1%} of {fitted.n_beside:,} problems")
    tuned = f"within 5 % of cuDNN's fastest engine in {fitted.share_tuned:.1%} of {fitted.n_tuned:,} problems"
    print(f"PyTorch's benchmark mode {tuned}, {fitted.tuned_ratio:.3f} times as long in the mean")
    return 0


def fit(device_id: str) -> Habits:
    """What cuDNN's heuristic and PyTorch run on a device."""
    table = ShippedTable(TIMINGS / f"{device_id}{SUFFIX}")
    places, sources, variants, _, _ = table.picks
    rows = sources == table.card.pick_sources.index(HEURISTIC)
    problems = [problem_of(table.keys[place]) for place in places[rows].tolist()]
    chosen = variants[rows]
    matrix = feature_matrix(problems)
    tree = _tree(matrix, chosen)
    right, near = _scores(device_id, problems, matrix, chosen, table.card.variants)
    timed = beside(habits.FOLDER / f"{device_id}.parquet")
    tuned = beside_engines(device_id, timed.tuned_ms)
    return Habits(
        format=FORMAT,
        device_id=device_id,
        software=timed.software,
        features=list(FEATURES),
        variants=table.card.variants,
        feature=np.where(tree.tree_.feature < 0, -1, tree.tree_.feature).tolist(),
        threshold=np.where(tree.tree_.feature < 0, 0.0, tree.tree_.threshold).tolist(),
        left=tree.tree_.children_left.tolist(),
        right=tree.tree_.children_right.tolist(),
        choices=[_likely(tree, node) if tested < 0 else [] for node, tested in enumerate(tree.tree_.feature.tolist())],
        n_asked=len(problems),
        share_right=right,
        share_near=near,
        n_beside=timed.n_problems,
        share_beside=timed.share,
        n_tuned=tuned.n_problems,
        share_tuned=tuned.share,
        tuned_ratio=tuned.ratio,
        default_ms=timed.default_ms,
        tuned_ms=timed.tuned_ms,
    )


def _tree(matrix: np.ndarray, chosen: np.ndarray) -> Any:
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(max_leaf_nodes=LEAVES, min_samples_leaf=LEAST_OF_A_LEAF, random_state=0).fit(
        matrix, chosen
    )


def _likely(tree: Any, node: int) -> list[int]:
    """The variants chosen at a leaf, the most frequent first."""
    shares = tree.tree_.value[node][0]
    order = np.argsort(-shares, kind="stable")
    likely: list[int] = tree.classes_[order[shares[order] > 0]].tolist()
    return likely


def _scores(
    device_id: str, problems: Sequence[ConvProblem], matrix: np.ndarray, chosen: np.ndarray, variants: Sequence[str]
) -> tuple[float, float]:
    """The shares, on layers held out, where trees name the choice, and where the variant named is within 5 % of it."""
    from sklearn.model_selection import GroupKFold

    times = _times(device_id, problems, variants)
    layers = {layer: place for place, layer in enumerate(dict.fromkeys(problem.layer for problem in problems))}
    groups = [layers[problem.layer] for problem in problems]
    named = np.empty_like(chosen)
    for train, test in GroupKFold(FOLDS).split(matrix, chosen, groups):
        tree = _tree(matrix[train], chosen[train])
        for row, node in zip(test.tolist(), tree.apply(matrix[test]).tolist(), strict=True):
            likely = _likely(tree, node)
            named[row] = next((variant for variant in likely if np.isfinite(times[row, variant])), likely[0])
    every = np.arange(len(chosen))
    ratio = np.abs(np.log(times[every, named] / times[every, chosen]))
    return float(np.mean(named == chosen)), float(np.mean(ratio[np.isfinite(ratio)] <= np.log1p(NEAR)))


def _times(device_id: str, problems: Sequence[ConvProblem], variants: Sequence[str]) -> np.ndarray:
    """The times of cuDNN's variants that were timed in full; float64 array of shape (problems, variants)."""
    costs = from_table(attempts_in(TIMINGS / device_id), device_id)
    row_of = {problem: row for row, problem in enumerate(costs.problems)}
    known = np.where(costs.is_pruned, np.nan, costs.time_ms)
    column_of = {name: column for column, name in enumerate(costs.variants)}
    times_ms = np.full((len(problems), len(variants)), np.nan)
    rows = [(place, row_of[problem]) for place, problem in enumerate(problems) if problem in row_of]
    here, there = np.array(rows).T
    for place, name in enumerate(variants):
        if name.startswith(CUDNN) and name in column_of:
            times_ms[here, place] = known[there, column_of[name]]
    return times_ms


def beside(path: Path) -> Beside:
    """Read what ``benchmarks.advice`` timed."""
    columns = [*FIELDS, "rule", "time_ms", "samples_ms", "software"]
    records = [record for record in pq.read_table(path, columns=columns).to_pylist() if record["samples_ms"]]
    by_rule: dict[str, dict[ConvProblem, float]] = {}
    for record in records:
        problem = ConvProblem(*(record[name] for name in FIELDS))
        by_rule.setdefault(record["rule"], {})[problem] = record["time_ms"]
    default, heuristic = by_rule[peers.DEFAULT], by_rule[HEURISTIC]
    both = [problem for problem in default if problem in heuristic and not has_kernel_of_pytorch(problem)]
    near = [abs(np.log(default[problem] / heuristic[problem])) <= np.log1p(NEAR) for problem in both]
    return Beside(
        n_problems=len(both),
        share=float(np.mean(near)),
        default_ms=_by_key(default),
        tuned_ms=_by_key(by_rule[peers.TUNED]),
        software=records[-1]["software"],
    )


def _by_key(times_ms: Mapping[ConvProblem, float]) -> dict[str, float]:
    return {problem.key: float(f"{time_ms:.5g}") for problem, time_ms in times_ms.items()}


def beside_engines(device_id: str, tuned_ms: Mapping[str, float]) -> Tuned:
    """Compare PyTorch's times with ``cudnn.benchmark`` to those of the fastest of cuDNN's measured engines."""
    problems = [problem for key in tuned_ms if not has_kernel_of_pytorch(problem := problem_of(key))]
    engines = [name for name in ShippedTable(TIMINGS / f"{device_id}{SUFFIX}").card.variants if name.startswith(ENGINE)]
    times = _times(device_id, problems, engines)
    is_known = np.isfinite(times).any(axis=1)
    took = np.array([tuned_ms[problem.key] for problem in problems])
    ratios = np.log(took[is_known] / np.nanmin(times[is_known], axis=1))
    return Tuned(len(ratios), float(np.mean(np.abs(ratios) <= np.log1p(NEAR))), float(np.exp(np.mean(ratios))))


if __name__ == "__main__":
    sys.exit(main())
