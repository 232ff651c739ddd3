"""Constants of models of the time, by the device on which they were fitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from conv_advisor.data.measurement import Device

T = TypeVar("T")

STAND_IN: Final = "nvidia-h200"
"""The device whose constants stand for those of every device that has none of its own.

There they say which cut is likely to be fastest; the microseconds are the stand-in's.
"""


def fitted_on(device: Device, constants: Mapping[str, T]) -> T:
    """The constants of a device, or those of `STAND_IN`."""
    return constants.get(device.id, constants[STAND_IN])
