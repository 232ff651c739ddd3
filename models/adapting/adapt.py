"""A tree made to fit another GPU by a few layers measured there, and what that gained on layers held back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from conv_advisor.data.counting import counted
from conv_advisor.data.errors import ModelRejected, NotEnoughData
from conv_advisor.data.measurement import Device, Outcome
from conv_advisor.data.networks import held_out_layers
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.models.adapting.correction import Fit
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import REFUSALS, Costs, split
from conv_advisor.models.evaluation.judging import Result, Score, comparable, judge, quantile, time_errors
from conv_advisor.models.ranking.endings import CARD as ENDINGS
from conv_advisor.models.ranking.endings import lent_endings
from conv_advisor.models.retraining.gate import objections
from conv_advisor.models.training.enough import held_out_of
from conv_advisor.models.tree.arrays import DOMAIN, LEAF, RANKING, RANKING_ARRAYS, Arrays, domain_sizes
from conv_advisor.models.tree.domain import GROUPS
from conv_advisor.models.tree.file import TreeModel, make
from conv_advisor.models.tree.loan import Loan

if TYPE_CHECKING:
    from conv_advisor.data.summary import Summary

LEAST_PROBLEMS: Final = 20
"""Fewer measured problems adapt nothing."""
LEAST_JUDGED: Final = 5
"""Fewer problems held back from adapting say nothing of what it gains."""
LEAST_LAYERS: Final = 3
"""Fewer measured layers of a dtype and layout make the tree abstain there."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What a tree's choices cost on problems that it was not adapted by, against the fastest measured variant.

    Parameters
    ----------
    n_problems : int
    slowdown, p95, worst : float
        Geometric mean, 95th percentile and worst of the slowdown.
    time_error : float or None
        Median error of predicted times; None where no predicted time was measured.
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
        Adapted by all measurements.
    before, after : Worth
        Worth of the tree as it was, and of one adapted without the layers that are held back.
    objections : tuple of str
        What speaks against the adapted tree, in the words of `models.retraining.gate`.
    """

    model: TreeModel
    before: Worth
    after: Worth
    objections: tuple[str, ...]


def adapt(fit: Fit) -> Adaptation:
    """Adapt a tree to what was measured, and judge it on a fifth of the layers, which are held back for that.

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
    before, after = (_worth(judged, unseen, advisor) for judged, advisor in zip(shared.values(), advisors, strict=True))
    scores = {
        "held_out_slowdown": after.slowdown,
        "held_out_layers": len({problem.layer for problem in unseen.problems}),
    }
    model = adapted(fit, more_spread=without.more_spread(unseen), scores=scores)
    return Adaptation(model, before, after, objections(*results))


def held_back(device: Device, costs: Costs) -> tuple[Costs, Costs]:
    """The problems to adapt by, and those to judge by: problems of the layers that judge retrained trees too.

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


def known_costs(problems: Sequence[ConvProblem], known: Mapping[str, Mapping[str, Summary]]) -> Costs:
    """The summaries of problems, by their keys, as costs; only some variants need have been tried.

    Layers that judge every tree are left out, and so are problems on which nothing was timed, and epilogues.
    """
    never = held_out_layers()
    timed = {
        problem: summaries
        for problem in sorted(problems, key=lambda problem: problem.key)
        if (summaries := known.get(problem.key))
        and problem.layer not in never
        and not problem.epilogue
        and any(summary.outcome is Outcome.MEASURED and summary.time_ms for summary in summaries.values())
    }
    variants = sorted({name for summaries in timed.values() for name in summaries})
    column = {name: place for place, name in enumerate(variants)}
    shape = (len(timed), len(variants))
    time_ms, noise, workspace = (np.full(shape, np.nan) for _ in range(3))
    is_pruned, is_refused, is_known = (np.zeros(shape, bool) for _ in range(3))
    for row, summaries in enumerate(timed.values()):
        for name, summary in summaries.items():
            at = row, column[name]
            is_known[at] = summary.outcome is not Outcome.UNSTEADY
            is_refused[at] = summary.outcome in REFUSALS
            is_pruned[at] = summary.outcome is Outcome.PRUNED
            if summary.time_ms is not None:
                time_ms[at], noise[at] = summary.time_ms, summary.noise or 0.0
            if summary.workspace_bytes is not None:
                workspace[at] = summary.workspace_bytes
    return Costs(tuple(variants), tuple(timed), time_ms, noise, is_pruned, is_refused, is_known, workspace)


def adapted(fit: Fit, *, more_spread: float = 0.0, created: datetime | None = None, **card: Any) -> TreeModel:
    """The tree of one GPU, or of another version of its libraries, made to fit what was measured on a device.

    Parameters
    ----------
    fit : Fit
        Of a tree that keeps its domain.
    more_spread : float
        Error of log slowdowns on this device beyond that on the lender's, as `Fit.more_spread` gives it.
    created : datetime, optional
    **card
        Further fields of the tree's card.

    Raises
    ------
    NotEnoughData
    ModelRejected
        The tree keeps no domain.
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


def _covered(lender: TreeModel, problems: Sequence[ConvProblem], device: Device) -> np.ndarray:
    """The lender's domain, cut to the dtypes and layouts with enough measured layers.

    Raises
    ------
    NotEnoughData, ModelRejected
    """
    layers: dict[tuple[DType, Layout], set[ConvProblem]] = {}
    for problem in problems:
        layers.setdefault((problem.dtype, problem.layout), set()).add(problem.layer)
    bits = sum(GROUPS[kind] for kind, measured in layers.items() if len(measured) >= LEAST_LAYERS)
    sizes = domain_sizes(lender.arrays)
    if sizes is None:
        raise ModelRejected(f"tree {lender.id} keeps no domain, which a tree that is made of it needs")
    sizes[:, -1] &= bits
    covered: np.ndarray = sizes[sizes[:, -1] > 0]
    if not len(covered):
        raise NotEnoughData(
            f"device {device.id}: no precision and layout has the {LEAST_LAYERS} measured layers that a tree needs"
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
        **{name: np.where(is_leaf, LEAF, child).astype(np.int32) for name, child in inner.items()},
        "place": np.where(is_leaf, np.cumsum(is_leaf) - 1, LEAF).astype(np.int32),
        "log_best": value[leaves] + scale[leaves] + least[ranking],
        "spread": np.hypot(arrays["spread"][following[leaves]], more_spread),
        "roofline": arrays["roofline"][following[leaves]],
        RANKING: ranking.astype(np.int32),
        "log_slowdown": logs - least[:, None],
        **{name: lender.ranked(name, pairs[:, 0]) for name in RANKING_ARRAYS[1:]},
        DOMAIN: domain,
    }
