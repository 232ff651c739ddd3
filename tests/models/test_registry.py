"""The registry: which trees there are, which is in use, and what happens to broken ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conv_advisor.data.errors import ModelRejected, UnknownDevice, UnknownModel
from conv_advisor.data.measurement import Device
from conv_advisor.models.registry.on_disk import POINTER_FILE, Registry
from conv_advisor.models.tree.file import TREE_FILE, TreeModel, write
from tests.models import hand_made

ID = hand_made.DEVICE.id


def another(spread: float = 0.2) -> TreeModel:
    return hand_made.model(spread=np.full(3, spread, dtype=np.float32))


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    write(tmp_path / "shipped" / ID, hand_made.model())
    return tmp_path / "shipped"


@pytest.fixture
def registry(tmp_path: Path, shipped: Path) -> Registry:
    return Registry(tmp_path / "home", shipped=shipped)


def test_the_shipped_tree_is_in_use_at_first(registry: Registry) -> None:
    assert registry.devices() == [ID]
    assert registry.active(ID).id == hand_made.model().id
    assert registry.problem(ID) is None
    (entry,) = registry.list()
    assert (entry.id, entry.is_shipped, entry.is_active) == (hand_made.model().id, True, True)


def test_adding_keeps_the_tree_in_use(registry: Registry) -> None:
    assert registry.add(another()) == another().id
    assert registry.active(ID).id == hand_made.model().id
    assert [(entry.id, entry.is_active) for entry in registry.list(ID)] == [
        (hand_made.model().id, True),
        (another().id, False),
    ]


def test_activating_and_back(registry: Registry) -> None:
    registry.add(another())
    registry.activate(ID, another().id)
    assert registry.active(ID).id == another().id
    assert [entry.is_active for entry in registry.list(ID)] == [False, True]
    registry.activate(ID, hand_made.model().id)
    assert registry.active(ID).id == hand_made.model().id


def test_another_process_sees_the_change_and_reads_once(tmp_path: Path, shipped: Path, registry: Registry) -> None:
    watcher = Registry(tmp_path / "home", shipped=shipped)
    before = watcher.active(ID)
    assert watcher.active(ID) is before
    registry.add(another())
    registry.activate(ID, another().id)
    assert watcher.active(ID).id == another().id
    assert before.id == hand_made.model().id


def test_adding_twice_keeps_one(registry: Registry, tmp_path: Path) -> None:
    assert registry.add(another()) == registry.add(another())
    assert [folder.name for folder in (tmp_path / "home" / "models" / ID).iterdir()] == [another().id]


def test_a_device_without_a_shipped_tree(registry: Registry) -> None:
    device = Device(id="cpu", name="Some CPU", kind="cpu")
    model_id = registry.add(hand_made.model(device))
    assert registry.devices() == ["cpu", ID]
    with pytest.raises(UnknownDevice, match="cpu"):
        registry.active("cpu")
    registry.activate("cpu", model_id)
    assert registry.active("cpu").device == device


def test_a_broken_tree_falls_back_to_the_shipped_one_and_says_so(registry: Registry, tmp_path: Path) -> None:
    registry.add(another())
    registry.activate(ID, another().id)
    (tmp_path / "home" / "models" / ID / another().id / TREE_FILE).write_bytes(b"broken")
    assert registry.active(ID).id == hand_made.model().id
    assert "sha256" in str(registry.problem(ID))
    broken = registry.list(ID)[1]
    assert (broken.id, broken.is_active) == (another().id, False)
    assert "sha256" in str(broken.problem)
    with pytest.raises(ModelRejected, match="sha256"):
        registry.activate(ID, another().id)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model_id": "gone"}', '{"model_id": "../../shipped"}'])
def test_a_broken_pointer_falls_back_too(registry: Registry, tmp_path: Path, text: str) -> None:
    registry.add(another())
    (tmp_path / "home" / "models" / ID / POINTER_FILE).write_text(text, encoding="utf-8")
    assert registry.active(ID).id == hand_made.model().id
    assert registry.problem(ID)


def test_without_a_shipped_tree_a_broken_one_is_an_error(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "home", shipped=tmp_path / "none")
    registry.activate(ID, registry.add(another()))
    (tmp_path / "home" / "models" / ID / another().id / TREE_FILE).write_bytes(b"broken")
    with pytest.raises(ModelRejected, match="sha256"):
        registry.active(ID)


@pytest.mark.parametrize("name", ["no-such", "..", "../shipped/" + ID, ""])
def test_unknown_names_are_refused(registry: Registry, name: str) -> None:
    with pytest.raises(UnknownDevice):
        registry.active(name)
    with pytest.raises(UnknownDevice):
        registry.activate(name, another().id)
    with pytest.raises(UnknownModel, match=hand_made.model().id):
        registry.activate(ID, name or "..")


def test_a_device_whose_name_is_no_folder_is_refused(registry: Registry) -> None:
    with pytest.raises(ModelRejected, match=r"'\.\./up'"):
        registry.add(hand_made.model(Device(id="../up", name="Up", kind="cpu")))


def test_an_unfinished_folder_is_not_listed(registry: Registry, tmp_path: Path) -> None:
    write(tmp_path / "home" / "models" / ID / f".{another().id}.part", another())
    assert [entry.id for entry in registry.list()] == [hand_made.model().id]


@pytest.mark.parametrize("device_id", ["../secrets", "a\0b", "", "/etc", "UPPER"])
def test_a_name_that_is_no_device_never_reaches_the_file_system(tmp_path: Path, device_id: str) -> None:
    with pytest.raises(UnknownDevice):
        Registry(tmp_path).active(device_id)
