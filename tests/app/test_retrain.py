"""Retraining: the new tree takes over only if it is no worse, and running it again changes nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from conv_advisor.app.cli import learn
from conv_advisor.data.errors import UnknownDevice
from conv_advisor.data.gpus import gpus
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.store import Store
from conv_advisor.models.evaluation.judging import Result
from conv_advisor.models.evaluation.report import Report
from conv_advisor.models.registry.on_disk import Registry
from conv_advisor.models.retraining import challenge as gate
from conv_advisor.models.retraining.challenge import Challenge
from conv_advisor.models.retraining.changes import changes_between
from conv_advisor.models.retraining.retrain import champion_of, retrain
from conv_advisor.models.training.train import MOST_THREADS
from conv_advisor.models.tree.file import read, write
from tests.fakes import SMALL_DEVICE, small_measurements, small_tree

DEVICE = SMALL_DEVICE


@pytest.fixture(scope="module")
def trees():
    """Two trees of the device that differ."""
    return [small_tree(0.01), small_tree(0.02)]


@pytest.fixture
def url(database_url) -> str:
    with Store(database_url) as store:
        store.append(small_measurements(0.01))
    return database_url


@pytest.fixture
def challenged(monkeypatch, trees):
    """Trains nothing: the challenge ends as the test says."""

    def outcome(
        tree: int, slowdown: float, champion_slowdown: float = math.nan, objections: tuple[str, ...] = ()
    ) -> None:
        def challenge(table, _champion, *, device_id, on_progress, n_threads):
            assert (table.num_rows, device_id) == (60, DEVICE.id)
            assert 1 <= n_threads <= MOST_THREADS
            on_progress(1.0)
            return Challenge(trees[tree], slowdown, champion_slowdown, objections=objections)

        monkeypatch.setattr(gate, "challenge", challenge)

    return outcome


def test_the_first_tree_is_used(url, tmp_path, challenged, trees):
    challenged(0, 1.2)
    progress = []
    result = retrain(url, tmp_path, DEVICE.id, is_forced=False, on_progress=lambda *now: progress.append(now))
    assert result == {
        "device": DEVICE.id,
        "model": trees[0].id,
        "champion": None,
        "slowdown": 1.2,
        "champion_slowdown": None,
        "promoted": True,
        "forced": False,
        "reasons": [],
        "changes": None,
    }
    assert Registry(tmp_path).active(DEVICE.id).id == trees[0].id
    assert [fraction for fraction, _ in progress] == sorted(fraction for fraction, _ in progress)
    with Store(url) as store:
        assert [device.id for device in store.devices()] == [DEVICE.id], "what ships of others is not imported for it"


@pytest.mark.parametrize(
    ("objections", "is_forced", "is_promoted"),
    [((), False, True), (("it is worse",), False, False), (("it is worse",), True, True)],
)
def test_a_worse_tree_is_kept_but_not_used_unless_forced(
    url, tmp_path, challenged, trees, objections, is_forced, is_promoted
):
    challenged(0, 1.2)
    retrain(url, tmp_path, DEVICE.id, is_forced=False)
    challenged(1, 1.21, 1.2, objections)
    result = retrain(url, tmp_path, DEVICE.id, is_forced=is_forced)
    assert (result["promoted"], result["champion"], result["champion_slowdown"]) == (is_promoted, trees[0].id, 1.2)
    assert Registry(tmp_path).active(DEVICE.id).id == trees[is_promoted].id
    assert {entry.id for entry in Registry(tmp_path).list(DEVICE.id)} == {tree.id for tree in trees}


def test_a_tree_that_is_better_in_all_but_fails_a_part_is_not_used_and_says_why(
    url, tmp_path, challenged, trees, monkeypatch
):
    challenged(0, 1.2)
    retrain(url, tmp_path, DEVICE.id, is_forced=False)
    found = Challenge(trees[1], 1.1, 1.2, objections=("float16/nchw is worse",))
    monkeypatch.setattr(gate, "challenge", lambda _table, _champion, **_options: found)
    result = retrain(url, tmp_path, DEVICE.id, is_forced=False)
    assert (result["promoted"], result["reasons"]) == (False, ["float16/nchw is worse"])
    assert Registry(tmp_path).active(DEVICE.id).id == trees[0].id
    assert retrain(url, tmp_path, DEVICE.id, is_forced=True)["promoted"]


def test_a_gpu_that_borrows_a_tree_has_that_for_its_champion(tmp_path):
    registry = Registry(tmp_path)
    assert champion_of(registry, gpus()["nvidia-h100-80gb-hbm3"].device).device.id == "nvidia-h200"
    assert champion_of(registry, DEVICE) is None, "of which nothing is published"


@pytest.mark.parametrize(
    ("objections", "is_forced", "is_written"),
    [((), False, True), (("worse",), False, False), (("worse",), True, True)],
)
def test_what_ships_passes_the_same_gate(url, tmp_path, trees, monkeypatch, objections, is_forced, is_written):
    monkeypatch.setenv("CONV_ADVISOR_DATABASE_URL", url)
    judged = []

    def judge(*_, **options):
        judged.append((options["model"].id, options["trains"]))
        return Report({}, {}, {}, {}, {}, {}, {}, device_id=DEVICE.id)

    monkeypatch.setattr(learn, "_judge", judge)
    found = Challenge(trees[1], 1.1, 1.2, objections=objections)
    monkeypatch.setattr(gate, "challenge", lambda _table, _champion, **_options: found)
    folder = tmp_path / "shipped" / DEVICE.id
    write(folder, trees[0])
    report = tmp_path / "evaluation.json"
    result = learn._train_into(
        folder, DEVICE.id, lambda _share: None, ship=True, is_forced=is_forced, report_file=report
    )
    assert judged == [(trees[1].id, True)] * is_written
    assert report.exists() is is_written
    assert not is_written or json.loads(report.read_text())["device_id"] == DEVICE.id
    assert (result["written"], result["forced"], result["reasons"]) == (is_written, is_forced, list(objections))
    assert read(folder).id == trees[is_written].id


def test_running_it_again_changes_nothing(url, tmp_path, challenged, trees):
    for _ in range(2):
        challenged(0, 1.2, 1.2)
        assert retrain(url, tmp_path, DEVICE.id, is_forced=False)["promoted"]
    assert [entry.id for entry in Registry(tmp_path).list(DEVICE.id)] == [trees[0].id]


def test_a_damaged_champion_does_not_stand_in_the_way(url, tmp_path, challenged, trees):
    challenged(0, 1.2)
    retrain(url, tmp_path, DEVICE.id, is_forced=False)
    for card in Path(tmp_path).glob("models/*/*/card.json"):
        card.write_text("{}")
    challenged(1, 1.3)
    assert retrain(url, tmp_path, DEVICE.id, is_forced=False)["promoted"]
    assert Registry(tmp_path).active(DEVICE.id).id == trees[1].id


def test_what_the_new_tree_changes_is_in_the_result(url, tmp_path, trees, monkeypatch):
    layer = ConvProblem.parse("7-1-1-8-8")
    before, after = (
        [Result(layer, slowdown, False, False, False, name)] for name, slowdown in (("a", 2.0), ("b", 1.0))
    )

    def challenge(_table, _champion, *, device_id, on_progress, n_threads):
        return Challenge(trees[0], 1.0, 2.0, changes_between(before, after))

    monkeypatch.setattr(gate, "challenge", challenge)
    result = retrain(url, tmp_path, DEVICE.id, is_forced=False)
    assert result["changes"]["n_better"] == 1
    assert result["changes"]["better"][0]["after"] == "b"
    assert json.loads(json.dumps(result)) == result


def test_a_device_without_measurements_is_unknown(url, tmp_path):
    with pytest.raises(UnknownDevice):
        retrain(url, tmp_path, "abacus", is_forced=False)
