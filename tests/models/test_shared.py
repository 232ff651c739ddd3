"""Trees in a database: every home that follows it has them, and the one in charge; none of them mixes anything up."""

from __future__ import annotations

import errno
import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import insert, select, update

from conv_advisor.data.database.tables import ACTIVE_MODELS, MODELS
from conv_advisor.data.errors import StoreError, UnknownDevice, UnknownModel
from conv_advisor.data.store import Store
from conv_advisor.models.registry.on_disk import POINTER_FILE, Registry
from conv_advisor.models.registry.shared import SharedModels
from conv_advisor.models.tree.file import PROTOCOL, TREE_FILE, TreeModel, write
from tests.models import hand_made

ID = hand_made.DEVICE.id


def another(spread: float = 0.2) -> TreeModel:
    return hand_made.model(spread=np.full(3, spread, dtype=np.float32))


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with Store(database_url) as store:
        yield store


class Process:
    """What one process has: a home of its own and the database."""

    def __init__(self, home: Path, store: Store, shipped: Path) -> None:
        self.registry = Registry(home, shipped=shipped)
        self.models = SharedModels(self.registry, store.engine)
        self.models.join()

    @property
    def active(self) -> str:
        return self.registry.active(ID).id


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    write(tmp_path / "shipped" / ID, hand_made.model())
    return tmp_path / "shipped"


@pytest.fixture
def two(tmp_path: Path, store: Store, shipped: Path) -> tuple[Process, Process]:
    return Process(tmp_path / "one", store, shipped), Process(tmp_path / "two", store, shipped)


def activations(store: Store) -> dict[str, tuple[str, int]]:
    with store.engine.connect() as connection:
        return {row.device_id: (row.model_id, row.activation) for row in connection.execute(select(ACTIVE_MODELS))}


def test_a_tree_put_in_charge_in_one_process_is_in_charge_in_the_other(two: tuple[Process, Process]) -> None:
    one, other = two
    one.models.add(another(), in_charge=True)
    assert one.active == another().id
    assert other.active == hand_made.model().id
    other.models.follow()
    assert other.active == another().id
    other.models.activate(ID, hand_made.model().id)
    one.models.follow()
    assert one.active == other.active == hand_made.model().id


def test_a_tree_that_is_only_kept_can_be_put_in_charge_anywhere(two: tuple[Process, Process]) -> None:
    one, other = two
    one.models.add(another(), in_charge=False)
    other.models.activate(ID, another().id)
    assert (one.active, other.active) == (hand_made.model().id, another().id)
    assert [entry.id for entry in other.registry.list(ID)] == [hand_made.model().id, another().id]


def test_following_changes_nothing_where_nothing_has_changed(two: tuple[Process, Process]) -> None:
    one, other = two
    one.models.add(another(), in_charge=True)
    other.models.follow()
    before = other.registry.active(ID), other.registry.activations
    for _ in range(3):
        other.models.follow()
    assert (other.registry.active(ID), other.registry.activations) == before
    other.registry.activate(ID, hand_made.model().id)  # by somebody who knows nothing of databases
    other.models.follow()
    assert other.active == hand_made.model().id


def test_a_process_that_starts_later_has_all_and_a_home_from_before_keeps_its_choice(
    tmp_path: Path, store: Store, shipped: Path
) -> None:
    before = Registry(tmp_path / "old", shipped=shipped)
    before.add(another(0.3))
    before.activate(ID, before.add(another()))
    assert activations(store) == {}
    old, new = Process(tmp_path / "old", store, shipped), Process(tmp_path / "new", store, shipped)
    assert old.active == new.active == another().id
    assert activations(store) == {ID: (another().id, 1)}
    assert new.registry.trained() == {(ID, another().id), (ID, another(0.3).id)}


def test_what_the_database_says_counts_for_a_home_that_was_away(tmp_path: Path, store: Store, shipped: Path) -> None:
    away = Registry(tmp_path / "away", shipped=shipped)
    away.activate(ID, away.add(another(0.3)), activation=7)  # with another database, or before a backup was restored
    Process(tmp_path / "one", store, shipped).models.add(another(), in_charge=True)
    assert Process(tmp_path / "away", store, shipped).active == another().id


def test_processes_of_one_home_do_not_take_a_tree_back(tmp_path: Path, store: Store, shipped: Path) -> None:
    one, other = (Process(tmp_path / "home", store, shipped) for _ in range(2))
    one.models.add(another(), in_charge=True)
    one.models.activate(ID, hand_made.model().id)
    pointer = json.loads((tmp_path / "home" / "models" / ID / POINTER_FILE).read_text())
    assert pointer == {"model_id": hand_made.model().id, "activation": 2}
    with store.engine.begin() as connection:  # what the other has read before the last change
        connection.execute(update(ACTIVE_MODELS).values(model_id=another().id, activation=1))
    other.models.follow()
    assert one.active == other.active == hand_made.model().id


@pytest.mark.parametrize("spoil", ["tree", "card", "device", "json"])
def test_a_spoilt_tree_in_the_database_is_refused_and_changes_nothing(
    two: tuple[Process, Process], store: Store, spoil: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = two
    one.models.add(another(), in_charge=True)
    with store.engine.begin() as connection:
        row = connection.execute(select(MODELS)).one()
        spoilt = {
            "tree": {"tree": row.tree[:-1] + bytes([row.tree[-1] ^ 1])},
            "card": {"card": row.card.replace(f'"protocol": {PROTOCOL}', f'"protocol": {PROTOCOL + 1}')},
            "device": {"card": row.card.replace(f'"id": "{ID}"', '"id": "other-gpu"')},
            "json": {"card": "[" * 100_000},
        }[spoil]
        connection.execute(update(MODELS).values(**spoilt))
    for _ in range(2):
        other.models.follow()
    assert other.active == hand_made.model().id
    assert other.registry.trained() == set()
    refused = [record for record in caplog.records if "refused" in record.message or "cannot be used" in record.message]
    assert len(refused) == 2, "once for the tree and once for its being in charge"


def test_a_tree_that_a_full_or_closed_disk_keeps_out_is_taken_once_it_can_be(
    two: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    one.models.add(another(), in_charge=True)
    for refused in ("add", "activate"):
        with monkeypatch.context() as patched:
            patched.setattr(other.registry, refused, full_disk)
            with pytest.raises(StoreError, match=f"tree {another().id} of {ID} cannot be"):
                other.models.follow()
        assert other.active == hand_made.model().id
    other.models.follow()
    assert other.active == another().id


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_pointer_to_a_tree_that_does_not_exist_changes_nothing(two: tuple[Process, Process], store: Store) -> None:
    with store.engine.begin() as connection:
        connection.execute(insert(ACTIVE_MODELS), {"device_id": ID, "model_id": "0" * 12, "activation": 1})
    two[0].models.follow()
    assert two[0].active == hand_made.model().id
    with pytest.raises(UnknownModel):
        two[0].models.activate(ID, "1" * 12)
    with pytest.raises(UnknownDevice):
        two[0].models.activate("../up", "1" * 12)


def test_a_tree_damaged_on_disk_is_not_put_in_charge_of_all(two: tuple[Process, Process], store: Store) -> None:
    one, _ = two
    one.models.add(another(), in_charge=False)
    (one.registry._home / ID / another().id / TREE_FILE).write_bytes(b"broken")
    with pytest.raises(Exception, match="sha256"):
        one.models.activate(ID, another().id)
    assert activations(store) == {}


def test_keeping_is_part_of_somebodys_transaction(two: tuple[Process, Process], store: Store) -> None:
    one, other = two

    with store.engine.begin() as connection:
        one.models.keep(connection, another(), in_charge=True)
        connection.rollback()
    other.models.follow()
    assert activations(store) == {}
    assert other.registry.trained() == set()


def test_threads_that_follow_at_once_do_not_refuse_what_another_is_still_copying(
    two: tuple[Process, Process], caplog: pytest.LogCaptureFixture
) -> None:
    one, other = two
    with ThreadPoolExecutor(4) as threads:
        for spread in np.linspace(0.3, 0.9, 12):
            one.models.add(another(float(spread)), in_charge=True)
            for each in [threads.submit(other.models.follow) for _ in range(4)]:
                each.result()
            assert other.active == one.active == another(float(spread)).id
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []


def _activate_all(url: str, home: Path, shipped: Path, model_ids: list[str]) -> None:
    with Store(url) as store:
        process = Process(home, store, shipped)
        for model_id in model_ids:
            process.models.activate(ID, model_id)


def test_processes_that_put_trees_in_charge_at_once_agree_in_the_end(
    database_url: str, store: Store, tmp_path: Path, shipped: Path
) -> None:
    first = Process(tmp_path / "first", store, shipped)
    ids = [hand_made.model().id]
    for spread in (0.2, 0.3, 0.4):
        first.models.add(another(spread), in_charge=False)
        ids.append(another(spread).id)
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as pool:
        homes = [tmp_path / "a", tmp_path / "b", tmp_path / "b"]
        for each in [pool.submit(_activate_all, database_url, home, shipped, ids * 3) for home in homes]:
            each.result()
    model_id, activation = activations(store)[ID]
    assert activation == 3 * 3 * len(ids)
    for home in ("first", "a", "b"):
        assert Process(tmp_path / home, store, shipped).active == model_id


def test_a_database_that_is_gone_is_a_store_error(two: tuple[Process, Process], store: Store) -> None:
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE active_models")
    with pytest.raises(StoreError, match="models"):
        two[0].models.follow()
