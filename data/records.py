"""All that is known of devices: what ships, and on top of it what a store holds of its user's own measurements."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from conv_advisor.data.extras import require
from conv_advisor.data.gpus import named
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.shipped import Shipped
from conv_advisor.data.summary import Attempt, Summary, summarise

if TYPE_CHECKING:
    import pyarrow as pa

    from conv_advisor.data.store import Store


class Records:
    """What ships and what was measured here, read as one.

    Parameters
    ----------
    store : Store, optional
        Without one, only what ships is known.
    shipped : Shipped, optional
        By default what ships with the project.

    Attributes
    ----------
    store : Store or None

    Raises
    ------
    StoreError
        From every method.
    """

    def __init__(self, store: Store | None = None, shipped: Shipped | None = None) -> None:
        self.store = store
        self._shipped = shipped or Shipped()

    def summaries(
        self, problems: Sequence[ConvProblem], device_id: str, *, stored: Collection[str] | None = None
    ) -> dict[str, dict[str, Summary]]:
        """Summaries of every variant on these problems, from warm attempts.

        Parameters
        ----------
        problems : sequence of ConvProblem
        device_id : str
            Attempts under all drivers and libraries that this device has had count together.
        stored : collection of str, optional
            The keys that the store may know of; by default it is asked about all.

        Returns
        -------
        dict of problem key to dict of variant to Summary
            Without problems and variants that nothing is known of.
        """
        return {key: summarise(rows) for key, rows in self.attempts(problems, device_id, stored=stored).items()}

    def attempts(
        self, problems: Sequence[ConvProblem], device_id: str, *, stored: Collection[str] | None = None
    ) -> dict[str, list[Attempt]]:
        """What `summaries` sums up: every warm attempt at these problems, by their keys."""
        keys = [problem.key for problem in problems]
        attempts = self._shipped_attempts(keys, device_id)
        stored_keys = keys if stored is None else [key for key in keys if key in stored]
        if self.store is not None and stored_keys:
            for key, own in self.store.attempts(stored_keys, device_id).items():
                attempts[key] = [*attempts.get(key, ()), *own]
        return attempts

    def picked(self, problem: ConvProblem, device_id: str, *, stored: Collection[str] | None = None) -> dict[str, str]:
        """What other rules chose for a problem on a device: the variant by the rule's name; a rule's last one counts.

        Parameters
        ----------
        problem : ConvProblem
        device_id : str
        stored : collection of str, optional
            As in `summaries`.
        """
        table = self._shipped.table(device_id)
        picks = table.picked(problem.key) if table else {}
        if self.store is not None and (stored is None or problem.key in stored):
            picks |= self.store.picked(problem.key, device_id)
        return picks

    def measured_keys(self, device_id: str) -> list[str]:
        """The keys of the problems on which some variant was timed in full on a device, each once.

        Keys of shipped problems come in the order of their table, so that a reader of all of them decompresses each
        block once.
        """
        table = self._shipped.table(device_id)
        shipped = table.measured_keys() if table else []
        own = self.store.measured_keys(device_id) if self.store else []
        return list(dict.fromkeys((*shipped, *own)))

    def n_attempts(self, device_id: str) -> int:
        """How many attempts were made on a device."""
        table = self._shipped.table(device_id)
        own = self.store.n_attempts(device_id) if self.store else 0
        return own + (table.card.n_attempts if table else 0)

    def devices(self) -> dict[str, Device]:
        """Every device that was measured, by id; where an id has several fingerprints, the one measured last."""
        known = {device.id: device for device in self._shipped.devices()}
        if self.store:
            known |= {device.id: device for device in self.store.devices()}
        return dict(sorted(known.items()))

    def device(self, name: str) -> Device:
        """The device with this name, whichever of its names it is, as it was measured last.

        Raises
        ------
        UnknownDevice
        """
        return named(name, self.devices())

    def table(self, device_id: str) -> pa.Table:
        """Every attempt on a device, in `data.parquet.ATTEMPTS`."""
        require("pyarrow")
        import pyarrow as pa

        from conv_advisor.data import packing, parquet

        table = self._shipped.table(device_id)
        shipped = packing.attempts_of(table) if table else parquet.ATTEMPTS.empty_table()
        if self.store is None:
            return shipped
        from conv_advisor.data import transfer

        return pa.concat_tables([shipped, parquet.to_attempts(transfer.measurements_table(self.store, device_id))])

    def picks_table(self, device_id: str) -> pa.Table:
        """The picks of a device, in `data.parquet.PICKS_SCHEMA`; of several picks by one rule the last counts."""
        require("pyarrow")
        import pyarrow as pa

        from conv_advisor.data import packing, parquet

        table = self._shipped.table(device_id)
        shipped = packing.picks_of(table) if table else parquet.PICKS_SCHEMA.empty_table()
        if self.store is None:
            return shipped
        from conv_advisor.data import transfer

        return pa.concat_tables([shipped, transfer.picks_table(self.store, device_id)])

    def _shipped_attempts(self, keys: Sequence[str], device_id: str) -> dict[str, list[Attempt]]:
        table = self._shipped.table(device_id)
        return {key: attempts for key in keys if (attempts := table.attempts(key))} if table else {}
