"""What is known without a server: the trees that ship and those trained here, and what the store has measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conv_advisor.data.errors import UnknownDevice
from conv_advisor.models.advisor import Advice, Advisor
from conv_advisor.models.registry import Registry

if TYPE_CHECKING:
    from conv_advisor.app.service.recall import Recall
    from conv_advisor.app.settings import Settings
    from conv_advisor.data.problem import ConvProblem
    from conv_advisor.data.store import Store


class Local:
    """Advice as a server with the same settings gives it, in this process.

    Parameters
    ----------
    settings : Settings
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.registry = Registry(settings.models_home)
        self._advisors: dict[str, Advisor] = {}
        self._recall: tuple[Store, Recall] | None = None

    @property
    def store(self) -> Store | None:
        """The store, if there is one: asking for advice creates none."""
        known = self._known()
        return known[0] if known else None

    def advisor(self, device_id: str) -> Advisor:
        """The advisor of a device, on its active tree; on measurements alone where it has none.

        Raises
        ------
        UnknownDevice
            The device has neither a tree nor measurements.
        ModelRejected, StoreError
        """
        try:
            model = self.registry.active(device_id)
        except UnknownDevice:
            measured = {device.id: device for device in self.store.devices()} if self.store else {}
            if device_id not in measured:
                raise UnknownDevice(device_id, sorted({*measured, *self.registry.devices()})) from None
            return Advisor(None, measured[device_id])
        found = self._advisors.get(device_id)
        if found is None or found.model is not model:
            found = self._advisors[device_id] = Advisor(model)
        return found

    def advise(
        self,
        problem: ConvProblem,
        device_id: str,
        *,
        max_workspace_bytes: int | None = None,
        is_deterministic: bool = False,
    ) -> Advice:
        """Advice on one problem; a measured time counts before a predicted one.

        Parameters
        ----------
        problem : ConvProblem
        device_id : str
        max_workspace_bytes : int, optional
            By default the settings' limit.
        is_deterministic : bool

        Raises
        ------
        NoAdvice, UnknownDevice, ModelRejected, StoreError
        """
        known = self._known()
        measured = known[1].summaries([problem], device_id) if known else {}
        limit = self.settings.workspace_limit_bytes if max_workspace_bytes is None else max_workspace_bytes
        return self.advisor(device_id).advise(
            problem,
            max_workspace_bytes=limit,
            is_deterministic=is_deterministic,
            measured=measured.get(problem.key),
        )

    def _known(self) -> tuple[Store, Recall] | None:
        settings = self.settings
        if self._recall is None and (settings.database_url or (settings.home / "conv-advisor.db").exists()):
            from conv_advisor.app.service.recall import Recall
            from conv_advisor.data.store import Store

            store = Store(settings.store_url)
            self._recall = store, Recall(store)
        return self._recall
