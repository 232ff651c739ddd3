"""What a few layers measured on another GPU say of a tree's times there: corrections, by node and variant.

A correction is the mean log of measured over borrowed time: of all variants, then of a family, then of a variant. It is
taken at the root of the tree and again at each node on the way to a leaf, and shrunk towards that of the node above by
the number of problems it rests on. So measurements decide near the layers measured, and published figures of both GPUs
elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from math import log
from typing import Any, Final

import numpy as np

from conv_advisor.data import networks
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.models.costs import Costs, roofline_ms
from conv_advisor.models.tree.features import features
from conv_advisor.models.tree.file import TreeModel, path_nodes
from conv_advisor.models.tree.loan import Loan

_SHRINKS: Final = (8.0, 32.0, 128.0, 1e6)
"""Values of `Fit.shrink` that are tried; with the last one measurements count for next to nothing."""
_LEAST_OF_NODE: Final = 3
"""Fewer problems that pass a node change nothing below it."""
_LONGEST_LOG: Final = 3.0
"""A time whose log is further off than this was not the device's: the host was busy."""
_BATCHES: Final = (1, 8, 32, 128)


def family_of(variant: str) -> str:
    """What variants share that one GPU may run faster than another: their backend and their algorithm."""
    catalogued = VARIANTS.get(variant)
    return f"{catalogued.backend} {catalogued.algorithm}" if catalogued else variant


class Fit:
    """What measured problems say of each node of a tree.

    Parameters
    ----------
    lender : TreeModel
    device : Device
    costs : Costs
        What was measured on it, as `known_costs` gives it.
    beside : Costs
        What was measured on the lender. Where a problem was measured on both, the ratio is free of the tree's own
        error; elsewhere the tree's time stands for the lender's.
    """

    def __init__(self, lender: TreeModel, device: Device, costs: Costs, beside: Costs) -> None:
        self.lender, self.device, self.costs, self.beside = lender, device, costs, beside
        self._loan = None if lender.device.id == device.id else Loan(lender.device, device)
        families = np.array([family_of(name) for name in lender.variants])
        self._families = [np.flatnonzero(families == family) for family in sorted(set(families.tolist()))]

    def on(self, costs: Costs) -> Fit:
        """The fit of other measurements to the same tree."""
        return Fit(self.lender, self.device, costs, self.beside)

    @cached_property
    def scales(self) -> dict[int, float]:
        """As `_scales`; none where the tree is the device's own."""
        return _scales(self.lender, self._loan) if self._loan else {}

    @cached_property
    def paths(self) -> list[list[int]]:
        """The nodes that each measured problem passes."""
        return [path_nodes(self.lender, features(problem)) for problem in self.costs.problems]

    @cached_property
    def residuals(self) -> np.ndarray:
        """Log of measured time to the lender's, scaled, float64 array of shape (P, V); NaN where unmeasured."""
        residuals = _logs(self.costs, self.costs.problems, self.lender.variants)
        lent = _logs(self.beside, self.costs.problems, self.lender.variants)
        for row, (problem, nodes) in enumerate(zip(self.costs.problems, self.paths, strict=True)):
            leaf = nodes[-1]
            best = log(roofline_ms(problem, self.lender.roofline(leaf).tolist())) + self.lender.arrays["value"][leaf]
            tree = best + self.lender.ranked("log_slowdown", int(self.lender.arrays["next"][leaf]))
            residuals[row] -= np.where(np.isnan(lent[row]), tree, lent[row]) + _deepest(self.scales, nodes, 0.0)
        residuals[np.abs(residuals) > _LONGEST_LOG] = np.nan
        return residuals

    @cached_property
    def corrections(self) -> dict[int, np.ndarray]:
        """Corrections to the log times of a node's variants, float64 arrays of shape (V,), by node."""
        return self._corrections(np.arange(len(self.paths)), self.shrink)

    @cached_property
    def shrink(self) -> float:
        """Problems that the correction of the node above counts as: the number that best predicts held-out thirds."""
        third = np.array([held_third(problem) for problem in self.costs.problems])
        off = [
            sum(self._off(self._corrections(np.flatnonzero(third != held), shrink), third == held) for held in range(3))
            for shrink in _SHRINKS
        ]
        return _SHRINKS[int(np.argmin(off))]

    def _off(self, corrections: dict[int, np.ndarray], is_held: np.ndarray) -> float:
        return sum(
            float(np.nansum(np.abs(self.residuals[row] - _deepest(corrections, self.paths[row], corrections[-1]))))
            for row in np.flatnonzero(is_held).tolist()
        )

    def _corrections(self, rows: np.ndarray, shrink: float) -> dict[int, np.ndarray]:
        """Corrections fitted to some of the problems."""
        at: dict[int, list[int]] = {}
        above: dict[int, int] = {}
        for row in rows.tolist():
            for parent, node in zip([-1, *self.paths[row]], self.paths[row], strict=False):
                at.setdefault(node, []).append(row)
                above[node] = parent
        corrections: dict[int, np.ndarray] = {-1: np.zeros(len(self.lender.variants))}
        for node in sorted(node for node, passing in at.items() if len(passing) >= _LEAST_OF_NODE):
            corrections[node] = corrections[above[node]] + self._step(
                self.residuals[at[node]] - corrections[above[node]], shrink
            )
        return corrections

    def _step(self, rest: np.ndarray, shrink: float) -> np.ndarray:
        """The correction that the problems of a node add to that of the node above it."""
        step: np.ndarray = _shrunk(_mean_by_problem(rest), shrink).repeat(rest.shape[1])
        for columns in self._families:
            step[columns] += _shrunk(_mean_by_problem((rest - step)[:, columns]), shrink)
        whole: np.ndarray = step + _shrunk(rest - step, shrink)
        return whole

    def more_spread(self, unseen: Costs) -> float:
        """Error of log slowdowns on problems that this was not fitted to, beyond that of the lender's tree."""
        other = self.on(unseen)
        squares, own = [], []
        for residual, nodes in zip(other.residuals, other.paths, strict=True):
            rest = (residual - _deepest(self.corrections, nodes, self.corrections[-1]))[np.isfinite(residual)]
            if len(rest) > 1:
                squares.append(float(np.var(rest, ddof=1)))
                own.append(float(self.lender.arrays["spread"][self.lender.arrays["next"][nodes[-1]]]) ** 2)
        return float(np.sqrt(max(0.0, np.median(squares) - np.median(own)))) if squares else 0.0


def held_third(problem: ConvProblem) -> int:
    """Which third of the layers a problem's is in: 0, 1 or 2."""
    return hashlib.sha256(problem.layer.key.encode()).digest()[-2] % 3


def _logs(costs: Costs, problems: Sequence[ConvProblem], variants: Sequence[str]) -> np.ndarray:
    """Log of the times of problems and variants that were timed to the end, NaN elsewhere."""
    logs = np.full((len(problems), len(variants)), np.nan)
    column = {name: place for place, name in enumerate(costs.variants)}
    row = {problem: place for place, problem in enumerate(costs.problems)}
    ours = [place for place, name in enumerate(variants) if name in column]
    theirs = [column[variants[place]] for place in ours]
    for place, problem in enumerate(problems):
        if problem in row and ours:
            known_row = row[problem]
            logs[place, ours] = np.log(np.where(costs.is_pruned[known_row], np.nan, costs.time_ms[known_row])[theirs])
    return logs


def _deepest(by_node: Mapping[int, Any], nodes: Sequence[int], otherwise: Any) -> Any:
    """The value of the last of the nodes that has one."""
    return next((by_node[node] for node in reversed(nodes) if node in by_node), otherwise)


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
    """Mean log of the time on one device over the lender's by published figures, of each node that layers pass."""
    logs_of: dict[int, list[float]] = {}
    for name in ("seeds", "more-networks"):
        for problem in networks.problems(name, batches=_BATCHES, dtypes=DType, layouts=Layout):
            nodes = path_nodes(lender, features(problem))
            roofline = lender.roofline(nodes[-1]).tolist()
            scale = log(loan.slowdown(problem.bytes, problem.flops, problem.dtype, roofline))
            for node in nodes:
                logs_of.setdefault(node, []).append(scale)
    return {node: float(np.mean(logs)) for node, logs in logs_of.items()}
