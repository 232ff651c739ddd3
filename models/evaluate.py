"""How good advice is on layers never trained on, beside simpler rules and cuDNN's own."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data import networks
from data.errors import NotEnoughData
from data.measurement import Device
from data.parquet import distinct_problems
from data.problem import ConvProblem
from kernels.catalog import VARIANTS
from kernels.variant import Variant
from models.advisor import Advisor
from models.calibration import calibrate
from models.costs import Costs, device_of, from_table, is_of, is_tied, layer_of
from models.teacher import CAP
from models.train import Options, fit, train
from models.tree_file import TreeModel, with_card, with_scores

HOLD_OUT_PARTS: Final = 5
"""One of so many parts of the layers is held out to judge a retrained tree."""

TREE: Final = "tree"
SINGLE_BEST: Final = "single best"
ORACLE: Final = "oracle"

Ranker = Callable[[ConvProblem], Iterable[str] | None]
"""The variants that a rule would run on a problem, best first; None where it says nothing."""

Progress = Callable[[float], None]
"""Told the share that is done, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one rule's choice cost on one problem.

    Parameters
    ----------
    problem : ConvProblem
    slowdown : float
        Time of the choice against the oracle's; of a refused choice, that of the next one.
    is_tied : bool
        Whether choice and oracle are closer than the noise.
    is_refused : bool
        Whether the device refused the first choice.
    is_oracle : bool
        Whether the choice is the very variant that was fastest.
    """

    problem: ConvProblem
    slowdown: float
    is_tied: bool
    is_refused: bool
    is_oracle: bool


@dataclass(frozen=True, slots=True)
class Score:
    """What the choices of one rule cost: slowdown against the oracle over so many problems."""

    n_problems: int
    geometric_mean: float
    p95: float
    worst: float
    share_tied: float
    share_refused: float
    accuracy: float
    worst_problem: str

    @classmethod
    def of(cls, results: Sequence[Result]) -> Score:
        """Summarise; at least one result."""
        slowdowns = np.array([result.slowdown for result in results])
        return cls(
            n_problems=len(results),
            geometric_mean=float(np.exp(np.log(slowdowns).mean())),
            p95=float(np.quantile(slowdowns, 0.95)),
            worst=float(slowdowns.max()),
            share_tied=float(np.mean([result.is_tied for result in results])),
            share_refused=float(np.mean([result.is_refused for result in results])),
            accuracy=float(np.mean([result.is_oracle for result in results])),
            worst_problem=results[int(slowdowns.argmax())].problem.key,
        )


@dataclass(frozen=True)
class Report:
    """Scores of every rule: over all problems, by dtype and layout, and by the network held out.

    Parameters
    ----------
    device_id : str
    overall : dict of rule to Score
        The tree, each source of picks, the single best of the dtype and layout, and the oracle.
    by_precision : dict of ``dtype/layout`` to dict of rule to Score
    by_network : dict of network to dict of rule to Score
    """

    device_id: str
    overall: dict[str, Score]
    by_precision: dict[str, dict[str, Score]]
    by_network: dict[str, dict[str, Score]]

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


@dataclass(frozen=True)
class Challenge:
    """A retrained tree against the one in use, on layers that neither was trained on.

    Parameters
    ----------
    model : TreeModel
        The challenger, trained on everything.
    slowdown : float
        Geometric mean over the held-out layers of a tree trained like the challenger, but without them.
    champion_slowdown : float
        The same of a tree trained like the champion, on what was measured when the champion was made; NaN where there
        is no champion.
    """

    model: TreeModel
    slowdown: float
    champion_slowdown: float

    @property
    def is_no_worse(self) -> bool:
        """Whether the challenger may replace the champion."""
        return not self.slowdown > self.champion_slowdown


def evaluate(
    table: pa.Table,
    picks: pa.Table | None = None,
    *,
    device_id: str,
    network_layers: Mapping[str, Iterable[ConvProblem]] | None = None,
    seed: int = 0,
    options: Options | None = None,
    variants: Mapping[str, Variant] = VARIANTS,
    on_progress: Progress | None = None,
) -> Report:
    """Hold out each network in turn: train on every layer that it does not have, choose for those it has.

    Parameters
    ----------
    table, picks : pyarrow.Table
        In `data.parquet.SCHEMA` and `PICKS_SCHEMA`.
    device_id : str
    network_layers : mapping of name to layers
        By default the seed networks. Batch, dtype and layout of a layer do not matter.
    seed, options
        As in `train`.
    variants : mapping of str to Variant
        The catalogue, whose rules mask the choices.
    on_progress : callable

    Raises
    ------
    NotEnoughData, UnknownDevice
    """
    device, costs = device_of(table, device_id), from_table(table, device_id)
    measured = {layer_of(problem) for problem in costs.problems}
    named = network_layers or _seed_networks()
    held_out = {name: {layer_of(problem) for problem in layers} & measured for name, layers in named.items()}
    held_out = {name: layers for name, layers in held_out.items() if layers}
    chosen = _picks(picks, device_id)
    found: list[tuple[str, str, str, list[Result]]] = []
    for done, (name, layers) in enumerate(held_out.items()):
        known, unseen = _split(costs, layers)
        advisor = Advisor(fit(known, device, seed=seed, options=options), device, variants=variants)
        for precision, part in _by_precision(unseen).items():
            order = single_best_order(_by_precision(known).get(precision, known))
            rankers: dict[str, Ranker] = {
                TREE: advisor.predict_order,
                **{source: _first_then(first, order) for source, first in chosen.items()},
                SINGLE_BEST: partial(_always, order),
                ORACLE: _oracle(part),
            }
            found += [(name, precision, rule, judge(part, ranker)) for rule, ranker in rankers.items()]
        if on_progress:
            on_progress((done + 1) / len(held_out))
    precisions = sorted({precision for _, precision, _, _ in found})
    return Report(
        device_id=device_id,
        overall=_scores(found),
        by_precision={key: _scores([row for row in found if row[1] == key]) for key in precisions},
        by_network={key: _scores([row for row in found if row[0] == key]) for key in held_out},
    )


def challenge(
    table: pa.Table,
    champion: TreeModel | None,
    *,
    device_id: str,
    seed: int = 0,
    options: Options | None = None,
    variants: Mapping[str, Variant] = VARIANTS,
    on_progress: Progress | None = None,
) -> Challenge:
    """Train a challenger, and compare it with the champion on layers held out from both.

    Parameters
    ----------
    table, device_id, seed, options
        As in `train`.
    champion : TreeModel or None
        The tree in use.
    variants, on_progress
        As in `evaluate`.

    Raises
    ------
    NotEnoughData, UnknownDevice

    Notes
    -----
    A champion that has seen the held-out layers cannot be judged by them, so its recipe is: its seed and options, on
    the rows of the table that are no newer than its data. Where the table does not have those, the champion is judged
    as it is, in its own favour.
    """
    report = on_progress or (lambda _share: None)
    costs = from_table(table, device_id)
    known, unseen = hold_out(costs)
    device = device_of(table, device_id)
    rehearsal = fit(known, device, seed=seed, options=options)
    slowdown = _slowdown(rehearsal, unseen, variants)
    confidence = calibrate(Advisor(rehearsal, variants=variants), unseen)
    report(0.35)
    champion_slowdown = math.nan
    if champion:
        rival = _without(champion, table, unseen)
        champion_slowdown = _slowdown(rival, unseen, variants)
    report(0.65)
    model = train(table, device_id=device_id, seed=seed, options=options)
    scores = {"held_out_slowdown": slowdown, "held_out_layers": len({layer_of(each) for each in unseen.problems})}
    report(1.0)
    return Challenge(with_card(with_scores(model, scores), confidence=confidence), slowdown, champion_slowdown)


def held_out_slowdown(
    costs: Costs,
    device: Device,
    *,
    seed: int = 0,
    options: Options | None = None,
    variants: Mapping[str, Variant] = VARIANTS,
) -> float:
    """Geometric-mean slowdown on the held-out layers of a tree trained on the others."""
    known, unseen = hold_out(costs)
    return _slowdown(fit(known, device, seed=seed, options=options), unseen, variants)


def hold_out(costs: Costs) -> tuple[Costs, Costs]:
    """The rows to train on and the rows to judge by: the layers whose hash says so, one of `HOLD_OUT_PARTS`.

    A layer is on the same side in every table, and with it all its batches, dtypes and layouts.
    """
    digests = {layer: _digest(layer) for layer in {layer_of(problem) for problem in costs.problems}}
    chosen = {layer for layer, digest in digests.items() if digest % HOLD_OUT_PARTS == 0}
    return _split(costs, chosen or {min(digests, key=digests.__getitem__)})


def judge(costs: Costs, ranker: Ranker) -> list[Result]:
    """What a rule's choices cost where it makes any.

    A choice that was never tried is passed over. Where the device refuses every choice, the slowest variant counts.
    """
    column = {name: place for place, name in enumerate(costs.variants)}
    return [
        _judge_row(costs, row, [column[name] for name in ranked if name in column])
        for row, problem in enumerate(costs.problems)
        if (ranked := ranker(problem)) is not None
    ]


def single_best_order(costs: Costs) -> list[str]:
    """The variants by geometric-mean slowdown, refusals and gaps counting as far behind."""
    means = np.nan_to_num(costs.log_slowdown(CAP), nan=CAP).mean(axis=0)
    return [costs.variants[place] for place in np.argsort(means, kind="stable")]


def _judge_row(costs: Costs, row: int, ranked: Sequence[int]) -> Result:
    times = costs.time_ms[row]
    tried = [place for place in ranked if costs.is_known[row, place]]
    chosen = next((place for place in tried if np.isfinite(times[place])), int(np.nanargmax(times)))
    fastest = int(np.nanargmin(np.where(costs.is_pruned[row], np.nan, times)))
    noise = costs.noise[row]
    return Result(
        problem=costs.problems[row],
        slowdown=float(times[chosen] / times[fastest]),
        is_tied=is_tied(times[chosen], noise[chosen], times[fastest], noise[fastest]),
        is_refused=not tried or tried[0] != chosen,
        is_oracle=chosen == fastest,
    )


def _slowdown(model: TreeModel, costs: Costs, variants: Mapping[str, Variant]) -> float:
    return Score.of(judge(costs, Advisor(model, variants=variants).predict_order)).geometric_mean


def _without(champion: TreeModel, table: pa.Table, unseen: Costs) -> TreeModel:
    """The champion's recipe on its data but for these layers, or the champion where its data is not there."""
    layers = {layer_of(problem) for problem in unseen.problems}
    try:
        until = pa.scalar(datetime.fromisoformat(champion.card["data_until"]), table["measured_at"].type)
        seed, options = champion.card["seed"], Options(**champion.card["options"])
        costs = from_table(table.filter(pc.less_equal(table["measured_at"], until)), champion.device.id)
        return fit(_split(costs, layers)[0], champion.device, seed=seed, options=options)
    except (NotEnoughData, KeyError, TypeError, ValueError):
        return champion


def _seed_networks() -> dict[str, list[ConvProblem]]:
    return {name: [layer.problem for layer in networks.layers(name)] for name in networks.GROUPS["seeds"]}


def _split(costs: Costs, layers: Collection[ConvProblem]) -> tuple[Costs, Costs]:
    """The problems of other layers, and those of these."""
    is_held = [layer_of(problem) in layers for problem in costs.problems]
    return costs.take(np.flatnonzero(~np.array(is_held))), costs.take(np.flatnonzero(is_held))


def _by_precision(costs: Costs) -> dict[str, Costs]:
    names = np.array([f"{problem.dtype}/{problem.layout}" for problem in costs.problems])
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


def _always(order: Sequence[str], _problem: ConvProblem) -> Sequence[str]:
    return order


def _first_then(chosen: Mapping[ConvProblem, str], order: Sequence[str]) -> Ranker:
    """A rule that gives one choice; where that is refused, the single best stands in."""
    return lambda problem: [chosen[problem], *order] if problem in chosen else None


def _oracle(costs: Costs) -> Ranker:
    times = np.where(costs.is_pruned | np.isnan(costs.time_ms), np.inf, costs.time_ms)
    fastest = dict(zip(costs.problems, (costs.variants[place] for place in times.argmin(axis=1)), strict=True))
    return lambda problem: [fastest[problem]]


def _scores(found: Sequence[tuple[str, str, str, list[Result]]]) -> dict[str, Score]:
    by_rule: dict[str, list[Result]] = {}
    for _, _, rule, results in found:
        by_rule.setdefault(rule, []).extend(results)
    return {rule: Score.of(results) for rule, results in by_rule.items() if results}


def _digest(layer: ConvProblem) -> int:
    return int.from_bytes(hashlib.sha256(layer.key.encode()).digest()[:8], "big")
