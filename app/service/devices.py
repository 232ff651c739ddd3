"""The devices that can be asked about, by any name that people have for them or by none, and the advisor of each."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from conv_advisor.app.workers.visible import visible_gpus
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import UnknownDevice
from conv_advisor.data.gpus import device_id_of, gpus, listed, named
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.tree.loan import lent_to

if TYPE_CHECKING:
    from conv_advisor.data.measurement import Device
    from conv_advisor.data.records import Records
    from conv_advisor.models.registry.on_disk import Registry
    from conv_advisor.models.tree.file import TreeModel

_HERE: Final = re.compile(r"cuda(?::(\d{1,3}))?")
_LOOK_AGAIN_S: Final = 0.1
"""How old it may be that a device has no tree of its own; what this process itself has activated counts at once."""
_MOST_SPELLINGS: Final = 1000
_CPU: Final = "cpu"


@dataclass(frozen=True, slots=True)
class _Lent:
    advisor: Advisor
    activations: int
    until: float


class KnownDevices:
    """Devices that were measured or have a tree, the worker's own, and those of which facts are published.

    Parameters
    ----------
    registry : Registry
    records : Records
    own : callable () -> Device or None
        The worker's, once there is one.
    default : str, optional
        By any of its names, the device that advice is for where a request names none: as the settings say it.

    Raises
    ------
    StoreError
        From every method.
    """

    def __init__(
        self,
        registry: Registry,
        records: Records,
        own: Callable[[], Device | None] = lambda: None,
        default: str | None = None,
    ) -> None:
        self._registry, self._records, self._own, self._default = registry, records, own, default
        self._ids: dict[str, str] = {}
        self._advisors: dict[str, Advisor] = {}
        self._lent: dict[str, _Lent] = {}
        self._look_from = 0.0
        self._modelled: list[str] = []
        self._best_known = ""

    def all(self) -> dict[str, Device]:
        """Every device that was measured, has a tree, or is the worker's own; by id.

        Raises
        ------
        ModelRejected
        """
        known = self._records.devices()
        for device_id in self._registry.devices():
            if device_id not in known:
                known[device_id] = self._registry.active(device_id).device
        own = self._own()
        return known if own is None else known | {own.id: own}

    def asked_id(self, name: str | None = None) -> str:
        """The id of the device that a request names; where it names none, that of the default device.

        Raises
        ------
        UnknownDevice
        """
        return self.id_of(name or self._default_name())

    def id_of(self, name: str) -> str:
        """The id of a device by any of its names; ``cuda`` and ``cuda:0`` are the first GPU that CUDA opens here.

        Raises
        ------
        UnknownDevice
        """
        found = self._ids.get(name)
        if found is None:
            if len(self._ids) >= _MOST_SPELLINGS:
                self._ids.clear()
            found = self._ids[name] = self._look_up(name)
        return found

    def find(self, name: str) -> Device:
        """The device of a name; of one that nobody has opened here, what is published of it.

        Raises
        ------
        UnknownDevice, ModelRejected
        """
        device_id, known = self.id_of(name), self.all()
        if device_id in known:
            return known[device_id]
        if device_id not in gpus():  # what was known of it is gone since its name was looked up
            raise UnknownDevice(name, listed(known))
        return gpus()[device_id].device

    def find_met(self, name: str) -> Device:
        """The device of a name that was measured, has a tree, or is the worker's own.

        Raises
        ------
        UnknownDevice, ModelRejected
        """
        known = self.all()
        return named(name if name in known else self.id_of(name), known)

    def advisor(self, device_id: str) -> Advisor:
        """The advisor of a device: on its active tree, else on that of the nearest GPU, else on measurements alone.

        Raises
        ------
        UnknownDevice, ModelRejected
        """
        kept, activations = self._lent.get(device_id), self._registry.activations
        if kept and kept.activations == activations and time.monotonic() < kept.until:
            return kept.advisor
        device: Device | None = None
        try:
            model: TreeModel | None = self._registry.active(device_id)
        except UnknownDevice:
            device = self.find(device_id)
            model = lent_to(device, self._registry.in_use())
        found = self._advisors.get(device_id)
        if found is None or found.model is not model or (device is not None and found.device != device):
            found = self._advisors[device_id] = Advisor(model, device)
        if device is not None:
            until = time.monotonic() + _LOOK_AGAIN_S
            self._lent[device_id] = _Lent(found, activations, until)
        return found

    def _default_name(self) -> str:
        """The device that is configured, else the worker's GPU, else the one that most is known of.

        Among devices that have a tree that is the GPU with the most measurements, and a CPU where no GPU has a tree.
        They are counted when another device has got a tree, and not with every answer.

        Raises
        ------
        UnknownDevice
            There is none.
        """
        if self._default:
            return self._default
        own = self._own()
        if own is not None and own.kind == "cuda":
            return own.id
        found = self._find_best_known() or (own.id if own else "")
        if not found:
            raise UnknownDevice("", [])
        return found

    def _find_best_known(self) -> str:
        if time.monotonic() >= self._look_from or not self._best_known:
            modelled = self._registry.devices()
            if modelled != self._modelled:
                self._best_known, self._modelled = self._choose(modelled), modelled
            self._look_from = time.monotonic() + _LOOK_AGAIN_S
        return self._best_known

    def _choose(self, modelled: list[str]) -> str:
        gpus = [device_id for device_id in modelled if device_id != _CPU]
        if len(gpus) > 1:
            return max(gpus, key=self._records.n_attempts)
        return next(iter([*gpus, *modelled]), "")

    def _look_up(self, name: str) -> str:
        own = self._own()
        known = {*self._records.devices(), *self._registry.devices(), *([own.id] if own else [])}
        here = _HERE.fullmatch(name.strip().lower())
        if here is None:
            return device_id_of(name, known)
        names, place = visible_gpus(), int(here[1] or 0)
        if place < len(names):
            return device_id_of(names[place], known)
        if own is not None and own.kind == "cuda" and place == 0:
            return own.id
        raise UnknownDevice(f"{name} (CUDA finds {counted(len(names), 'GPU', 'GPUs')} here)", listed(known))
