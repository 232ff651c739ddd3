"""Advice without a server: from shipped trees and measurements, and from those made on this machine."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from conv_advisor.app.advice.advise import advise_one
from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.service.devices import KnownDevices
from conv_advisor.app.service.known import records_of
from conv_advisor.app.service.recall import Recall
from conv_advisor.models.advice.advice import Advice
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.registry.on_disk import Registry

if TYPE_CHECKING:
    from conv_advisor.app.settings import Settings
    from conv_advisor.data.problem import ConvProblem
    from conv_advisor.data.records import Records
    from conv_advisor.kernels.variant import Maker


class Local:
    """Advice as a server with the same settings gives it, in this process.

    Parameters
    ----------
    settings : Settings
    is_brief : bool
        Whether the process ends after one answer: see `records_of`.
    """

    def __init__(self, settings: Settings, *, is_brief: bool = False) -> None:
        self.settings = settings
        self._is_brief = is_brief
        self.registry = Registry(settings.models_home)

    @cached_property
    def records(self) -> Records:
        """The shipped measurements, and those of the store if there is one: asking for advice creates none."""
        return records_of(self.settings, is_brief=self._is_brief)

    @cached_property
    def recall(self) -> Recall:
        """The records, with a cache that asks the store only after it changed."""
        return Recall(self.records)

    @cached_property
    def known(self) -> KnownDevices:
        """The devices that advice covers; by default the one that a server without a GPU takes."""
        return KnownDevices(self.registry, self.records, default=self.settings.advice_device)

    def advisor(self, device_id: str) -> Advisor:
        """The advisor of a device: with its active tree, else with a lent one, else with measurements alone.

        Raises
        ------
        UnknownDevice
            The device has neither a tree nor measurements, and nothing is published of it.
        ModelRejected, StoreError
        """
        return self.known.advisor(device_id)

    def advise(
        self,
        problem: ConvProblem,
        device_id: str,
        *,
        max_workspace_bytes: int | None = None,
        is_deterministic: bool = False,
        only: Maker | None = None,
    ) -> Advice:
        """Advice on one problem; a measured time overrides a predicted one.

        Parameters
        ----------
        problem : ConvProblem
        device_id : str
        max_workspace_bytes : int, optional
            By default the settings' limit.
        is_deterministic : bool
        only : Maker, optional
            Maker whose variants alone are considered.

        Raises
        ------
        NoAdvice, UnknownDevice, ModelRejected, StoreError
        """
        limit = self.settings.workspace_limit_bytes if max_workspace_bytes is None else max_workspace_bytes
        return advise_one(self, problem, Limits(device_id, limit, is_deterministic, only))
