"""How good advice is on layers never trained on, beside simpler rules and cuDNN's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from conv_advisor.data import networks
from conv_advisor.data.measurement import Device
from conv_advisor.data.parquet import distinct_problems
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Variant
from conv_advisor.models.advisor import Advisor
from conv_advisor.models.costs import Costs, device_of, from_table, is_of, layer_of, split
from conv_advisor.models.fits import fit_each
from conv_advisor.models.grow import Orders
from conv_advisor.models.judging import (
    ORACLE,
    SINGLE_BEST,
    TEACHER,
    TREE,
    Ranker,
    Result,
    Score,
    TimeError,
    always,
    first_then,
    judge,
    oracle,
    precision_of,
    single_best_order,
    time_errors,
)
from conv_advisor.models.options import Options
from conv_advisor.models.peers import Peers
from conv_advisor.models.train import trainable
from conv_advisor.models.tuning import Worth, worth
from conv_advisor.models.walk import ON_CORES, Walk

Progress = Callable[[float], None]
"""Told the share that is done, from 0 to 1."""


@dataclass(frozen=True)
class Part:
    """Scores of every rule: over all problems, by dtype and layout, and by network.

    Parameters
    ----------
    overall : dict of rule to Score
        The tree, the ensemble that it learned from, each source of picks, the single best of the dtype and layout,
        other libraries, and the oracle.
    by_precision : dict of ``dtype/layout`` to dict of rule to Score
    by_network : dict of network to dict of rule to Score
    time_error : dict of ``overall`` or ``dtype/layout`` to TimeError
        Of the time that the tree predicts of its choice.
    in_common : dict of ``overall`` or ``dtype/layout`` to dict of rule to Score
        Over the problems alone that every rule was judged on, against one oracle: the variant that was fastest in the
        run that timed the other libraries. Empty without such a run.
    """

    overall: dict[str, Score]
    by_precision: dict[str, dict[str, Score]]
    by_network: dict[str, dict[str, Score]]
    time_error: dict[str, TimeError]
    in_common: dict[str, dict[str, Score]] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class Report(Part):
    """Scores over networks left out one at a time, and over networks that nothing was ever trained on.

    Parameters
    ----------
    device_id : str
    never_trained : Part or None
        None where no layer of these was measured.
    tuning : dict of ``overall`` or ``dtype/layout`` to Worth
        When PyTorch's tuning pays against the advice that was timed beside it, on the problems that are judged.
    tuning_trees : tuple of str
        The trees whose advice that was.
    """

    device_id: str
    never_trained: Part | None = None
    tuning: dict[str, Worth] = field(default_factory=dict)
    tuning_trees: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


@dataclass(frozen=True)
class _Fold:
    """Layers that one tree is judged on and not trained on, by the names of the networks that have them."""

    networks: Mapping[str, Collection[ConvProblem]]
    is_never_trained: bool = False

    @property
    def layers(self) -> set[ConvProblem]:
        """Of all its networks."""
        return set().union(*self.networks.values())

    def names(self, problem: ConvProblem) -> list[str]:
        """The networks that have the layer of a problem."""
        return [name for name, layers in self.networks.items() if layer_of(problem) in layers]


@dataclass
class _Found:
    """Results and errors of predicted times, each with the names of the networks that count it."""

    results: list[tuple[Sequence[str], str, Result]] = field(default_factory=list)
    errors: list[tuple[str, float]] = field(default_factory=list)
    common: list[tuple[str, Result]] = field(default_factory=list)
    """By rule, on the problems that every rule was judged on, against one oracle."""

    def part(self, names: Iterable[str]) -> Part:
        """The scores of it all, in the order of these networks."""
        precisions = sorted({precision_of(result.problem) for _, _, result in self.results})
        by_precision = [
            (key, [row for row in self.results if precision_of(row[2].problem) == key]) for key in precisions
        ]
        by_name = [(name, [row for row in self.results if name in row[0]]) for name in names]
        errors = {key: [error for of, error in self.errors if of == key] for key in precisions}
        common = {"overall": self.common} | {
            key: [row for row in self.common if precision_of(row[1].problem) == key] for key in precisions
        }
        errors = {"overall": [error for _, error in self.errors]} | errors
        return Part(
            overall=_scores(self.results),
            by_precision={key: _scores(rows) for key, rows in by_precision},
            by_network={name: _scores(rows) for name, rows in by_name if rows},
            in_common={key: _scores(("", *row) for row in rows) for key, rows in common.items() if rows},
            time_error={key: TimeError.of(each) for key, each in errors.items() if each},
        )


def evaluate(
    table: pa.Table,
    picks: pa.Table | None = None,
    *,
    device_id: str,
    network_layers: Mapping[str, Iterable[ConvProblem]] | None = None,
    never_trained: Mapping[str, Iterable[ConvProblem]] | None = None,
    peers: Peers | None = None,
    seed: int = 0,
    options: Options | None = None,
    variants: Mapping[str, Variant] = VARIANTS,
    jobs: int | None = None,
    walk: Walk = ON_CORES,
    on_progress: Progress | None = None,
) -> Report:
    """Hold out each network in turn: train on every layer that it does not have, choose for those it has.

    Parameters
    ----------
    table, picks : pyarrow.Table
        In `data.parquet.SCHEMA` and `PICKS_SCHEMA`.
    device_id : str
    network_layers : mapping of name to layers
        Left out one network at a time; by default the seed networks. Batch, dtype and layout of a layer do not matter.
    never_trained : mapping of name to layers
        Judged all together by one tree that has none of them; by default what no tree has: `held_out_layers`, by the
        networks of `data.networks.HELD_OUT`.
    peers : Peers
        What other libraries cost, as `models.peers.read_peers` gives it.
    seed, options
        As in `train`.
    variants : mapping of str to Variant
        The catalogue, whose rules mask the choices.
    jobs : int, optional
    walk : Walk
        As in `models.fits.fit_each`; what comes out does not depend on them.
    on_progress : callable

    Raises
    ------
    NotEnoughData, UnknownDevice
    """
    device, costs = device_of(table, device_id), from_table(table, device_id)
    folds = _folds(
        {layer_of(problem) for problem in costs.problems},
        _layers_of(networks.GROUPS["seeds"]) if network_layers is None else network_layers,
        _never_trained() if never_trained is None else never_trained,
    )
    splits = [split(costs, fold.layers) for fold in folds]
    known = [trainable(part) for part, _ in splits]
    chosen, peers = _picks(picks, device_id), peers or Peers()
    left_out, never = _Found(), _Found()
    asked = [part.problems for _, part in splits]
    fits = fit_each(known, device, asked=asked, seed=seed, options=options, jobs=jobs, walk=walk)
    for done, (fold, (tree, orders)) in enumerate(zip(folds, fits, strict=True)):
        found = never if fold.is_never_trained else left_out
        advisor, teacher = Advisor(tree, device, variants=variants), partial(_applicable, orders, variants, device)
        _judge_fold(found, fold, known[done], splits[done][1], advisor, teacher, chosen, peers)
        if on_progress:
            on_progress((done + 1) / len(folds))
    parts = [found.part(_names(folds, is_never)) for found, is_never in ((left_out, False), (never, True))]
    return Report(
        **{each.name: getattr(parts[0], each.name) for each in fields(Part)},
        device_id=device_id,
        never_trained=parts[1] if never.results else None,
        tuning=_tuning(peers, {result.problem for part in (left_out, never) for _, _, result in part.results}),
        tuning_trees=peers.trees,
    )


def _tuning(peers: Peers, judged: Collection[ConvProblem]) -> dict[str, Worth]:
    mine = [problem for problem in peers.trials if problem in judged]
    parts = {"overall": mine} | {
        key: [problem for problem in mine if precision_of(problem) == key]
        for key in sorted({precision_of(problem) for problem in mine})
    }
    found = {key: worth(peers.trials[problem] for problem in part) for key, part in parts.items()}
    return {key: each for key, each in found.items() if each}


def _folds(
    measured: Collection[ConvProblem],
    left_out: Mapping[str, Iterable[ConvProblem]],
    never_trained: Mapping[str, Iterable[ConvProblem]],
) -> list[_Fold]:
    """One fold a network that is left out, and one of all that are never trained on; those alone that were measured."""
    each, together = (
        {name: {layer_of(problem) for problem in layers} & set(measured) for name, layers in named.items()}
        for named in (left_out, never_trained)
    )
    folds = [_Fold({name: layers}) for name, layers in each.items() if layers]
    return [*folds, _Fold(together, is_never_trained=True)] if any(together.values()) else folds


def _judge_fold(
    found: _Found,
    fold: _Fold,
    known: Costs,
    unseen: Costs,
    advisor: Advisor,
    teacher: Ranker,
    picks: Mapping[str, Mapping[ConvProblem, str]],
    peers: Peers,
) -> None:
    """Add what every rule makes of the layers that a tree has not seen."""
    known_parts = _by_precision(known)
    for precision, part in _by_precision(unseen).items():
        order = single_best_order(known_parts.get(precision, known))
        rankers: dict[str, Ranker] = {
            TREE: advisor.predict_order,
            TEACHER: teacher,
            **{source: first_then(first, order) for source, first in picks.items()},
            SINGLE_BEST: partial(always, order),
            ORACLE: oracle(part),
        }
        judged = {rule: judge(part, ranker) for rule, ranker in rankers.items()}
        for rule, of in peers.results.items():
            judged[rule] = [of[each] for each in part.problems if each in of] or judged.get(rule, [])
        found.results += [
            (fold.names(result.problem), rule, result) for rule, results in judged.items() for result in results
        ]
        found.common += _in_common(part, rankers, judged, peers)
        found.errors += [(precision, error) for error in time_errors(part, advisor)]


def _applicable(orders: Orders, variants: Mapping[str, Variant], device: Device, problem: ConvProblem) -> list[str]:
    """The order of a problem, without what its variants' own rules exclude."""
    return [name for name in orders[problem] if name in variants and variants[name].why_not(problem, device) is None]


def _in_common(
    costs: Costs, rankers: Mapping[str, Ranker], judged: Mapping[str, Sequence[Result]], peers: Peers
) -> list[tuple[str, Result]]:
    """Every rule on the problems that all were judged on, each against the variant that was the oracle of the peers.

    A slowdown is a ratio within one run: of the peers to that variant's time in theirs, of the others to its time in
    the measurements. It may be below 1, where the measurements have a faster one.
    """
    against = {problem: peers.oracle[problem] for problem in costs.problems if problem in peers.oracle}
    stands = {result.problem for result in judge(costs, _only(against)) if result.variant == against[result.problem]}
    shared = stands.intersection(*({result.problem for result in results} for results in judged.values()))
    part = costs.where(shared.__contains__)
    rules = {**rankers, ORACLE: _only(against)}
    again = {rule: judge(part, ranker, against) for rule, ranker in rules.items() if rule not in peers.results}
    again |= {rule: [of[problem] for problem in part.problems] for rule, of in peers.results.items() if shared}
    return [(rule, result) for rule, results in again.items() for result in results]


def _only(chosen: Mapping[ConvProblem, str]) -> Ranker:
    return lambda problem: [chosen[problem]] if problem in chosen else None


def _names(folds: Iterable[_Fold], is_never_trained: bool) -> list[str]:
    return [name for fold in folds if fold.is_never_trained is is_never_trained for name in fold.networks]


def scores_of(report: Report) -> dict[str, Any]:
    """What a card says of a report: the tree's scores over all and by dtype and layout, of both parts."""
    parts: dict[str, Part | None] = {"leave_one_network_out": report, "never_trained": report.never_trained}
    return {name: _tree_scores(part) for name, part in parts.items() if part and TREE in part.overall}


def _tree_scores(part: Part) -> dict[str, dict[str, float]]:
    shown = ("geometric_mean", "p95", "worst", "share_tied", "share_refused")
    by_name = {"overall": part.overall} | part.by_precision
    return {
        name: {each: round(getattr(scores[TREE], each), 4) for each in shown}
        | ({"median_time_error": round(part.time_error[name].median, 4)} if name in part.time_error else {})
        for name, scores in by_name.items()
        if TREE in scores
    }


def _layers_of(names: Iterable[str]) -> dict[str, list[ConvProblem]]:
    return {name: [layer.problem for layer in networks.layers(name)] for name in names}


def _never_trained() -> dict[str, Collection[ConvProblem]]:
    named, never = _layers_of(networks.GROUPS[networks.HELD_OUT]), networks.held_out_layers()
    return {name: never.intersection(layers) for name, layers in named.items()}


def _by_precision(costs: Costs) -> dict[str, Costs]:
    names = np.array([precision_of(problem) for problem in costs.problems])
    return {str(name): costs.take(np.flatnonzero(names == name)) for name in np.unique(names)}


def _picks(picks: pa.Table | None, device_id: str) -> dict[str, dict[ConvProblem, str]]:
    """What each source chose for each problem of this device; of several choices the last."""
    chosen: dict[str, dict[ConvProblem, str]] = {}
    if picks is None:
        return chosen
    picks = picks.filter(is_of(picks, device_id))
    problems, rows = distinct_problems(picks)
    for row, source, variant in zip(rows, picks["source"].to_pylist(), picks["variant"].to_pylist(), strict=True):
        chosen.setdefault(source, {})[problems[row]] = variant
    return chosen


def _scores(found: Iterable[tuple[Sequence[str], str, Result]]) -> dict[str, Score]:
    by_rule: dict[str, list[Result]] = {}
    for _, rule, result in found:
        by_rule.setdefault(rule, []).append(result)
    return {rule: Score.of(results) for rule, results in by_rule.items()}
