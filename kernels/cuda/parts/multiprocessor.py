"""Shared memory and clusters of a multiprocessor, by the device's compute capability."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import Device

_SHARED_KB: Final = {"8.0": 164, "8.7": 164, "9.0": 228, "10.0": 228, "10.3": 228, "11.0": 228}
RESERVED_BYTES: Final = 1024
"""Shared memory that the system reserves for every block."""
HOPPER_SHARED_BYTES: Final = 228 * 1024
"""Shared memory of a multiprocessor of compute capability 9.0."""
HOPPER_BLOCK_BYTES: Final = HOPPER_SHARED_BYTES - RESERVED_BYTES
"""Shared memory that a block may use there."""


def shared_memory_of(device: Device) -> int:
    """Bytes per multiprocessor (CUDA C++ Programming Guide, technical specifications by compute capability)."""
    return 1024 * _SHARED_KB.get(device.capability, 100)


def has_clusters(device: Device) -> bool:
    """Whether blocks can access each other's shared memory: from compute capability 9.0 on."""
    return int((device.capability or "0").split(".")[0]) >= 9
