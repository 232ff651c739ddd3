"""How good advice is on layers never trained on, beside simpler rules and cuDNN's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import pyarrow as pa

from conv_advisor.data import networks
from conv_advisor.data.measurement import Device
from conv_advisor.data.parquet import distinct_problems
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Variant
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import Costs, device_of, from_table, is_of, split
from conv_advisor.models.evaluation.judging import (
    ORACLE,
    SINGLE_BEST,
    TEACHER,
    TREE,
    Ranker,
    Result,
    always,
    comparable,
    first_then,
    judge,
    oracle,
    precision_of,
    single_best_order,
    time_errors,
)
from conv_advisor.models.evaluation.peers import Peers
from conv_advisor.models.evaluation.report import OVERALL, Found, Judged, Part, Report
from conv_advisor.models.evaluation.tuning import Worth, worth
from conv_advisor.models.training.fits import fit_each
from conv_advisor.models.training.grow import Orders
from conv_advisor.models.training.options import Options
from conv_advisor.models.training.train import trainable
from conv_advisor.models.tree.file import TreeModel

Progress = Callable[[float], None]
"""Receives the share that is done, from 0 to 1."""


@dataclass(frozen=True)
class _Fold:
    """Layers that one tree is judged on and not trained on, by the names of the networks that have them."""

    networks: Mapping[str, Collection[ConvProblem]]
    is_never_trained: bool = False

    @property
    def layers(self) -> set[ConvProblem]:
        """The layers of all its networks."""
        return set().union(*self.networks.values())


def evaluate(
    table: pa.Table,
    picks: pa.Table | None = None,
    *,
    device_id: str,
    network_layers: Mapping[str, Iterable[ConvProblem]] | None = None,
    never_trained: Mapping[str, Iterable[ConvProblem]] | None = None,
    peers: Peers | None = None,
    model: TreeModel | None = None,
    trains: bool | None = None,
    seed: int = 0,
    options: Options | None = None,
    variants: Mapping[str, Variant] = VARIANTS,
    jobs: int | None = None,
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
        Judged together by one tree that is trained on none of them; by default the layers no tree is trained on:
        `held_out_layers`, by the networks of `data.networks.HELD_OUT`.
    peers : Peers
        What other libraries cost, as `models.evaluation.peers.read_peers` gives it.
    model : TreeModel
        Judged as it is on the layers no tree was trained on. By default a tree is trained for that.
    trains : bool, optional
        Whether a tree and a teacher are trained for each part; by default where there is no model. Otherwise the
        networks that are left out are judged by the rules that need no tree.
    seed, options
        As in `train`.
    variants : mapping of str to Variant
        The catalogue, whose rules mask the choices.
    jobs : int, optional
        As in `models.training.fits.fit_each`; what comes out does not depend on it.
    on_progress : callable

    Raises
    ------
    NotEnoughData, UnknownDevice
    """
    device, costs = device_of(table, device_id), from_table(table, device_id)
    folds = _folds(
        {problem.layer for problem in costs.problems},
        _layers_of(networks.GROUPS["seeds"]) if network_layers is None else network_layers,
        _never_trained() if never_trained is None else never_trained,
    )
    splits = [split(costs, fold.layers) for fold in folds]
    known = [trainable(part) for part, _ in splits]
    chosen, peers = _picks(picks, device_id), peers or Peers()
    left_out, never = Found(), Found()
    fits: Iterable[tuple[TreeModel | None, Orders | None]] = [(None, None)] * len(folds)
    if trains or (not model and trains is None):
        unseen = [part.problems for _, part in splits]
        fits = fit_each(known, device, asked=unseen, seed=seed, options=options, jobs=jobs)
    for done, (fold, (trained, orders)) in enumerate(zip(folds, fits, strict=True)):
        results, tree = (never, model or trained) if fold.is_never_trained else (left_out, trained)
        advisor = Advisor(tree, device, variants=variants) if tree else None
        teacher = None if orders is None else partial(_applicable, orders, variants, device)
        _judge_fold(results, fold, known[done], splits[done][1], advisor, teacher, chosen, peers)
        if on_progress:
            on_progress((done + 1) / len(folds))
    return Report(
        **{field.name: getattr(left_out.part(), field.name) for field in fields(Part)},
        device_id=device_id,
        never_trained=never.part() if never.folds else None,
        tuning=_tuning(peers, left_out.problems | never.problems),
        tuning_trees=peers.trees,
    )


def _tuning(peers: Peers, judged: Collection[ConvProblem]) -> dict[str, Worth]:
    timed = [problem for problem in peers.trials if problem in judged]
    parts = {OVERALL: timed} | {
        key: [problem for problem in timed if precision_of(problem) == key]
        for key in sorted({precision_of(problem) for problem in timed})
    }
    worths = {key: worth(peers.trials[problem] for problem in part) for key, part in parts.items()}
    return {key: tuning_worth for key, tuning_worth in worths.items() if tuning_worth}


def _folds(
    measured: Collection[ConvProblem],
    left_out: Mapping[str, Iterable[ConvProblem]],
    never_trained: Mapping[str, Iterable[ConvProblem]],
) -> list[_Fold]:
    """One fold per network that is left out, and one of all that are never trained on; only of measured layers."""
    one_by_one, together = (
        {name: {problem.layer for problem in layers} & set(measured) for name, layers in named.items()}
        for named in (left_out, never_trained)
    )
    folds = [_Fold({name: layers}) for name, layers in one_by_one.items() if layers]
    return [*folds, _Fold(together, is_never_trained=True)] if any(together.values()) else folds


def _judge_fold(
    results: Found,
    fold: _Fold,
    known: Costs,
    unseen: Costs,
    advisor: Advisor | None,
    teacher: Ranker | None,
    picks: Mapping[str, Mapping[ConvProblem, str]],
    peers: Peers,
) -> None:
    """Add the results of every rule on the layers that a tree has not seen."""
    known_parts = _by_precision(known)
    for precision, part in _by_precision(unseen).items():
        order = single_best_order(known_parts.get(precision, known))
        rankers: dict[str, Ranker | None] = {
            TREE: advisor.predict_order if advisor else None,
            TEACHER: teacher,
            **{source: first_then(first, order) for source, first in picks.items()},
            SINGLE_BEST: partial(always, order),
            ORACLE: oracle(part),
        }
        judged = {rule: judge(part, ranker) for rule, ranker in rankers.items() if ranker}
        results.folds.append((fold.networks, judged))
        results.common += _in_common(part, {rule: ranker for rule, ranker in rankers.items() if ranker}, judged, peers)
        results.errors += time_errors(part, advisor) if advisor else ()


def _applicable(orders: Orders, variants: Mapping[str, Variant], device: Device, problem: ConvProblem) -> list[str]:
    """The order of a problem, without what its variants' own rules exclude."""
    return [name for name in orders[problem] if name in variants and variants[name].why_not(problem, device) is None]


def _in_common(costs: Costs, rankers: Mapping[str, Ranker], judged: Judged, peers: Peers) -> list[tuple[str, Result]]:
    """Results of every rule on the problems where all have a score, against the variant that was the peers' oracle.

    A slowdown is a ratio within one run: a peer's time over that variant's time in the peers' run, and any other
    rule's over its time in the measurements. It may be below 1, where the measurements have a faster variant.
    """
    against = {problem: peers.oracle[problem] for problem in costs.problems if problem in peers.oracle}
    stands = [result for result in judge(costs, _only(against)) if result.variant == against[result.problem]]
    theirs = {rule: [of[problem] for problem in costs.problems if problem in of] for rule, of in peers.results.items()}
    everyone = {rule: results for rule, results in ({**judged, **theirs}).items() if results}
    shared = {result.problem for result in comparable(everyone | {ORACLE: stands})[ORACLE]}
    part = costs.where(shared.__contains__)
    again = {rule: judge(part, ranker, against) for rule, ranker in rankers.items() if rule not in peers.results}
    again |= {ORACLE: judge(part, _only(against), against)}
    again |= {rule: [of[problem] for problem in part.problems] for rule, of in peers.results.items() if shared}
    return [(rule, result) for rule, results in again.items() for result in results]


def _only(chosen: Mapping[ConvProblem, str]) -> Ranker:
    return lambda problem: [chosen[problem]] if problem in chosen else None


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
