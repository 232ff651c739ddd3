"""The gate that a retrained tree must pass: layers held out from it and from the tree in use."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from conv_advisor.models.costs import from_table
from conv_advisor.models.retraining.challenge import Challenge, _results, _without, challenge, hold_out
from conv_advisor.models.training import train as training
from conv_advisor.models.training.options import Options
from conv_advisor.models.training.threads import Each, threads
from conv_advisor.models.training.train import train
from conv_advisor.models.tree.file import TreeModel
from tests.models import synthetic

DEVICE_ID = synthetic.DEVICE.id


def test_hold_out_keeps_the_batches_of_a_layer_together_and_never_moves_a_layer(table: pa.Table) -> None:
    costs = from_table(table, DEVICE_ID)
    known, unseen = hold_out(costs)
    layers = [{problem.layer for problem in part.problems} for part in (known, unseen)]
    assert all(layers)
    assert not layers[0] & layers[1]
    assert len(known.problems) + len(unseen.problems) == len(costs.problems)
    fewer = costs.where(lambda problem: problem.n == 8)
    assert {problem.layer for problem in hold_out(fewer)[1].problems} == layers[1]


@dataclass
class Watched:
    """A challenge on the same data, and what each of its trainings was given."""

    found: Challenge
    threads: list[int]


@pytest.fixture(scope="module")
def watched(table: pa.Table, trained: TreeModel, quick: Options) -> Watched:
    counts: list[int] = []

    def counted(count: int) -> AbstractContextManager[Each]:
        counts.append(count)
        return threads(count)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training, "threads", counted)
        found = challenge(table, trained, device_id=DEVICE_ID, options=quick, variants=synthetic.CATALOGUE, n_threads=2)
    return Watched(found, counts)


def test_a_challenger_on_the_same_data_is_no_worse(watched: Watched, trained: TreeModel) -> None:
    found = watched.found
    assert found.slowdown == found.champion_slowdown
    assert found.is_no_worse
    assert found.model.id == trained.id
    assert found.model.card["scores"]["held_out_slowdown"] == found.slowdown
    assert found.objections == ()


def test_every_training_of_a_challenge_is_given_the_threads_and_none_is_made_twice(watched: Watched) -> None:
    assert watched.threads == [2, 2]


def test_a_challenger_with_more_data_beats_a_champion_with_little_and_says_how(quick: Options) -> None:
    quick = replace(quick, n_sampled=800)
    first = synthetic.table(synthetic.problems(synthetic.LAYERS["small"]))
    champion = train(first, device_id=DEVICE_ID, options=quick)
    others = [layer for name, layers in synthetic.LAYERS.items() if name != "small" for layer in layers]
    later = synthetic.table(synthetic.problems(others), measured_at=synthetic.MEASURED_AT + timedelta(days=1))
    both = pa.concat_tables([first, later])
    found = challenge(both, champion, device_id=DEVICE_ID, options=quick, variants=synthetic.CATALOGUE)
    assert found.slowdown < found.champion_slowdown
    assert found.is_no_worse
    assert found.changes is not None
    assert found.changes.n_better > found.changes.n_worse
    assert found.model.card["changes"]["champion"] == champion.id
    assert found.model.card["changes"]["better"][0]["before"] != found.model.card["changes"]["better"][0]["after"]
    assert found.model.id == train(both, device_id=DEVICE_ID, options=quick).id


def test_a_champion_is_judged_without_the_layers_held_out(table: pa.Table, trained: TreeModel) -> None:
    _, unseen = hold_out(from_table(table, DEVICE_ID))
    rival = _without(trained, table, unseen)
    assert rival.card["n_layers"] == 24 - len({problem.layer for problem in unseen.problems})
    assert rival.card["options"] == trained.card["options"]
    earlier = replace(trained, card=trained.card | {"options": trained.card["options"] | {"n_rounds_for_best": 500}})
    assert _without(earlier, table, unseen).id == rival.id, "options that are gone are passed over"
    assert _without(trained, table, unseen, rival) is rival, "the same bits would come out again"
    other = replace(rival, card=rival.card | {"options": rival.card["options"] | {"n_trees": 1}})
    assert _without(trained, table, unseen, other).id == rival.id


@pytest.mark.parametrize(
    "changes", [{"data_until": "2000-01-01T00:00:00+00:00"}, {"data_until": "then"}, {"options": {"n_trees": "many"}}]
)
def test_a_champion_that_cannot_be_trained_again_is_judged_as_it_is(
    table: pa.Table, trained: TreeModel, changes: dict[str, Any]
) -> None:
    champion = replace(trained, card=trained.card | changes)
    _, unseen = hold_out(from_table(table, DEVICE_ID))
    assert _without(champion, table, unseen) is champion


def test_a_champion_that_is_borrowed_is_judged_as_it_is_there(table: pa.Table, trained: TreeModel) -> None:
    lent = replace(trained, card=trained.card | {"device": trained.card["device"] | {"id": "next-door"}})
    _, unseen = hold_out(from_table(table, DEVICE_ID))
    assert _without(lent, table, unseen) is lent
    own, borrowed = (_results(tree, synthetic.DEVICE, unseen, synthetic.CATALOGUE) for tree in (trained, lent))
    assert own
    assert borrowed == own


def test_without_a_champion_the_challenger_may_be_used(trained: TreeModel) -> None:
    assert Challenge(trained, 1.5, math.nan).is_no_worse
    assert not Challenge(trained, 1.4, 1.5, objections=("float16/nchw",)).is_no_worse
