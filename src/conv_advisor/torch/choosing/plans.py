"""Choices of variants and layouts kept on disk, for the next process to start at once: one JSON file a device."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from platformdirs import user_cache_path

from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import Layout
from conv_advisor.kernels.sources import sources_digest
from conv_advisor.torch.choosing.choice import Choice
from conv_advisor.torch.log import log

VERSION: Final = 2
"""The file's form, and part of the name of our own files; a reader refuses any other."""

_NUMBERS: Final = ("time_ms", "torch_ms", "max_error", "torch_error")
_FIELDS: Final = ("variant", "plan", *_NUMBERS, "reason")
"""What is kept of a choice, all of it measured."""
_LAYOUTS: Final = tuple(layout.value for layout in Layout)
_MOST_BYTES: Final = 2**26
_CUDNN: Final = "cudnn"

_Content = dict[str, dict[str, Any]]
"""What a file keeps by name: ``choices`` and ``layouts``."""


@dataclass(frozen=True)
class Basis:
    """What kept choices depend on: a choice is not used, and is measured again, once any of that has changed.

    Parameters
    ----------
    device : str
        Name and driver.
    cudnn, kernels, torch : str
        Versions; of our kernels, and of what decides where cuDNN's engines may run, a digest of the sources.
    """

    device: str
    cudnn: str
    kernels: str
    torch: str

    def of(self, variant: str | None) -> str:
        """What a choice of this variant depends on; PyTorch's own convolution was compared with all of them."""
        parts = [self.device, f"torch {self.torch}"]
        if variant is None or variant.startswith(_CUDNN):
            parts.append(f"cudnn {self.cudnn}")
        if variant is None or not variant.startswith(_CUDNN):
            parts.append(f"kernels {self.kernels}")
        return ", ".join(parts)


def basis_of(device: Device, torch_version: str) -> Basis:
    """The basis of choices made on this device now."""
    name = f"{device.name}, driver {device.versions.get('driver', 'unknown')}"
    cudnn = f"{device.versions.get('cudnn', 'none')} by {sources_digest(_CUDNN)}"
    return Basis(name, cudnn, sources_digest(), torch_version)


class PlanFile:
    """The choices of one file. Several threads and processes may use one: a writer adds to what it finds there.

    Parameters
    ----------
    path : Path
    basis : Basis
        Of this process.
    is_ours : bool
        Whether nobody but this version of us gives files that name: one that cannot be read is then begun anew.

    Raises
    ------
    InvalidInput
        The file is not one that this version wrote.
    """

    def __init__(self, path: Path, basis: Basis, *, is_ours: bool = False) -> None:
        self.path = path
        self._basis, self._is_ours = basis, is_ours
        self._lock = threading.Lock()
        self._known, self._unwritten = self._believed(self._read()), _nothing()

    def get(self, plan: str) -> Choice | None:
        """What is kept of a plan; None where nothing is, or where what it depends on has changed."""
        entry = self._known["choices"].get(plan)
        if entry is None:
            return None
        choice = Choice(**{field: entry[field] for field in _FIELDS})
        return choice if choice.is_settled else None

    def add(self, choices: Mapping[str, Choice]) -> None:
        """Keep the choices that a measurement settled, by the names of their plans.

        Notes
        -----
        Where all variants failed, memory may have been short, or the device ill: the next request tries again.
        A file that cannot be written is no reason not to run: the choices then live as long as the process.
        """
        entries = {
            plan: {field: getattr(choice, field) for field in _FIELDS} | {"basis": self._basis.of(choice.variant)}
            for plan, choice in choices.items()
            if choice.is_measured and choice.is_settled
        }
        self._add("choices", entries)

    def get_layouts(self, network: str) -> tuple[Layout, ...] | None:
        """The layouts that are kept of a network by this name; None as in `get`."""
        entry = self._known["layouts"].get(network)
        return None if entry is None else tuple(map(Layout, entry["layouts"]))

    def add_layouts(self, network: str, layouts: Iterable[Layout]) -> None:
        """Keep the layouts of a network; they hang on the times of all its convolutions."""
        entry = {"layouts": [layout.value for layout in layouts], "basis": self._basis.of(None)}
        self._add("layouts", {network: entry})

    def _add(self, kind: str, entries: dict[str, Any]) -> None:
        """Keep these, here and in the file; what others wrote there since stays, but for what this replaces."""
        with self._lock:
            self._known[kind] |= entries
            self._unwritten[kind] |= entries
            try:
                content = self._read()
                _write(self.path, _merged(content, self._unwritten))
            except (InvalidInput, OSError) as error:
                log.warning("choices live as long as this process: %s", error)
            else:
                self._known, self._unwritten = _merged(self._believed(content), self._known), _nothing()

    def _read(self) -> _Content:
        try:
            return _read(self.path)
        except InvalidInput as error:
            if not self._is_ours:
                raise
            log.warning("%s is begun anew: %s", self.path, error)
            return _nothing()

    def _believed(self, content: _Content) -> _Content:
        """What a file keeps, without that of which anything that it depends on has changed."""
        return {
            kind: {
                name: entry for name, entry in entries.items() if entry["basis"] == self._basis.of(entry.get("variant"))
            }
            for kind, entries in content.items()
        }


def default_path(device_id: str) -> Path:
    """Where choices for a device are kept: in ``CONV_ADVISOR_PLANS``, else in the user's cache folder.

    Other versions, which write files of another form, give them another name.
    """
    folder = os.environ.get("CONV_ADVISOR_PLANS") or user_cache_path("conv-advisor") / "plans"
    return Path(folder) / f"{device_id}-v{VERSION}.json"


def _nothing() -> _Content:
    return {"choices": {}, "layouts": {}}


def _merged(content: _Content, more: _Content) -> _Content:
    return {kind: entries | more[kind] for kind, entries in content.items()}


def _read(path: Path) -> _Content:
    """What a file keeps; nothing where there is no file."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InvalidInput("plan_file", str(path), f"a file of at most {_MOST_BYTES} bytes")
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _nothing()
    except (OSError, ValueError) as error:
        raise InvalidInput("plan_file", str(path), f"a JSON file that can be read ({error})") from error
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise InvalidInput("plan_file.version", version, f"{VERSION}, in {path}")
    entries = content.get("choices")
    if not isinstance(entries, dict) or not all(_is_sound(entry) for entry in entries.values()):
        raise InvalidInput("plan_file.choices", str(path), "a mapping of plans to choices, as this version writes them")
    layouts = content.get("layouts", {})  # files were written before there were any
    if not isinstance(layouts, dict) or not all(_is_sound_layouts(entry) for entry in layouts.values()):
        raise InvalidInput(
            "plan_file.layouts", str(path), "a mapping of networks to layouts, as this version writes it"
        )
    return {"choices": entries, "layouts": layouts}


def _is_sound_layouts(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("basis"), str):
        return False
    layouts = entry.get("layouts")
    return isinstance(layouts, list) and all(layout in _LAYOUTS for layout in layouts)


def _is_sound(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("variant"), str | None)
        and isinstance(entry.get("plan"), dict)
        and all(isinstance(entry.get(name), float | int | None) for name in _NUMBERS)
        and all(isinstance(entry.get(name), str) for name in ("reason", "basis"))
    )


def _write(path: Path, content: _Content) -> None:
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    in_order = {kind: dict(sorted(entries.items())) for kind, entries in content.items()}
    text = json.dumps({"version": VERSION} | in_order, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)  # whole or not at all: other processes read it
    finally:
        unfinished.unlink(missing_ok=True)
