"""A retrained tree against the one in use, on layers that neither was trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from conv_advisor.data.errors import NotEnoughData
from conv_advisor.data.measurement import Device
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Variant
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import Costs, device_of, from_table, split
from conv_advisor.models.evaluation.confidence import calibrate
from conv_advisor.models.evaluation.evaluate import Progress
from conv_advisor.models.evaluation.judging import Result, Score, comparable, judge
from conv_advisor.models.retraining.changes import Changes, changes_between
from conv_advisor.models.retraining.gate import objections
from conv_advisor.models.training.enough import held_out_of
from conv_advisor.models.training.options import Options
from conv_advisor.models.training.train import data_digest, fit, train, trainable, training_set
from conv_advisor.models.tree.file import TreeModel, with_card, with_scores


@dataclass(frozen=True)
class Challenge:
    """A retrained tree against the one in use, on layers that neither was trained on.

    Parameters
    ----------
    model : TreeModel
        The challenger, trained on everything.
    slowdown : float
        Geometric mean over the held-out layers of a tree that is trained like the challenger, but without them.
    champion_slowdown : float
        The same of a tree that is trained like the champion, on what was measured when the champion was made; NaN where
        there is no champion.
    changes : Changes or None
        How the choices of the two differ on these layers; None where there is no champion.
    objections : tuple of str
        What speaks against the challenger, in the words of `models.retraining.gate`; empty where there is no champion.
    """

    model: TreeModel
    slowdown: float
    champion_slowdown: float
    changes: Changes | None = None
    objections: tuple[str, ...] = ()

    @property
    def is_no_worse(self) -> bool:
        """Whether the challenger may replace the champion."""
        return not self.objections


def challenge(
    table: pa.Table,
    champion: TreeModel | None,
    *,
    device_id: str,
    options: Options | None = None,
    variants: Mapping[str, Variant] = VARIANTS,
    on_progress: Progress | None = None,
    n_threads: int = 1,
) -> Challenge:
    """Train a challenger, and compare it with the champion on layers held out from both.

    Parameters
    ----------
    table, device_id, options, n_threads
        As in `train`.
    champion : TreeModel or None
        The tree in use, even a borrowed one.
    variants, on_progress
        As in `evaluate`.

    Raises
    ------
    NotEnoughData, UnknownDevice

    Notes
    -----
    A champion that has seen the held-out layers cannot be judged by them, so its recipe is judged: its seed and those
    of its options that training still has, on the rows of the table that are no newer than its data. Where the table
    lacks that data, as for a borrowed champion, the champion is judged as it is, in its own favour.
    """
    report = on_progress or (lambda _share: None)
    costs = from_table(table, device_id)
    known, unseen = hold_out(costs)
    device = device_of(table, device_id)
    rehearsal = fit(known, device, options=options, n_threads=n_threads)
    results = _results(rehearsal, device, unseen, variants)
    confidence = calibrate(Advisor(rehearsal, variants=variants), unseen)
    report(0.35)
    changes: Changes | None = None
    against: tuple[str, ...] = ()
    if champion:
        earlier = _results(_without(champion, table, unseen, rehearsal, n_threads), device, unseen, variants)
        slowdown, champion_slowdown = _slowdowns(results, earlier)
        changes, against = changes_between(earlier, results), objections(earlier, results)
    else:
        (slowdown,), champion_slowdown = _slowdowns(results), math.nan
    report(0.65)
    model = train(table, device_id=device_id, options=options, n_threads=n_threads, costs=costs)
    scores = {"held_out_slowdown": slowdown, "held_out_layers": len({problem.layer for problem in unseen.problems})}
    report(1.0)
    model = with_card(with_scores(model, scores), confidence=confidence)
    if changes and champion:
        model = with_card(model, changes={"champion": champion.id, **changes.to_dict()})
    return Challenge(model, slowdown, champion_slowdown, changes, against)


def hold_out(costs: Costs) -> tuple[Costs, Costs]:
    """The rows to train on and the rows to judge by: the layers of `models.training.enough.held_out_of`.

    A layer is on the same side in every table, and with it all its batches, dtypes and layouts. Layers that no tree is
    trained on are on neither side: they judge no retrained tree, since a tree chosen by them is tuned on them.

    Raises
    ------
    NotEnoughData
    """
    costs = trainable(costs)
    layers = {problem.layer for problem in costs.problems}
    if not layers:
        raise NotEnoughData("every layer that was measured is one of those that judge trees and teach none")
    return split(costs, held_out_of(layers))


def _results(model: TreeModel, device: Device, costs: Costs, variants: Mapping[str, Variant]) -> list[Result]:
    return judge(costs, Advisor(model, device, variants=variants).predict_order)


def _slowdowns(*trees: Sequence[Result]) -> list[float]:
    """Geometric mean of each tree on the problems where every tree's choice was timed to the end.

    Raises
    ------
    NotEnoughData
        There is no such problem.
    """
    judged = comparable({str(place): results for place, results in enumerate(trees)})
    if not all(judged.values()):
        raise NotEnoughData("no choice on the held-out layers was timed beyond its first launch")
    return [Score.of(results).geometric_mean for results in judged.values()]


def _without(
    champion: TreeModel, table: pa.Table, unseen: Costs, rehearsal: TreeModel | None = None, n_threads: int = 1
) -> TreeModel:
    """The champion's recipe on its data without these layers, or the champion where its data is missing.

    Where the rehearsal was trained so, on the same data, it is that tree: the same bits would come out again.
    """
    layers = {problem.layer for problem in unseen.problems}
    try:
        until = pa.scalar(datetime.fromisoformat(champion.card["data_until"]), table["measured_at"].type)
        known_options = {option.name for option in fields(Options)}
        seed, its_options = champion.card["seed"], champion.card["options"].items()
        options = Options(**{name: value for name, value in its_options if name in known_options})
        costs = from_table(table.filter(pc.less_equal(table["measured_at"], until)), champion.device.id)
        known, _ = split(costs, layers)
        if rehearsal and champion.device == rehearsal.device:
            ways = data_digest(training_set(known)), seed, asdict(options)
            if ways == tuple(rehearsal.card[name] for name in ("data_sha256", "seed", "options")):
                return rehearsal
        return fit(known, champion.device, seed=seed, options=options, n_threads=n_threads)
    except (NotEnoughData, KeyError, TypeError, ValueError):
        return champion
