"""Devices that have costs of epilogues, and such as have none, whatever ships."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from conv_advisor.models.ranking import endings
from conv_advisor.models.ranking.endings import EAGER, FORMAT, Cost, Endings

FACTOR = 1.25
"""How many times as long a variant takes that fuses; exact in binary, as all numbers here."""
KERNEL_MS = 0.0625
"""For each kernel that follows."""

_FUSED, _AFTER = Cost(FACTOR, 0.0, 0.0, 0.0, 1.0, 9), Cost(1.0, KERNEL_MS, 0.0, 0.0, 1.0, 9)
COSTS = {kind: _AFTER if kind in (EAGER, "appended") else _FUSED for kind in endings.KINDS}


def give(monkeypatch: pytest.MonkeyPatch, folder: Path, *device_ids: str) -> None:
    """Let these devices have `COSTS`, and no other any."""
    paths = {device_id: folder / f"costs of {device_id}.json" for device_id in device_ids}
    for device_id, path in paths.items():
        path.write_bytes(msgspec.json.encode(Endings(FORMAT, device_id, "made up", 9, COSTS)))
    monkeypatch.setattr(endings, "_files", lambda: paths)
