"""Constants of models of the time, by the device on which they were fitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, TypeVar

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import DType

T = TypeVar("T")
Tile_co = TypeVar("Tile_co", covariant=True)


class HasTiles(Protocol[Tile_co]):
    """A menu: the tiles of a kernel with their fitted times."""

    @property
    def tiles(self) -> tuple[Tile_co, ...]:
        """The tiles to choose from."""


STAND_IN: Final = "nvidia-h200"
"""The device whose constants are used for every device that has none of its own.

On such a device they tell which cut is likely to be fastest, but the microseconds are those of the stand-in.
"""


def fitted_on(device: Device, constants: Mapping[str, T]) -> T:
    """The constants of a device, or those of `STAND_IN`."""
    return constants.get(device.id, constants[STAND_IN])


def tiles_of_every_device(menus: Mapping[str, Mapping[DType, HasTiles[Tile_co]]], dtype: DType) -> tuple[Tile_co, ...]:
    """The tiles of this precision on all devices: those that a source may be compiled with."""
    return tuple(tile for of_dtypes in menus.values() if dtype in of_dtypes for tile in of_dtypes[dtype].tiles)
