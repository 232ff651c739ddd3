"""The device that advice is for where a request names none."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from conv_advisor.data.errors import UnknownDevice

if TYPE_CHECKING:
    from conv_advisor.app.settings import Settings
    from conv_advisor.data.measurement import Device
    from conv_advisor.data.records import Records
    from conv_advisor.models.registry import Registry

_CPU: Final = "cpu"
_LOOK_AGAIN_S: Final = 0.1
"""How old the list of devices that have a tree may be."""


class DefaultDevice:
    """The device that the settings name, else the worker's GPU, else the one that most is known of.

    Among devices that have a tree that is the GPU with the most measurements, and a CPU where no GPU has a tree. They
    are counted when another device has got a tree, and not with every answer.

    Parameters
    ----------
    settings : Settings
    registry : Registry
    records : Records
    """

    def __init__(self, settings: Settings, registry: Registry, records: Records) -> None:
        self._named = settings.advice_device
        self._registry = registry
        self._records = records
        self._look_from = 0.0
        self._modelled: list[str] = []
        self._best_known = ""

    def id(self, own: Device | None = None) -> str:
        """Its id.

        Parameters
        ----------
        own : Device, optional
            The worker's.

        Raises
        ------
        UnknownDevice
            There is none.
        StoreError
        """
        if self._named:
            return self._named
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
