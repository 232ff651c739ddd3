"""A tree made to fit another GPU by a few layers measured there: every time it says, by a correction learned from them.

A correction is the mean log of measured time to what was borrowed: of all variants, then of a family, then of a
variant, at the root of the tree and again at each node on the way to a leaf, and each shrunk towards what the node
above says by how many problems it rests on. So what was measured decides near the layers measured, and what is
published of both GPUs where nothing was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from math import log
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from conv_advisor.data import networks
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import NotEnoughData
from conv_advisor.data.measurement import Device, Outcome
from conv_advisor.data.networks import held_out_layers
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.models.advisor import Advisor
from conv_advisor.models.costs import REFUSALS, Costs, roofline_ms, split
from conv_advisor.models.domain import GROUPS
from conv_advisor.models.endings import CARD as ENDINGS
from conv_advisor.models.endings import lent_endings
from conv_advisor.models.enough import held_out_of
from conv_advisor.models.features import features
from conv_advisor.models.gate import objections
from conv_advisor.models.judging import Result, Score, comparable, judge, quantile, time_errors
from conv_advisor.models.loan import Loan
from conv_advisor.models.tree_arrays import DOMAIN, LEAF, RANKING, RANKING_ARRAYS, Arrays
from conv_advisor.models.tree_file import TreeModel, make, path_nodes

if TYPE_CHECKING:
    from conv_advisor.data.summary import Summary

LEAST_PROBLEMS: Final = 20
"""Fewer measured problems adapt nothing."""
LEAST_JUDGED: Final = 5
"""Problems held back from adapting, fewer of which say nothing of what it gains."""
LEAST_LAYERS: Final = 3
"""Measured layers of a dtype and layout below which the tree abstains there."""
_SHRINKS: Final = (8.0, 32.0, 128.0, 1e6)
"""What is tried; by the last one what is measured says next to nothing."""
_LEAST_OF_NODE: Final = 3
"""Problems that pass a node, fewer of which change nothing below it."""
_LONGEST_LOG: Final = 3.0
"""A time whose log is further off than this was not the device's: the host was busy."""
_BATCHES: Final = (1, 8, 32, 128)


@dataclass(frozen=True, slots=True)
class Worth:
    """What a tree's choices cost on problems that it was not adapted by, against the fastest that was measured there.

    Parameters
    ----------
    n_problems : int
    slowdown, p95, worst : float
        Geometric mean, 95th percentile and worst of the slowdown.
    time_error : float or None
        Median of how far predicted times are off; None where no predicted time was measured.
    """

    n_problems: int
    slowdown: float
    p95: float
    worst: float
    time_error: float | None


@dataclass(frozen=True)
class Adaptation:
    """A tree made to fit a device, and what that gained.

    Parameters
    ----------
    model : TreeModel
        Adapted by all that was measured.
    before, after : Worth
        Of the tree as it was, and of one adapted without the layers that are held back.
    objections : tuple of str
        What speaks against it, as `models.gate` says it.
    """

    model: TreeModel
    before: Worth
    after: Worth
    objections: tuple[str, ...]


def adapt(fit: Fit) -> Adaptation:
    """Adapt a tree to what was measured, and judge that on a fifth of the layers, which are held back for it.

    Raises
    ------
    NotEnoughData
    """
    rest, unseen = held_back(fit.device, fit.costs)
    without = fit.on(rest)
    advisors = Advisor(fit.lender, fit.device), Advisor(adapted(without))
    results = [judge(unseen, advisor.predict_order) for advisor in advisors]
    shared = comparable(dict(zip(("before", "after"), results, strict=True)))
    if not shared["before"]:
        raise NotEnoughData(f"device {fit.device.id}: no choice on the layers held back was timed to the end")
    before, after = (_worth(found, unseen, advisor) for found, advisor in zip(shared.values(), advisors, strict=True))
    scores = {"held_out_slowdown": after.slowdown, "held_out_layers": len({each.layer for each in unseen.problems})}
    model = adapted(fit, more_spread=without.more_spread(unseen), scores=scores)
    return Adaptation(model, before, after, objections(*results))


def held_back(device: Device, costs: Costs) -> tuple[Costs, Costs]:
    """The problems to adapt by, and those to judge by: of the layers that judge retrained trees too.

    Raises
    ------
    NotEnoughData
    """
    layers = {problem.layer for problem in costs.problems}
    rest, unseen = split(costs, held_out_of(layers)) if layers else (costs, costs)
    if len(rest.problems) < LEAST_PROBLEMS or len(unseen.problems) < LEAST_JUDGED:
        raise NotEnoughData(
            f"device {device.id}: {counted(len(rest.problems), 'problem was', 'problems were')} measured to adapt a"
            f" tree by, and {len(unseen.problems)} to judge it by; allowed: at least {LEAST_PROBLEMS} and"
            f" {LEAST_JUDGED}"
        )
    return rest, unseen


def _worth(results: Sequence[Result], unseen: Costs, advisor: Advisor) -> Worth:
    score, errors = Score.of(results), [error for _, error in time_errors(unseen, advisor)]
    return Worth(
        score.n_problems, score.geometric_mean, score.p95, score.worst, quantile(errors, 0.5) if errors else None
    )


def family_of(variant: str) -> str:
    """What variants have in common that one GPU may run faster than another: whose they are, and their algorithm."""
    found = VARIANTS.get(variant)
    return f"{found.backend} {found.algorithm}" if found else variant


def known_costs(problems: Sequence[ConvProblem], known: Mapping[str, Mapping[str, Summary]]) -> Costs:
    """What is known of problems, by their keys, on which only some variants were tried.

    Layers that judge every tree are left out, and so are problems on which nothing was timed, and epilogues.
    """
    never = held_out_layers()
    timed = {
        problem: found
        for problem in sorted(problems, key=lambda problem: problem.key)
        if (found := known.get(problem.key))
        and problem.layer not in never
        and not problem.epilogue
        and any(each.outcome is Outcome.MEASURED and each.time_ms for each in found.values())
    }
    variants = sorted({name for found in timed.values() for name in found})
    column = {name: place for place, name in enumerate(variants)}
    shape = (len(timed), len(variants))
    time_ms, noise, workspace = (np.full(shape, np.nan) for _ in range(3))
    is_pruned, is_refused, is_known = (np.zeros(shape, bool) for _ in range(3))
    for row, found in enumerate(timed.values()):
        for name, each in found.items():
            at = row, column[name]
            is_known[at] = each.outcome is not Outcome.UNSTEADY
            is_refused[at] = each.outcome in REFUSALS
            is_pruned[at] = each.outcome is Outcome.PRUNED
            if each.time_ms is not None:
                time_ms[at], noise[at] = each.time_ms, each.noise or 0.0
            if each.workspace_bytes is not None:
                workspace[at] = each.workspace_bytes
    return Costs(tuple(variants), tuple(timed), time_ms, noise, is_pruned, is_refused, is_known, workspace)


def adapted(fit: Fit, *, more_spread: float = 0.0, created: datetime | None = None, **card: Any) -> TreeModel:
    """The tree of one GPU, or of another version of its libraries, made to fit what was measured on a device.

    Parameters
    ----------
    fit : Fit
        Of a tree that keeps its domain.
    more_spread : float
        What log slowdowns err by on this device beside what they do on the lender's, as `Fit.more_spread` says it.
    created : datetime, optional
    **card
        Further fields of its card.

    Raises
    ------
    NotEnoughData
    """
    lender, device, costs = fit.lender, fit.device, fit.costs
    loan, moment = Loan(lender.device, device), (created or datetime.now(UTC)).astimezone(UTC).isoformat()
    if loan.borrower.id != loan.lender.id and (endings := lent_endings(loan, lender)):
        card[ENDINGS] = msgspec.to_builtins(endings)
    return make(
        _grown(fit, _covered(lender, costs.problems, device), more_spread),
        variants=lender.variants,
        device=device,
        card={
            "created": moment,
            "data_until": moment,
            "adapted_from": {"device": lender.device.id, "model": lender.id},
            "n_problems": len(costs.problems),
            "n_layers": len({problem.layer for problem in costs.problems}),
            "n_times": int((np.isfinite(costs.time_ms) & ~costs.is_pruned).sum()),
            "domain": lender.card["domain"],
            "errors": lender.card.get("errors", {}),
            "scores": {},
        }
        | card,
    )


class Fit:
    """What measured problems say of each node of a tree.

    Parameters
    ----------
    lender : TreeModel
    device : Device
    costs : Costs
        What was measured on it, as `known_costs` gives it.
    beside : Costs
        What was measured on the lender. Where a problem was measured on both, their ratio has none of the tree's own
        error in it; elsewhere the tree's time stands for the lender's.
    """

    def __init__(self, lender: TreeModel, device: Device, costs: Costs, beside: Costs) -> None:
        self.lender, self.device, self.costs, self.beside = lender, device, costs, beside
        self._loan = None if lender.device.id == device.id else Loan(lender.device, device)
        families = np.array([family_of(name) for name in lender.variants])
        self._families = [np.flatnonzero(families == each) for each in sorted(set(families.tolist()))]

    def on(self, costs: Costs) -> Fit:
        """The same of other problems."""
        return Fit(self.lender, self.device, costs, self.beside)

    @cached_property
    def scales(self) -> dict[int, float]:
        """As `_scales`."""
        return _scales(self.lender, self._loan) if self._loan else {}

    @cached_property
    def paths(self) -> list[list[int]]:
        """The nodes that each measured problem passes."""
        return [path_nodes(self.lender, features(problem)) for problem in self.costs.problems]

    @cached_property
    def residuals(self) -> np.ndarray:
        """Log of measured time to the lender's, scaled, float64 array of shape (P, V); NaN where unmeasured."""
        found = _logs(self.costs, self.costs.problems, self.lender.variants)
        lent = _logs(self.beside, self.costs.problems, self.lender.variants)
        for row, (problem, nodes) in enumerate(zip(self.costs.problems, self.paths, strict=True)):
            leaf = nodes[-1]
            best = log(roofline_ms(problem, self.lender.roofline(leaf).tolist())) + self.lender.arrays["value"][leaf]
            tree = best + self.lender.ranked("log_slowdown", int(self.lender.arrays["next"][leaf]))
            found[row] -= np.where(np.isnan(lent[row]), tree, lent[row]) + _deepest(self.scales, nodes, 0.0)
        found[np.abs(found) > _LONGEST_LOG] = np.nan
        return found

    @cached_property
    def corrections(self) -> dict[int, np.ndarray]:
        """What is added to the log times of a node's variants, float64 arrays of shape (V,), by node."""
        return self._corrections(np.arange(len(self.paths)), self.shrink)

    @cached_property
    def shrink(self) -> float:
        """Problems that what the node above says counts as: what predicts a third of the layers best by the others."""
        third = np.array([held_third(problem) for problem in self.costs.problems])
        off = [
            sum(self._off(self._corrections(np.flatnonzero(third != each), shrink), third == each) for each in range(3))
            for shrink in _SHRINKS
        ]
        return _SHRINKS[int(np.argmin(off))]

    def _off(self, corrections: dict[int, np.ndarray], is_wanted: np.ndarray) -> float:
        return sum(
            float(np.nansum(np.abs(self.residuals[row] - _deepest(corrections, self.paths[row], corrections[-1]))))
            for row in np.flatnonzero(is_wanted).tolist()
        )

    def _corrections(self, rows: np.ndarray, shrink: float) -> dict[int, np.ndarray]:
        """Those of some of the problems."""
        at: dict[int, list[int]] = {}
        above: dict[int, int] = {}
        for row in rows.tolist():
            for parent, node in zip([-1, *self.paths[row]], self.paths[row], strict=False):
                at.setdefault(node, []).append(row)
                above[node] = parent
        found: dict[int, np.ndarray] = {-1: np.zeros(len(self.lender.variants))}
        for node in sorted(node for node, passing in at.items() if len(passing) >= _LEAST_OF_NODE):
            found[node] = found[above[node]] + self._step(self.residuals[at[node]] - found[above[node]], shrink)
        return found

    def _step(self, left: np.ndarray, shrink: float) -> np.ndarray:
        """What the problems of a node say beyond the node above it."""
        found: np.ndarray = _shrunk(_mean_by_problem(left), shrink).repeat(left.shape[1])
        for columns in self._families:
            found[columns] += _shrunk(_mean_by_problem((left - found)[:, columns]), shrink)
        whole: np.ndarray = found + _shrunk(left - found, shrink)
        return whole

    def more_spread(self, unseen: Costs) -> float:
        """What log slowdowns err by on problems that this was not fitted to, beyond what the lender's tree says."""
        other = self.on(unseen)
        squares, own = [], []
        for residual, nodes in zip(other.residuals, other.paths, strict=True):
            left = (residual - _deepest(self.corrections, nodes, self.corrections[-1]))[np.isfinite(residual)]
            if len(left) > 1:
                squares.append(float(np.var(left, ddof=1)))
                own.append(float(self.lender.arrays["spread"][self.lender.arrays["next"][nodes[-1]]]) ** 2)
        return float(np.sqrt(max(0.0, np.median(squares) - np.median(own)))) if squares else 0.0


def held_third(problem: ConvProblem) -> int:
    """Which third of the layers a problem's is in: 0, 1 or 2."""
    return hashlib.sha256(problem.layer.key.encode()).digest()[-2] % 3


def _logs(costs: Costs, problems: Sequence[ConvProblem], variants: Sequence[str]) -> np.ndarray:
    """Log of the times of problems and variants that were timed to the end, NaN elsewhere."""
    found = np.full((len(problems), len(variants)), np.nan)
    column = {name: place for place, name in enumerate(costs.variants)}
    row = {problem: place for place, problem in enumerate(costs.problems)}
    ours = [place for place, name in enumerate(variants) if name in column]
    theirs = [column[variants[place]] for place in ours]
    for place, problem in enumerate(problems):
        if problem in row and ours:
            at = row[problem]
            found[place, ours] = np.log(np.where(costs.is_pruned[at], np.nan, costs.time_ms[at])[theirs])
    return found


def _deepest(found: Mapping[int, Any], nodes: Sequence[int], otherwise: Any) -> Any:
    """What the last of the nodes that has anything has."""
    return next((found[node] for node in reversed(nodes) if node in found), otherwise)


def _mean_by_problem(values: np.ndarray) -> np.ndarray:
    """The mean of each problem's values, shape (P, 1): the times of one problem err together."""
    is_there = np.isfinite(values)
    counts = is_there.sum(axis=1, keepdims=True)
    totals = np.where(is_there, values, 0.0).sum(axis=1, keepdims=True)
    mean: np.ndarray = np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)
    return mean


def _shrunk(values: np.ndarray, shrink: float) -> np.ndarray:
    """The mean of each column over the problems that have a value, nearer to 0 the fewer they are."""
    is_there = np.isfinite(values)
    total: np.ndarray = np.where(is_there, values, 0.0).sum(axis=0) / (is_there.sum(axis=0) + shrink)
    return total


@lru_cache(maxsize=2)
def _scales(lender: TreeModel, loan: Loan) -> dict[int, float]:
    """Mean log of the time on one device to the lender's, as published facts say, of the nodes that layers pass."""
    found: dict[int, list[float]] = {}
    for name in ("seeds", "more-networks"):
        for problem in networks.problems(name, batches=_BATCHES, dtypes=DType, layouts=Layout):
            nodes = path_nodes(lender, features(problem))
            roofline = lender.roofline(nodes[-1]).tolist()
            scale = log(loan.slowdown(problem.bytes, problem.flops, problem.dtype, roofline))
            for node in nodes:
                found.setdefault(node, []).append(scale)
    return {node: float(np.mean(logs)) for node, logs in found.items()}


def _covered(lender: TreeModel, problems: Sequence[ConvProblem], device: Device) -> np.ndarray:
    """The lender's domain in those dtypes and layouts of which enough layers were measured.

    Raises
    ------
    NotEnoughData
    """
    layers: dict[tuple[DType, Layout], set[ConvProblem]] = {}
    for problem in problems:
        layers.setdefault((problem.dtype, problem.layout), set()).add(problem.layer)
    bits = sum(GROUPS[each] for each, found in layers.items() if len(found) >= LEAST_LAYERS)
    sizes = lender.arrays[DOMAIN].astype(np.int32)
    sizes[:, -1] &= bits
    covered: np.ndarray = sizes[sizes[:, -1] > 0]
    if not len(covered):
        raise NotEnoughData(
            f"device {device.id}: of no precision and layout were {LEAST_LAYERS} layers measured, as a tree needs"
        )
    return covered


def _grown(fit: Fit, domain: np.ndarray, more_spread: float) -> Arrays:
    """The lender's nodes with corrected leaves, as `make` takes them."""
    lender, arrays = fit.lender, fit.lender.arrays
    feature, value, following = arrays["feature"], arrays["value"].astype(np.float64), arrays["next"]
    is_leaf = feature == LEAF
    scale, correction = np.zeros(len(feature)), np.zeros(len(feature), np.int64)
    known = list(fit.corrections)
    place = {node: index for index, node in enumerate(known)}
    correction[0], scale[0] = place.get(0, 0), fit.scales.get(0, 0.0)
    for node in np.flatnonzero(~is_leaf).tolist():
        for child in (int(following[node]), int(following[node]) + 1):
            correction[child] = place.get(child, correction[node])
            scale[child] = fit.scales.get(child, scale[node])
    leaves = np.flatnonzero(is_leaf)
    pairs, ranking = np.unique(np.stack([following[leaves], correction[leaves]], axis=1), axis=0, return_inverse=True)
    logs = lender.ranked("log_slowdown", pairs[:, 0]) + np.array([fit.corrections[node] for node in known])[pairs[:, 1]]
    least = logs.min(axis=1)
    ranking = ranking.ravel()
    inner = {"left": following, "right": following + 1}
    return {
        "feature": feature.astype(np.int32),
        "threshold": np.where(is_leaf, 0.0, value),
        **{name: np.where(is_leaf, LEAF, each).astype(np.int32) for name, each in inner.items()},
        "place": np.where(is_leaf, np.cumsum(is_leaf) - 1, LEAF).astype(np.int32),
        "log_best": value[leaves] + scale[leaves] + least[ranking],
        "spread": np.hypot(arrays["spread"][following[leaves]], more_spread),
        "roofline": arrays["roofline"][following[leaves]],
        RANKING: ranking.astype(np.int32),
        "log_slowdown": logs - least[:, None],
        **{name: lender.ranked(name, pairs[:, 0]) for name in RANKING_ARRAYS[1:]},
        DOMAIN: domain,
    }
