"""Train a challenger on the store's measurements, and let it replace the champion if it is no worse."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conv_advisor.data.counting import counted
from conv_advisor.data.errors import ModelRejected, UnknownDevice
from conv_advisor.data.measurement import Device
from conv_advisor.data.records import Records
from conv_advisor.data.store import Store
from conv_advisor.kernels.cpu.threads import available_cores
from conv_advisor.models.registry.on_disk import Registry
from conv_advisor.models.registry.shared import SharedModels
from conv_advisor.models.tree.file import TreeModel
from conv_advisor.models.tree.loan import lent_to

log = logging.getLogger(__name__)

OnProgress = Callable[[float, str], None]


@dataclass(frozen=True)
class Trained:
    """A tree that was trained and compared, but not kept yet.

    Parameters
    ----------
    model : TreeModel
    result : dict
        ``device``, ``model`` and ``champion`` (ids; null where there is no champion, not even one that is borrowed),
        ``slowdown`` and ``champion_slowdown`` (held-out geometric means), ``promoted``, ``forced``, ``reasons`` (what
        speaks against it), ``changes`` (as `models.retraining.changes.Changes`; null where there is no champion).
    """

    model: TreeModel
    result: dict[str, Any]

    @property
    def is_promoted(self) -> bool:
        """Whether it is to be in charge."""
        return bool(self.result["promoted"])


def retrain(
    store_url: str,
    home: Path,
    device_id: str,
    *,
    is_forced: bool,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Train, compare on layers held out from both, and change the tree in use if the new one is no worse.

    Parameters
    ----------
    store_url : str
    home : Path
        The registry's folder.
    device_id : str
        The device whose measurements are used.
    is_forced : bool
        Use the new tree whatever the comparison says.
    on_progress : callable (fraction, message)

    Returns
    -------
    dict
        See `Trained`.

    Raises
    ------
    NotEnoughData, UnknownDevice, StoreError
    """
    trained = train(store_url, home, device_id, is_forced=is_forced, on_progress=on_progress)
    with Store(store_url) as store:
        models = SharedModels(Registry(home), store.engine)
        models.join()
        models.add(trained.model, in_charge=trained.is_promoted)
    return trained.result


def train(
    store_url: str,
    home: Path,
    device_id: str,
    *,
    is_forced: bool,
    on_progress: OnProgress | None = None,
) -> Trained:
    """Train and compare like `retrain`, without keeping the tree: the caller keeps it, all of it or nothing.

    Raises
    ------
    NotEnoughData, UnknownDevice, StoreError

    Notes
    -----
    Killed at any point and run again, it gives the same: the store only grows, and the same measurements give the same
    tree.
    """
    from conv_advisor.models.retraining.challenge import (
        challenge,  # scikit-learn, which only a process that trains may load
    )
    from conv_advisor.models.training.train import MOST_THREADS

    tell = on_progress or (lambda _fraction, _message: None)
    with Store(store_url) as store:
        tell(0.0, "reading the measurements")
        records = Records(store)
        device = records.device(device_id)
        table = records.table(device.id)
    champion = champion_of(Registry(home), device)
    challenged = challenge(
        table,
        champion,
        device_id=device_id,
        on_progress=lambda share: tell(0.05 + 0.85 * share, f"training on {counted(table.num_rows, 'measurement')}"),
        n_threads=max(1, min(MOST_THREADS, available_cores() // 2)),  # the other cores answer
    )
    tell(0.95, "storing the tree")
    result = {
        "device": device_id,
        "model": challenged.model.id,
        "champion": champion.id if champion else None,
        "slowdown": challenged.slowdown,
        "champion_slowdown": None if math.isnan(challenged.champion_slowdown) else challenged.champion_slowdown,
        "promoted": is_forced or challenged.is_no_worse,
        "forced": is_forced,
        "reasons": list(challenged.objections),
        "changes": challenged.changes.to_dict() if challenged.changes else None,
    }
    return Trained(challenged.model, result)


def champion_of(registry: Registry, device: Device) -> TreeModel | None:
    """The tree in use: the device's own, else the one that it borrows.

    None where there is neither, or its own cannot be used: a new tree then replaces it.
    """
    try:
        return registry.active(device.id)
    except UnknownDevice:
        return lent_to(device, registry.in_use())
    except ModelRejected as error:
        log.warning("there is nothing to compare with: %s", error)
        return None
