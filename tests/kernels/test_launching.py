"""Parameters of a launch as the driver reads them."""

from __future__ import annotations

import ctypes

from conv_advisor.kernels.cuda.parts.launching import _Parameters


def read(place: int) -> list[int]:
    """Two addresses and a value of 32 bits, by the pointers that lie there."""
    first, second, value = (ctypes.c_void_p * 3).from_address(place)
    addresses = [ctypes.c_uint64.from_address(each or 0).value for each in (first, second)]
    return [*addresses, ctypes.c_uint32.from_address(value or 0).value]


def test_a_launch_sets_its_addresses_and_no_more() -> None:
    parameters = _Parameters(2, [ctypes.c_uint32(7)])
    for addresses in ((2**40, 16), (32, 2**41)):
        parameters.set(addresses)
        assert read(parameters.place) == [*addresses, 7]


def test_an_array_is_taken_by_value_and_every_launch_has_its_own() -> None:
    parameters = _Parameters(2, [ctypes.c_uint32(7)])
    for number in (5, 6):
        array = (ctypes.c_uint64 * 16)(number)
        parameters.set((array, 2**40))
        assert read(parameters.place) == [number, 2**40, 7]
