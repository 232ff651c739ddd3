"""What a launch asks of its kernel, and its parameters as the driver reads them."""

from __future__ import annotations

import ctypes
from threading import Thread

from conv_advisor.kernels.cuda.parts.launching import _Parameters, prepare_start


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


class SharedKernel:
    """A kernel of which, while one thread looks at what it may have, another prepares a launch that needs more."""

    def __init__(self, more: int) -> None:
        self._allowed = 0
        self.other = Thread(target=prepare_start, args=(self, (1, 1, 1), 32, more, ()))

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        allowed = self._allowed
        if self.other.ident is None:
            self.other.start()
            self.other.join(0.2)  # it waits where it is kept from asking in between
        return allowed

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, value: int) -> None:
        self._allowed = value


def test_a_kernel_keeps_the_most_shared_memory_that_two_threads_ask_for() -> None:
    kernel = SharedKernel(more=200_000)
    prepare_start(kernel, (1, 1, 1), 32, 100_000, ())
    kernel.other.join()
    assert kernel.max_dynamic_shared_size_bytes == 200_000
