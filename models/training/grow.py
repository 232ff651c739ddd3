"""The trees of a device: from a teacher's lessons, one for each dtype and layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.forecast import PLANNED_AS, forecast
from conv_advisor.models.costs import Costs, roofline_ms
from conv_advisor.models.training.allot import allot, leaf_nodes
from conv_advisor.models.training.enough import MIN_PROBLEMS
from conv_advisor.models.training.graft import Group, hang, mean_by, nodes_of
from conv_advisor.models.training.hints import hint_matrix, hints
from conv_advisor.models.training.made_up import sample_like
from conv_advisor.models.training.options import Options
from conv_advisor.models.training.teacher import (
    CAP,
    CONTENDER_LOG_SLOWDOWN,
    STEEPNESS,
    Lesson,
    Teacher,
    orders_of,
    unseen_error,
)
from conv_advisor.models.training.threads import Each
from conv_advisor.models.tree.arrays import LEAF, RANKING, Arrays
from conv_advisor.models.tree.features import Kind, Quantities, code_of, feature_matrix, kinds_of

_MOST_SAMPLED: Final = 20
"""Made-up problems to one measured: a teacher of few layers knows no more than that."""

GROUPED_SHARE: Final = 0.5
"""Leaves and made-up problems of grouped layers, against those of the others.

On 345 held-out problems of several channels a group the tree was at 1.079 with a quarter and at 1.070 with a half,
where its teacher was at 1.051.
"""

_MOST_TIMES: Final = 2
"""A tree of one dtype and layout may keep this many times as many leaves as they have in the mean."""

_FAR: Final = 0.5
"""Log slowdown from which the saturated cost says less than the randomised trees."""

_DECISIVENESS: Final = 16.0
"""How fast it saturates what a choice costs, in choosing splits: the teacher's cost is smooth, a choice is not."""

_LEAST_SHARE: Final = 0.002
"""Share of the rows in which a variant is nearly the best, for the splits to heed it."""

Maps = tuple[Each, Each]
"""A `map` on threads, and one in processes."""

Orders = dict[ConvProblem, tuple[str, ...]]
"""The variants of each problem that are likely to run, those believed to be fastest first."""


def grow_all(
    costs: Costs, device: Device, asked: Sequence[ConvProblem], seed: int, options: Options, maps: Maps
) -> tuple[dict[Group, Arrays], Orders]:
    """One tree for each dtype and layout, and one more for its grouped layers; and how the teachers rank what is asked.

    Both half precisions have one on layers without groups: where a layer was measured in both, kernels take as long in
    either. Grouped layers are few, and other variants win on them, by far: a tree of all layers takes no heed of them.
    They have a teacher and trees of their own, unless they are too few for that, one for each half precision: engines
    of cuDNN that win in float16 do not run in bfloat16.
    """
    costs = replace(costs, problems=tuple(_as_planned(problem) for problem in costs.problems))
    trees, orders = _grow_apart(costs, device, [_as_planned(problem) for problem in asked], seed, options, maps)
    return trees, {problem: orders[_as_planned(problem)] for problem in asked}


def _as_planned(problem: ConvProblem) -> ConvProblem:
    """The same problem, a bfloat16 one without groups in float16."""
    dtype = PLANNED_AS[problem.dtype]
    return problem if problem.groups > 1 or problem.dtype is dtype else replace(problem, dtype=dtype)


def _grow_apart(
    costs: Costs, device: Device, asked: Sequence[ConvProblem], seed: int, options: Options, maps: Maps
) -> tuple[dict[Group, Arrays], Orders]:
    """The trees of layers with groups, and of those without."""
    is_grouped = np.array([problem.groups > 1 for problem in costs.problems])
    parts = [costs.take(np.flatnonzero(mask)) for mask in (~is_grouped, is_grouped)]
    if min(len(part.problems) for part in parts) < MIN_PROBLEMS:
        trees, orders = _grow_part(costs, device, asked, seed, options, maps)
        return {(*kind, False): tree for kind, tree in trees.items()}, orders
    share = replace(
        options,
        n_sampled=round(options.n_sampled * GROUPED_SHARE),
        max_leaves=max(2, round(options.max_leaves * GROUPED_SHARE)),
    )
    all_trees: dict[Group, Arrays] = {}
    orders = {}
    for has_groups, part, its_options in zip((False, True), parts, (options, share), strict=True):
        its_problems = [problem for problem in asked if (problem.groups > 1) is has_groups]
        trees, its_orders = _grow_part(part, device, its_problems, seed, its_options, maps)
        all_trees |= {(*kind, has_groups): tree for kind, tree in trees.items()}
        orders |= its_orders
    return all_trees, orders


def _grow_part(
    costs: Costs, device: Device, asked: Sequence[ConvProblem], seed: int, options: Options, maps: Maps
) -> tuple[dict[Kind, Arrays], Orders]:
    """One tree for each dtype and layout, all from one teacher; and how that ranks what is asked."""
    thread_map, process_map = maps
    kinds = kinds_of(costs.problems)
    rooflines = {kind: roofline_of(costs.take(rows)) for kind, rows in kinds.items()}
    log_roofline = np.log(
        [roofline_ms(problem, rooflines[problem.dtype, problem.layout].tolist()) for problem in costs.problems]
    )
    x = feature_matrix(costs.problems)
    n_sampled = min(options.n_sampled, _MOST_SAMPLED * len(costs.problems))
    sampled = sample_like(costs.problems, n_sampled, np.random.default_rng(seed))
    shapes, n_equal = np.unique(sampled, axis=0, return_counts=True)
    forecasts = process_map(forecast, repeat(shapes), *zip(*kinds, strict=True), repeat(device))  # meanwhile
    off = unseen_error(costs, x, seed, options, thread_map)
    seen = _seen(x, hint_matrix(costs.problems, rooflines, device))
    teacher = Teacher(costs, seen, log_roofline, seed, options, *maps)
    expected = dict(zip(kinds, forecasts, strict=True))

    def grow(kind: Kind) -> _Grown:
        rows, quantities = kinds[kind], Quantities(shapes, *code_of(*kind))
        made_up = quantities.features()
        labelled = teacher.label(_seen(made_up, hints(quantities, rooflines[kind], expected[kind])))
        lesson = teacher.measured.take(rows).then(labelled)
        weight = np.append(np.full(len(rows), options.measured_weight), n_equal)
        return _Grown.of(np.concatenate([x[rows], made_up]), lesson, weight, seed, options)

    all_grown = list(thread_map(grow, kinds))
    counts = allot([grown.tree for grown in all_grown], options.max_leaves * len(kinds))
    trees = dict(zip(kinds, process_map(_Grown.arrays, all_grown, counts, repeat(seed), repeat(options)), strict=True))
    for kind, tree in trees.items():
        tree["spread"] = np.hypot(tree["spread"], _root_mean_square(off[kinds[kind]], off)).astype(np.float32)
        tree["roofline"] = np.tile(rooflines[kind], (len(tree["log_best"]), 1))
    believed = teacher.label(_seen(feature_matrix(asked), hint_matrix(asked, rooflines, device)))
    return trees, dict(zip(asked, orders_of(believed, costs.variants), strict=True))


def _root_mean_square(errors: np.ndarray, of_all: np.ndarray) -> float:
    """The root mean square of the errors that are known, or of all where none of these is."""
    known = errors[~np.isnan(errors)]
    return math.sqrt(np.nanmean((known if len(known) else of_all) ** 2))


def _seen(features: np.ndarray, hinted: np.ndarray) -> np.ndarray:
    """What a teacher looks at; a tree sees the features alone."""
    return np.concatenate([features, hinted], axis=1)


def roofline_of(costs: Costs) -> np.ndarray:
    """The most flops a ms and bytes a ms, and the least ms, that any variant reached."""
    best_ms = costs.best_ms
    flops, moved = (np.array([getattr(problem, name) for problem in costs.problems]) for name in ("flops", "bytes"))
    return np.array([(flops / best_ms).max(), (moved / best_ms).max(), best_ms.min()], dtype=np.float32)


@dataclass(frozen=True)
class _Grown:
    """One scikit-learn tree, grown further than it may stay, on the rows of a lesson."""

    x: np.ndarray
    lesson: Lesson
    weight: np.ndarray
    tree: Any

    @classmethod
    def of(cls, x: np.ndarray, lesson: Lesson, weight: np.ndarray, seed: int, options: Options) -> _Grown:
        """Grow it."""
        from sklearn.tree import DecisionTreeRegressor

        decisions, log_slowdown = decided(lesson)
        lesson = replace(lesson, log_slowdown=log_slowdown)
        tree = DecisionTreeRegressor(
            max_leaf_nodes=_MOST_TIMES * options.max_leaves,
            min_samples_leaf=options.min_samples_leaf,
            random_state=seed,
        )
        targets = np.concatenate([decisions, options.best_weight * lesson.log_best[:, None]], axis=1)
        return cls(x, lesson, weight, tree.fit(x, targets, sample_weight=weight))

    def arrays(self, n_leaves: int, seed: int, options: Options) -> Arrays:
        """Its first splits, up to so many leaves, and what these predict."""
        x, lesson, weight = self.x, self.lesson, self.weight
        arrays = nodes_of(self.tree, n_leaves)
        leaf = arrays["place"][leaf_nodes(self.tree, x, n_leaves)]
        leaves = {"log_slowdown": lesson.log_slowdown, "support": lesson.support, "workspace": lesson.workspace}
        mean = {name: mean_by(leaf, values, weight) for name, values in leaves.items()}
        mean["spread"] = _spread_of_best(lesson.log_slowdown, mean["log_slowdown"], leaf, weight)
        # A leaf keeps the mean time of each row's best. Most often that is the variant that is best in the mean, whose
        # mean slowdown, not quite 1, would make its predicted time too long.
        mean["log_slowdown"] -= mean["log_slowdown"].min(axis=1, keepdims=True)
        mean["workspace"] = np.exp2(mean["workspace"]) - 1
        mean["support"] = np.clip(mean["support"], 0, 1)
        arrays, origin, leaf = _split_for_time(arrays, leaf, x, lesson.log_best, weight, seed, options)
        mean["spread"] = mean["spread"][origin]
        mean["log_best"] = mean_by(leaf, lesson.log_best[:, None], weight)[:, 0]
        leaf_means = {name: values.astype(np.float32) for name, values in mean.items()}
        return arrays | leaf_means | {RANKING: origin}


def _spread_of_best(log_slowdown: np.ndarray, mean: np.ndarray, leaf: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Standard deviation over the rows of each leaf of the log slowdown of the variant with the best mean."""
    best = mean.argmin(axis=1)
    off = log_slowdown[np.arange(len(leaf)), best[leaf]] - mean.min(axis=1)[leaf]
    spread: np.ndarray = np.sqrt(mean_by(leaf, off[:, None] ** 2, weight)[:, 0])
    return spread


def decided(lesson: Lesson) -> tuple[np.ndarray, np.ndarray]:
    """What the splits tell apart of a lesson's rows, and the log slowdowns that the leaves keep the mean of.

    Near the best a contender's slowdown follows from its cost, further behind from what the randomised trees learned.

    Returns
    -------
    decisions : float64 array of shape (n, n_deciding)
    log_slowdown : float32 array of shape (n, V)
    """
    cost, log_slowdown = lesson.cost.astype(np.float64), lesson.log_slowdown.copy()
    near = np.minimum(-np.log1p(-np.minimum(cost, 1 - 1e-9)) / STEEPNESS, CAP)
    far = np.maximum(_FAR, log_slowdown[:, lesson.contenders])
    log_slowdown[:, lesson.contenders] = np.where(near < _FAR, near, far)
    return _decisions(near), log_slowdown


def _decisions(near: np.ndarray) -> np.ndarray:
    """What the splits of a tree tell apart: how far each variant is behind the best of its row, steeply saturated.

    A slowdown that all variants of a row share cancels. A variant that is nowhere near the best of these rows has no
    part in any decision.
    """
    behind = near - near.min(axis=1, keepdims=True)
    decides = (behind < CONTENDER_LOG_SLOWDOWN).mean(axis=0) > _LEAST_SHARE
    decisions: np.ndarray = 1 - np.exp(-_DECISIVENESS * behind[:, decides])
    return decisions


def _split_for_time(
    nodes: Arrays,
    leaf: np.ndarray,
    x: np.ndarray,
    log_best: np.ndarray,
    weight: np.ndarray,
    seed: int,
    options: Options,
) -> tuple[Arrays, np.ndarray, np.ndarray]:
    """Grow the tree on where the best time varies within a leaf, which keeps its ranking.

    Returns
    -------
    nodes : Arrays
    origin : int32 array
        The leaf that each new leaf was a part of.
    leaf : int array of shape (n,)
        New leaf of each row.
    """
    from sklearn import config_context
    from sklearn.tree import DecisionTreeRegressor

    parts, origin, moved = [{name: values.copy() for name, values in nodes.items()}], [], np.empty_like(leaf)
    n_nodes, n_leaves = len(nodes["feature"]), 0
    least_gain = options.least_gain * weight.sum()
    rows_of = np.split(np.argsort(leaf, kind="stable"), np.cumsum(np.bincount(leaf))[:-1])
    for place, (node, rows) in enumerate(zip(np.flatnonzero(nodes["feature"] == LEAF), rows_of, strict=True)):
        tree = DecisionTreeRegressor(
            min_impurity_decrease=least_gain / weight[rows].sum(),
            min_samples_leaf=options.min_samples_leaf,
            random_state=seed,
        )
        seen = x[rows]
        with config_context(skip_parameter_validation=True):  # checks take as long as growing so small a tree
            tree.fit(seen, log_best[rows, None], sample_weight=weight[rows], check_input=False)
        below = nodes_of(tree)
        moved[rows] = n_leaves + below["place"][tree.tree_.apply(seen)]
        hang(parts, int(node), below, n_nodes, n_leaves)
        grown = int((below["feature"] == LEAF).sum())
        origin += [place] * grown
        n_nodes, n_leaves = n_nodes + len(below["feature"]) - 1, n_leaves + grown
    joined = {name: np.concatenate([part[name] for part in parts]) for name in nodes}
    return joined, np.array(origin, np.int32), moved
