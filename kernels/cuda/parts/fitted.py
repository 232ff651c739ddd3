"""Constants of models of the time, by the device on which they were fitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, TypeVar

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import DType

T = TypeVar("T")
Tile_co = TypeVar("Tile_co", covariant=True)


class HasTiles(Protocol[Tile_co]):
    """A menu: the tiles of a kernel, beside what each is expected to take."""

    @property
    def tiles(self) -> tuple[Tile_co, ...]:
        """The tiles to choose from."""


STAND_IN: Final = "nvidia-h200"
"""The device whose constants stand for those of every device that has none of its own.

There they say which cut is likely to be fastest; the microseconds are the stand-in's.
"""


def fitted_on(device: Device, constants: Mapping[str, T]) -> T:
    """The constants of a device, or those of `STAND_IN`."""
    return constants.get(device.id, constants[STAND_IN])


def tiles_of_every_device(menus: Mapping[str, Mapping[DType, HasTiles[Tile_co]]], dtype: DType) -> tuple[Tile_co, ...]:
    """The tiles that multiply this precision anywhere: what a source may be compiled with."""
    return tuple(tile for of_dtypes in menus.values() if dtype in of_dtypes for tile in of_dtypes[dtype].tiles)
