"""The trained trees of every device, those that ship and those trained here, and which of them is in use."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from conv_advisor.data.errors import ModelRejected, UnknownDevice, UnknownModel
from conv_advisor.models.tree.file import CARD_FILE, TreeModel, read, write

SHIPPED: Final = Path(__file__).parent.parent / "trained"
"""One folder a device, read-only."""

POINTER_FILE: Final = "active.json"

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*")
"""Names that a device's folder may have."""

_Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One tree that the registry has.

    Parameters
    ----------
    id : str
        The model's; the folder's name where the file cannot be used.
    device_id : str
    is_shipped, is_active : bool
    card : dict
        Empty where the file cannot be used.
    problem : str or None
        Why the file cannot be used.
    """

    id: str
    device_id: str
    is_shipped: bool
    is_active: bool
    card: dict[str, Any]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Loaded:
    model: TreeModel
    files: tuple[str, str]
    stamps: tuple[_Stamp, _Stamp]
    problem: str | None


class Registry:
    """Every tree of every device.

    Parameters
    ----------
    home : Path
        Where trees trained here are kept: ``<home>/models/<device_id>/<model_id>/``, and beside them a pointer to the
        one in use.
    shipped : Path
        Where the trees that ship with the project are.

    Attributes
    ----------
    activations : int
        How often this object has put a tree in charge.

    Notes
    -----
    Several processes may share a home. Folders appear whole and never change, the pointer is replaced in one step, and
    `active` looks at the pointer each time: a process changes to a new tree with its next call, and an answer made
    with what one call returned never mixes two trees.
    """

    def __init__(self, home: Path, *, shipped: Path = SHIPPED) -> None:
        self._home = home / "models"
        self._shipped = shipped
        self.activations = 0
        self._loaded: dict[str, _Loaded] = {}

    def devices(self) -> list[str]:
        """The ids of the devices that have a tree, shipped or trained here."""
        names = {folder.parent.name for folder in self._shipped.glob(f"*/{CARD_FILE}")}
        names |= {card.parent.parent.name for card in self._home.glob(f"*/*/{CARD_FILE}")}
        return sorted(name for name in names if _NAME.fullmatch(name))

    def list(self, device_id: str | None = None) -> Sequence[Entry]:
        """Every tree by device, unusable ones too; the shipped one first, then by age."""
        return [entry for name in self.devices() if device_id in (None, name) for entry in self._entries(name)]

    def active(self, device_id: str) -> TreeModel:
        """The tree in use.

        Where the chosen tree cannot be used, the shipped one; `problem` then says why.

        Raises
        ------
        UnknownDevice
            The device has no tree.
        ModelRejected
            No tree of the device can be used.
        """
        loaded = self._loaded.get(device_id)
        pointer, card = loaded.files if loaded else self._files(device_id)
        stamps = (_stamp(pointer), _stamp(card))
        if loaded is None or loaded.stamps != stamps:
            model, problem = self._load(device_id)
            loaded = self._loaded[device_id] = _Loaded(model, (pointer, card), stamps, problem)
        return loaded.model

    def in_use(self) -> Iterator[TreeModel]:
        """The trees in use, of every device; without those that are refused."""
        for device_id in self.devices():
            with suppress(ModelRejected):
                yield self.active(device_id)

    def problem(self, device_id: str) -> str | None:
        """Why `active` does not give the tree that was chosen; None where it does."""
        self.active(device_id)
        return self._loaded[device_id].problem

    def activate(self, device_id: str, model_id: str, *, activation: int | None = None) -> TreeModel:
        """Put a tree in use, from the next call of `active` on in any process with this home.

        Parameters
        ----------
        activation : int, optional
            Number of times that a tree of the device has been put in charge of all processes, this time included
            (`models.registry.shared`); by default the number stays as it is.

        Raises
        ------
        UnknownDevice, UnknownModel, ModelRejected
        """
        model = self.get(device_id, model_id)
        pointer = self._pointer(device_id)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        unfinished = pointer.with_name(f".{POINTER_FILE}.{uuid.uuid4().hex}")
        number = self.activation(device_id) if activation is None else activation
        unfinished.write_text(json.dumps({"model_id": model_id, "activation": number}), encoding="utf-8")
        os.replace(unfinished, pointer)  # noqa: PTH105 - the name says that it is atomic
        self.activations += 1
        return model

    def chosen(self, device_id: str) -> str | None:
        """The model that the pointer names; None where there is no pointer, and the shipped tree is in use.

        Raises
        ------
        ModelRejected
            The pointer cannot be read.
        """
        pointer = self._pointer(device_id)
        try:
            chosen = json.loads(pointer.read_text(encoding="utf-8"))["model_id"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ModelRejected(f"{pointer}: {error!r}") from error
        return str(chosen)

    def activation(self, device_id: str) -> int:
        """The activation that put the tree in use in charge; 0 where none did."""
        try:
            return int(json.loads(self._pointer(device_id).read_text(encoding="utf-8"))["activation"])
        except (OSError, ValueError, TypeError, KeyError, UnknownDevice):
            return 0

    def trained(self) -> set[tuple[str, str]]:
        """Device and model id of every tree that is kept in this home, without those that ship."""
        cards = self._home.glob(f"*/[!.]*/{CARD_FILE}")
        return {(card.parent.parent.name, card.parent.name) for card in cards}

    def get(self, device_id: str, model_id: str) -> TreeModel:
        """One tree, in use or not.

        Raises
        ------
        UnknownDevice, UnknownModel, ModelRejected
        """
        return self._read(self._folder(device_id, model_id), device_id)

    def add(self, model: TreeModel) -> str:
        """Keep a tree; which is in use does not change.

        Returns
        -------
        str
            Its id. The same tree added again is kept once, with its first card.
        """
        device_id = model.device.id
        if not _NAME.fullmatch(device_id):
            raise ModelRejected(f"device has id {device_id!r}; allowed: lower-case letters, digits, . _ -")
        folder = self._home / device_id / model.id
        unfinished = folder.with_name(f".{model.id}.{uuid.uuid4().hex}")
        try:
            write(unfinished, model)
            if not folder.exists():
                unfinished.rename(folder)
        except OSError:
            # Another process may have put the same tree there in the meantime.
            if not folder.exists():
                raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return model.id

    def _load(self, device_id: str) -> tuple[TreeModel, str | None]:
        shipped = self._shipped / device_id
        problem: str | None = None
        if device_id in self.devices():
            try:
                chosen = self.chosen(device_id)
                if chosen:
                    return self._read(self._folder(device_id, chosen), device_id), None
            except (ModelRejected, UnknownModel) as error:
                problem = str(error)
            if (shipped / CARD_FILE).exists():
                return read(shipped), problem
        if problem:
            raise ModelRejected(problem)
        raise UnknownDevice(device_id, [name for name in self.devices() if name != device_id])

    def _read(self, folder: Path, device_id: str) -> TreeModel:
        """A tree that was trained here; a tree of another device, put into the wrong folder, is refused.

        Raises
        ------
        ModelRejected
        """
        model = read(folder)
        if model.device.id != device_id:
            raise ModelRejected(f"{folder}: it is a tree of {model.device.id}, and not of {device_id}")
        return model

    def _files(self, device_id: str) -> tuple[str, str]:
        """The files that say which tree is in use: as strings, which are faster to stat than paths."""
        return str(self._pointer(device_id)), str(self._shipped / device_id / CARD_FILE)

    def _entries(self, device_id: str) -> Sequence[Entry]:
        try:
            active = self.active(device_id).id
        except (ModelRejected, UnknownDevice):
            active = ""
        folders = sorted(card.parent for card in (self._home / device_id).glob(f"[!.]*/{CARD_FILE}"))
        trained = [_entry(folder, device_id, active) for folder in folders]
        trained.sort(key=lambda entry: str(entry.card.get("created", "")))
        shipped = self._shipped / device_id
        if not (shipped / CARD_FILE).exists():
            return trained
        first = _entry(shipped, device_id, active, is_shipped=True)
        return [first, *(entry for entry in trained if entry.id != first.id)]

    def _folder(self, device_id: str, model_id: str) -> Path:
        entries = self._entries_by_id(device_id)
        if model_id not in entries:
            raise UnknownModel(model_id, list(entries))
        return entries[model_id]

    def _entries_by_id(self, device_id: str) -> dict[str, Path]:
        if device_id not in self.devices():
            raise UnknownDevice(device_id, self.devices())
        trained = {card.parent.name: card.parent for card in (self._home / device_id).glob(f"[!.]*/{CARD_FILE}")}
        shipped = self._shipped / device_id
        return trained | ({_model_id(shipped): shipped} if (shipped / CARD_FILE).exists() else {})

    def _pointer(self, device_id: str) -> Path:
        if not _NAME.fullmatch(device_id):  # an id may come from a request, and names a folder here
            raise UnknownDevice(device_id, self.devices())
        return self._home / device_id / POINTER_FILE


def _entry(folder: Path, device_id: str, active: str, *, is_shipped: bool = False) -> Entry:
    try:
        model = read(folder)
    except ModelRejected as error:
        return Entry(folder.name, device_id, is_shipped, False, {}, str(error))
    return Entry(model.id, device_id, is_shipped, model.id == active, model.card)


def _model_id(folder: Path) -> str:
    try:
        return str(json.loads((folder / CARD_FILE).read_text(encoding="utf-8"))["model_id"])
    except (OSError, ValueError, TypeError, KeyError):
        return folder.name


def _stamp(file: str) -> _Stamp:
    """A value that changes whenever the file is replaced; None where there is none."""
    try:
        stat = os.stat(file)  # noqa: PTH116 - half the time of Path.stat, on the way to every answer
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size
