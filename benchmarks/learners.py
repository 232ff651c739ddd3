"""What each part of the learning buys: the size of a tree against its regret, learned with the part and without.

Every recipe grows one scikit-learn tree for each of some dtypes and layouts, on the shipped measurements of layers
without groups, and is judged on two sets that it has not seen: the networks that teach no tree, and one in five of the
other layers. A tree grown best split first holds all smaller ones, so one training gives the whole curve. A row's CPU
time is that of one training and its scores, dtypes and layouts together, and of the teacher where it is the first to
ask one. Needs no GPU; some minutes of one core.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from benchmarks.measured import attempts_of
from benchmarks.options import say
from benchmarks.plots.pages import number, percent, table
from conv_advisor.data.measurement import Device
from conv_advisor.data.networks import held_out_layers
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.shipped import TIMINGS
from conv_advisor.data.table import problem_of, sizes_of
from conv_advisor.kernels.cuda.forecast import forecast
from conv_advisor.models.costs import Costs, device_of, from_table, roofline_ms
from conv_advisor.models.evaluation import judging
from conv_advisor.models.evaluation.judging import even_weights, judge
from conv_advisor.models.ranking.trust import WITHIN
from conv_advisor.models.retraining.challenge import hold_out
from conv_advisor.models.training.graft import mean_by
from conv_advisor.models.training.grow import decided, roofline_of
from conv_advisor.models.training.hints import hints
from conv_advisor.models.training.made_up import sample_like
from conv_advisor.models.training.options import Options
from conv_advisor.models.training.teacher import Lesson, Teacher, lesson_of, orders_of
from conv_advisor.models.training.train import training_set
from conv_advisor.models.tree.features import FEATURES, Kind, Quantities, code_of

KINDS: Final = ((DType.TF32, Layout.NCHW), (DType.FLOAT16, Layout.NHWC))
"""Where decision 4 compares recipes: there trees are the furthest behind their teachers."""

LEAVES: Final = (30, 100, 300, 600, 1000, 3000)
"""How many leaves a tree of one dtype and layout may grow."""

ALL_TREES: Final = 9
"""Times the leaves of one dtype and layout that a whole tree has: half precisions share theirs, groups have half."""

ASKED: Final = ("log2_h", "log2_n", "log2_r", "log2_k", "log2_c")
"""Input size, batch, filter, filters and depth; each precision has a tree of its own."""

Score = tuple[float, float, float, float]
"""Geometric mean, 95th percentile and worst of the slowdown, and the share that is over `WITHIN` behind."""


@dataclass(frozen=True)
class Recipe:
    """One way to learn.

    Parameters
    ----------
    name : str
    sees : str
        What the tree looks at: ``asked``, ``features``, or ``plans``, which are features and what our kernels' own
        plans expect.
    n_made_up : int
        Layers that a teacher labels; 0: the tree learns from the measured layers alone.
    teacher_sees : str
    is_boosted : bool
        Whether boosted trees have a part in the teacher, beside randomised ones.
    target : str
        What splits tell apart: ``decisions``, as in training, or ``time``, the log of each contender's time over the
        roofline.
    """

    name: str
    sees: str = "features"
    n_made_up: int = 0
    teacher_sees: str = "plans"
    is_boosted: bool = False
    target: str = "decisions"


RECIPES: Final = (
    Recipe("exactly what was asked for: size, batch, filter, filters, depth", sees="asked"),
    Recipe("features, times over the roofline as targets", target="time"),
    Recipe("features"),
    Recipe("features and plans", sees="plans"),
    Recipe("features, taught 20,000 layers by trees that see features", n_made_up=20_000, teacher_sees="features"),
    Recipe("features, taught 20,000 layers", n_made_up=20_000),
    Recipe("features, taught 80,000 layers", n_made_up=80_000),
    Recipe("features, taught 80,000 layers by boosted trees too", n_made_up=80_000, is_boosted=True),
    Recipe("features and plans, taught 80,000 layers", sees="plans", n_made_up=80_000),
)
TEACHERS: Final = (
    Recipe("trees that see features", teacher_sees="features"),
    Recipe("trees that see features and plans"),
    Recipe("boosted trees too", is_boosted=True),
)
"""The teachers of the recipes, which are judged themselves."""


class Ground:
    """The layers of one dtype and layout: those to learn from, and the two sets that judge.

    Parameters
    ----------
    costs : Costs
        All that was measured on the device.
    device : Device
    kind : (DType, Layout)
    """

    def __init__(self, costs: Costs, device: Device, kind: Kind) -> None:
        never = held_out_layers()
        mine = costs.where(lambda problem: (problem.dtype, problem.layout) == kind and problem.groups == 1)
        known, other = hold_out(mine)
        self.kind, self.device, self.known = kind, device, training_set(known)
        self.judges = mine.where(lambda problem: problem.layer in never), other
        self.roofline = roofline_of(self.known)
        roofline = self.roofline.tolist()
        self.log_roofline = np.log([roofline_ms(problem, roofline) for problem in self.known.problems])
        self.lesson = lesson_of(self.known, self.log_roofline)
        self._teachers: dict[tuple[str, bool], Teacher] = {}

    def look(self, problems: Sequence[ConvProblem], sees: str) -> np.ndarray:
        """What a tree or a teacher sees of problems, float32 array of shape (n, columns)."""
        sizes = sizes_of(problems)
        quantities = Quantities(sizes, *code_of(*self.kind))
        x = quantities.features()
        if sees == "asked":
            return x[:, [FEATURES.index(name) for name in ASKED]]
        if sees != "plans":
            return x
        return np.concatenate([x, hints(quantities, self.roofline, forecast(sizes, *self.kind, self.device))], 1)

    @cached_property
    def made_up(self) -> list[ConvProblem]:
        """As many layers as any recipe labels; a recipe that labels fewer takes the first of them."""
        most = max(recipe.n_made_up for recipe in RECIPES)
        sizes = sample_like(self.known.problems, most, np.random.default_rng(0))
        return [problem_of(row, *self.kind) for row in sizes.tolist()]

    def label(self, problems: Sequence[ConvProblem], recipe: Recipe, options: Options) -> Lesson:
        """What the teacher of a recipe believes of problems; a teacher that was asked before is not trained again."""
        how = recipe.teacher_sees, recipe.is_boosted
        if how not in self._teachers:
            its_options = options if recipe.is_boosted else replace(options, n_rounds=0)
            x = self.look(self.known.problems, recipe.teacher_sees)
            self._teachers[how] = Teacher(self.known, x, self.log_roofline, 0, its_options)
        return self._teachers[how].label(self.look(problems, recipe.teacher_sees))


def main(arguments: Sequence[str] | None = None) -> int:
    """Learn, judge and print; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learners", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="nvidia-h200")
    parser.add_argument("--trees", type=int, default=40, help="of a teacher (default 40)")
    chosen = parser.parse_args(arguments)
    attempts = attempts_of(TIMINGS / chosen.device)
    costs, device = from_table(attempts, chosen.device), device_of(attempts, chosen.device)
    grounds = [Ground(costs, device, kind) for kind in KINDS]
    print(report(grounds, RECIPES, Options(n_trees=chosen.trees)))
    return 0


def report(grounds: Sequence[Ground], recipes: Sequence[Recipe], options: Options) -> str:
    """A row a recipe and size, and one for the teacher itself, which is no tree; the mean over the grounds."""
    rows = []
    for recipe in TEACHERS:
        began = time.process_time()
        scores = [
            [score(part, ground.label(part.problems, recipe, options)) for part in ground.judges] for ground in grounds
        ]
        rows.append(_row(f"(no tree: {recipe.name})", None, grounds, scores, began))
        say(rows[-1][0])
    for recipe in recipes:
        began = time.process_time()
        curves = [dict(curve(ground, recipe, options)) for ground in grounds]
        rows += [
            _row(recipe.name, n_leaves, grounds, [points[n_leaves] for points in curves], began)
            for n_leaves in LEAVES
            if all(n_leaves in points for points in curves)
        ]
        say(recipe.name)
    head = ("the tree sees", "leaves of each", "MB of all", "networks", "other layers", "CPU s")
    return table(head, rows)


def curve(ground: Ground, recipe: Recipe, options: Options) -> Iterator[tuple[int, list[Score]]]:
    """Grow one tree, and score its first splits on both judges, by how many leaves those make."""
    from sklearn.tree import DecisionTreeRegressor

    x, lesson, weight = _lesson(ground, recipe, options)
    decisions, log_slowdown = decided(lesson)
    if recipe.target == "time":
        decisions = log_slowdown[:, lesson.contenders] + lesson.log_best[:, None]
    tree = DecisionTreeRegressor(max_leaf_nodes=LEAVES[-1], min_samples_leaf=options.min_samples_leaf, random_state=0)
    tree.fit(x, decisions, sample_weight=weight)
    leaf = tree.apply(x)
    judged = [tree.apply(ground.look(part.problems, recipe.sees)) for part in ground.judges]
    for n_leaves in (count for count in LEAVES if 2 * count - 1 <= tree.tree_.node_count):
        at, row = np.unique(shortened(tree.tree_, leaf, n_leaves), return_inverse=True)
        means = [mean_by(row, values, weight) for values in (log_slowdown, lesson.support)]
        scores = []
        for part, leaves in zip(ground.judges, judged, strict=True):
            place = np.searchsorted(at, shortened(tree.tree_, leaves, n_leaves))
            slowdown, support = (values[place] for values in means)
            none = np.empty((len(place), 0), np.float32)
            scores.append(score(part, Lesson([], none, slowdown, support, none, np.empty(0))))
        yield n_leaves, scores


def shortened(tree: Any, leaf: np.ndarray, n_leaves: int) -> np.ndarray:
    """The nodes where rows end in the tree of so many leaves that this tree was while it grew, best split first."""
    parent = np.zeros(tree.node_count, np.int64)
    for children in (tree.children_left, tree.children_right):
        inner = np.flatnonzero(children >= 0)
        parent[children[inner]] = inner
    node = leaf.copy()
    while (is_later := node >= 2 * n_leaves - 1).any():
        node[is_later] = parent[node[is_later]]
    return node


def score(costs: Costs, lesson: Lesson) -> Score:
    """What the choices of a lesson cost; a refused choice leaves its place to the next.

    Every dtype and layout counts the same.
    """
    orders = dict(zip(costs.problems, orders_of(lesson, costs.variants), strict=True))
    results = [result for result in judge(costs, orders.__getitem__) if result.is_timed]
    weights = even_weights([result.problem for result in results])
    summary = judging.Score.of(results, weights)
    is_over = [result.slowdown > 1 + WITHIN for result in results]
    return summary.geometric_mean, summary.p95, summary.worst, float(np.average(is_over, weights=weights))


def told(of: Sequence[float]) -> str:
    """A score in a table."""
    mean, p95, worst, share_over = of
    return f"{number(mean, 3)} · {number(p95)} · {number(worst, 1)} · {percent(share_over)}"


def ranking_bytes(n_variants: int) -> int:
    """Bytes of a leaf with a ranking: two nodes, a roofline and a spread, and a byte a variant for each of three."""
    return 2 * 9 + 16 + 3 * n_variants


def _lesson(ground: Ground, recipe: Recipe, options: Options) -> tuple[np.ndarray, Lesson, np.ndarray]:
    """What a tree is grown on: what it sees of each layer, what is believed of the layer, and the layer's weight."""
    x = ground.look(ground.known.problems, recipe.sees)
    if not recipe.n_made_up:
        return x, ground.lesson, np.ones(len(x))
    made_up = ground.made_up[: recipe.n_made_up]
    labelled = ground.label(made_up, recipe, options)
    weight = np.repeat([options.measured_weight, 1.0], [len(x), len(made_up)])
    return np.concatenate([x, ground.look(made_up, recipe.sees)]), ground.lesson.then(labelled), weight


def _row(
    name: str, n_leaves: int | None, grounds: Sequence[Ground], scores: Sequence[list[Score]], began: float
) -> tuple[str, ...]:
    n_bytes = ranking_bytes(len(grounds[0].known.variants))
    size = (f"{n_leaves:,}", number(ALL_TREES * n_leaves * n_bytes / 1e6, 1)) if n_leaves else ("-", "-")
    return name, *size, *(told(mean) for mean in np.mean(scores, axis=0)), f"{time.process_time() - began:.0f}"


if __name__ == "__main__":
    sys.exit(main())
