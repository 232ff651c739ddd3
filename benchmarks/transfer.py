"""How good a tree is on another GPU, as it is borrowed and adapted to some layers measured there.

``python -m benchmarks.transfer --device h100`` takes what ships of a GPU, holds back half of its layers, adapts the
tree that it borrows to some problems of the others by the first of their rankings, as ``conv-advisor calibrate`` does,
and prints what the choices cost on the layers held back. The other way round, a tree of the H100's seeds, which does
not ship: ``conv-advisor train --device h100 --output tree``, then ``--device h200 --lender tree --networks seeds``.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.networks import problems as problems_of
from conv_advisor.data.records import Records
from conv_advisor.models.adapting.adapt import adapted
from conv_advisor.models.adapting.correction import Fit
from conv_advisor.models.adapting.least_sure import FIRST
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import Costs, from_table, split
from conv_advisor.models.evaluation.judging import Score, TimeError, judge, time_errors
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.tree.file import TreeModel, read

_LINE = "{:>8}  {:>8}  {:>6}  {:>6}  {:>6}  {:>9}  {:>9}"


def main() -> None:
    """Print a table: problems measured, and what the choices cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="h100", help="whose measurements ship (default h100)")
    parser.add_argument("--lender", default="nvidia-h200", help="device whose tree ships, or the folder of a tree")
    parser.add_argument("--networks", help="judge by the layers of this network or group alone, such as seeds")
    parser.add_argument("--counts", default="0,50,200,1000", help="problems to adapt to, or all there are")
    parser.add_argument("--draws", type=int, default=5, help="random draws of layers held back, over which scores go")
    parser.add_argument("--first", type=int, default=FIRST, help="variants of each ranking that are measured")
    chosen = parser.parse_args()
    records = Records()
    device = records.device(chosen.device)
    folder = SHIPPED / chosen.lender if (SHIPPED / chosen.lender).is_dir() else Path(chosen.lender)
    costs, lender = from_table(records.table(device.id), device.id), read(folder)
    if chosen.networks:
        layers = {problem.layer for problem in problems_of(chosen.networks)}
        costs = costs.take([row for row, problem in enumerate(costs.problems) if problem.layer in layers])
    beside = from_table(records.table(lender.device.id), lender.device.id)
    sys.stdout.write(f"{len(costs.problems)} problems of {device.name}; the tree of {lender.device.name}\n")
    sys.stdout.write(_LINE.format("measured", "problems", "mean", "p95", "worst", "times off", "p90") + "\n")
    for count in map(int, chosen.counts.split(",")):
        results, errors = [], []
        for seed in range(chosen.draws):
            known, unseen = held_back(costs, seed)
            advisor = adapted_to(lender, device, drawn(known, count, seed), beside, chosen.first)
            results += [result for result in judge(unseen, advisor.predict_order) if result.is_timed]
            errors += [error for _, error in time_errors(unseen, advisor)]
        score, error = Score.of(results), TimeError.of(errors)
        scores = (f"{score.geometric_mean:.4f}", f"{score.p95:.3f}", f"{score.worst:.2f}")
        shares = (f"{error.median:.1%}", f"{error.p90:.1%}")
        sys.stdout.write(_LINE.format(count, score.n_problems, *scores, *shares) + "\n")
        sys.stdout.flush()


def held_back(costs: Costs, seed: int) -> tuple[Costs, Costs]:
    """Half of the layers to adapt by, and the other half."""
    layers = sorted({problem.layer for problem in costs.problems}, key=lambda layer: layer.key)
    return split(costs, set(random.Random(seed).sample(layers, len(layers) // 2)))  # noqa: S311 - no secret


def drawn(costs: Costs, count: int, seed: int) -> Costs:
    """So many of the problems, at random."""
    count = min(count, len(costs.problems))
    return costs.take(sorted(random.Random(seed).sample(range(len(costs.problems)), count)))  # noqa: S311 - no secret


def adapted_to(lender: TreeModel, device: Device, costs: Costs, beside: Costs, first: int) -> Advisor:
    """The advisor of a tree that knows the first of each ranking; of the borrowed tree where nothing is known."""
    borrowed = Advisor(lender, device)
    if not costs.problems:
        return borrowed
    time_ms, column = np.full(costs.time_ms.shape, np.nan), {name: place for place, name in enumerate(costs.variants)}
    for row, problem in enumerate(costs.problems):
        places = [column[name] for name in borrowed.predict_order(problem) if name in column]
        ran = [place for place in places if np.isfinite(costs.time_ms[row, place])][:first]
        time_ms[row, ran] = costs.time_ms[row, ran]
    return Advisor(adapted(Fit(lender, device, replace(costs, time_ms=time_ms), beside)))


if __name__ == "__main__":
    main()
