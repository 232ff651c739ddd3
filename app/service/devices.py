"""The devices of requests, by any of their names or by default, and the advisor of each."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from conv_advisor.app.workers.visible import visible_gpus
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import InvalidInput, UnknownDevice
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
"""How long it may go unnoticed that a device got its own tree; activations by this process count at once."""
_MOST_SPELLINGS: Final = 1000
_CPU: Final = "cpu"


@dataclass(frozen=True, slots=True)
class _Lent:
    advisor: Advisor
    activations: int
    until: float


class KnownDevices:
    """Devices that were measured or have a tree, the worker's own, and those with published data.

    Parameters
    ----------
    registry : Registry
    records : Records
    own : callable () -> Device or None
        The worker's device, once there is one.
    default : str, optional
        Device of requests that name none, by any of its names, as in the settings.

    Raises
    ------
    StoreError
        Raised by every method.
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
        """Every device that was measured, has a tree, or belongs to the worker; by id.

        Raises
        ------
        ModelRejected
        """
        devices = self._records.devices()
        for device_id in self._registry.devices():
            if device_id not in devices:
                devices[device_id] = self._registry.active(device_id).device
        own = self._own()
        return devices if own is None else devices | {own.id: own}

    def asked_id(self, name: object = None) -> str:
        """The id of the device that a request names; the default device's id if it names none.

        Parameters
        ----------
        name : str or torch.device, optional

        Raises
        ------
        UnknownDevice
        InvalidInput
            It is neither.
        """
        if name is None or name == "":
            return self.id_of(self._default_name())
        if not isinstance(name, str) and type(name).__module__ != "torch":
            raise InvalidInput("device", name, "a name such as h100 or cuda:0, or a torch.device")
        return self.id_of(str(name))

    def id_of(self, name: str) -> str:
        """The id of a device by any of its names; ``cuda`` and ``cuda:0`` are the first GPU that CUDA opens here.

        Raises
        ------
        UnknownDevice
        """
        device_id = self._ids.get(name)
        if device_id is None:
            if len(self._ids) >= _MOST_SPELLINGS:
                self._ids.clear()
            device_id = self._ids[name] = self._look_up(name)
        return device_id

    def find(self, name: str) -> Device:
        """The device of a name; for one that was never opened here, from published data.

        Raises
        ------
        UnknownDevice, ModelRejected
        """
        device_id, devices = self.id_of(name), self.all()
        if device_id in devices:
            return devices[device_id]
        if device_id not in gpus():  # its tree or measurements are gone since the look-up of its name
            raise UnknownDevice(name, listed(devices))
        return gpus()[device_id].device

    def find_met(self, name: str) -> Device:
        """The device of a name, if it was measured, has a tree, or belongs to the worker.

        Raises
        ------
        UnknownDevice, ModelRejected
        """
        devices = self.all()
        return named(name if name in devices else self.id_of(name), devices)

    def advisor(self, device_id: str) -> Advisor:
        """The advisor of a device: with its active tree, else the nearest GPU's tree, else with measurements alone.

        Raises
        ------
        UnknownDevice, ModelRejected
        """
        lent, activations = self._lent.get(device_id), self._registry.activations
        if lent and lent.activations == activations and time.monotonic() < lent.until:
            return lent.advisor
        device: Device | None = None
        try:
            model: TreeModel | None = self._registry.active(device_id)
        except UnknownDevice:
            device = self.find(device_id)
            model = lent_to(device, self._registry.in_use())
        advisor = self._advisors.get(device_id)
        if advisor is None or advisor.model is not model or (device is not None and advisor.device != device):
            advisor = self._advisors[device_id] = Advisor(model, device)
        if device is not None:
            until = time.monotonic() + _LOOK_AGAIN_S
            self._lent[device_id] = _Lent(advisor, activations, until)
        return advisor

    def _default_name(self) -> str:
        """The configured device, else the worker's GPU, else the best-known device.

        The best-known device is the GPU with a tree and the most measurements; if no GPU has a tree, a CPU with one.
        Measurements are counted when the set of devices with trees changes, not for every answer.

        Raises
        ------
        UnknownDevice
            There is no device.
        """
        if self._default:
            return self._default
        own = self._own()
        if own is not None and own.kind == "cuda":
            return own.id
        name = self._find_best_known() or (own.id if own else "")
        if not name:
            raise UnknownDevice("", [])
        return name

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
        known_ids = {*self._records.devices(), *self._registry.devices(), *([own.id] if own else [])}
        match = _HERE.fullmatch(name.strip().lower())
        if match is None:
            return device_id_of(name, known_ids)
        names, index = visible_gpus(), int(match[1] or 0)
        if index < len(names):
            return device_id_of(names[index], known_ids)
        if own is not None and own.kind == "cuda" and index == 0:
            return own.id
        raise UnknownDevice(name, listed(known_ids), f"CUDA finds {counted(len(names), 'GPU')} here")
