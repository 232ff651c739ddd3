"""Which layers to measure next: those of a list on which trees that saw different measurements disagree.

    python -m benchmarks.unsure --candidates zoo.txt --count 500 > unsure.txt
    conv-advisor sweep --networks "" --problems unsure.txt --no-picks ...

Randomised trees are trained on the measurements that ship, each on a bootstrap sample. What the choice of their mean
costs in the eyes of each, against that tree's own choice, is the regret that they expect; it is drawn from the layers
that expect most. Beside the candidates of files, in every batch, dtype and layout, layers are made up that are like the
measured ones (`models.training.made_up.sample_like`). Needs no GPU; about a minute.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from conv_advisor.data.errors import InvalidProblem
from conv_advisor.data.packing import attempts_in
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.problem_file import read_problems
from conv_advisor.data.shipped import TIMINGS
from conv_advisor.data.table import problem_of
from conv_advisor.models.costs import Costs, from_table
from conv_advisor.models.training.made_up import sample_like
from conv_advisor.models.training.teacher import CAP, saturate
from conv_advisor.models.training.train import training_set
from conv_advisor.models.tree.features import feature_matrix

BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_FLOPS: Final = 6e11
MOST_BYTES: Final = 8e8
TREES: Final = 30
UNSURE_SHARE: Final = 0.3
"""The share of a dtype's and layout's candidates, those that expect most regret, from which the list is drawn."""
MIN_NEAR: Final = 0.002
"""Variants that are near the best on fewer of the problems than this share have no part in the regret."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line a problem: layer, dtype and layout."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.unsure", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="nvidia-h200", help="whose measurements")
    parser.add_argument("--candidates", type=Path, action="append", default=[], metavar="FILE", help="lines of layers")
    parser.add_argument("--made-up", type=int, default=5000, help="made-up layers a dtype and layout (default 5000)")
    parser.add_argument("--count", type=int, default=100, help="problems a dtype and layout (default 100)")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    costs = training_set(from_table(attempts_in(TIMINGS / chosen.device), chosen.device))
    layers = [problem for path in chosen.candidates for problem in read_problems(path, [DType.FLOAT32], [Layout.NCHW])]
    for problem in unsure(costs, layers, chosen.made_up, chosen.count, chosen.seed):
        print(problem.short, problem.dtype, problem.layout)
    return 0


def unsure(
    costs: Costs, layers: Sequence[ConvProblem], made_up: int, count: int, seed: int, trees: int = TREES
) -> list[ConvProblem]:
    """Draw so many problems of each measured dtype and layout from those that expect most regret.

    Parameters
    ----------
    costs : Costs
        What was measured; its problems are not drawn again.
    layers : sequence of ConvProblem
        Candidates, each in a random batch.
    made_up, count, seed, trees : int
    """
    rng, chance, known = np.random.default_rng(seed), random.Random(seed), set(costs.problems)  # noqa: S311 - no secret
    drawn: list[ConvProblem] = []
    kinds = sorted({(problem.dtype, problem.layout) for problem in costs.problems})
    pools = []
    for dtype, layout in kinds:
        like = [problem for problem in costs.problems if (problem.dtype, problem.layout) == (dtype, layout)]
        pool = [problem_of(row, dtype, layout) for row in sample_like(like, made_up, rng).tolist()]
        for layer in layers:
            try:
                pool.append(replace(layer, n=chance.choice(BATCHES), dtype=dtype, layout=layout))
            except InvalidProblem:  # too large in that batch
                continue
        fitting = (problem for problem in pool if problem.flops <= MOST_FLOPS and problem.bytes <= MOST_BYTES)
        pools.append([problem for problem in dict.fromkeys(fitting) if problem not in known])
    regret = iter(expected_regret(costs, [problem for pool in pools for problem in pool], seed, trees).tolist())
    for pool in pools:
        ranked = sorted(pool, key=dict(zip(pool, regret, strict=False)).__getitem__, reverse=True)
        most = ranked[: max(count, round(UNSURE_SHARE * len(ranked)))]
        drawn += chance.sample(most, min(count, len(most)))
    chance.shuffle(drawn)
    return drawn


def expected_regret(costs: Costs, problems: Sequence[ConvProblem], seed: int, trees: int = TREES) -> np.ndarray:
    """What trees expect the choice of their mean to cost over their own, as a saturated slowdown, by problem."""
    from sklearn.tree import ExtraTreeRegressor

    slowdown = np.nan_to_num(costs.log_slowdown(CAP), nan=CAP)
    near = (slowdown <= np.log(1.25)).mean(axis=0) >= MIN_NEAR
    x, y, x_new = feature_matrix(costs.problems), saturate(slowdown[:, near]), feature_matrix(problems)
    believed = []
    for tree in range(trees):
        rows = np.random.default_rng(seed + tree).integers(0, len(x), len(x))
        fitted = ExtraTreeRegressor(max_features=0.5, random_state=seed + tree).fit(x[rows], y[rows])
        believed.append(fitted.predict(x_new).reshape(len(x_new), -1).astype(np.float32))
    choice = np.mean(believed, axis=0).argmin(axis=1)
    every_row = np.arange(len(x_new))
    regret: np.ndarray = np.mean([cost[every_row, choice] - cost.min(axis=1) for cost in believed], axis=0)
    return regret


if __name__ == "__main__":
    sys.exit(main())
