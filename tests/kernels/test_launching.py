"""What a launch asks of its kernel, and its parameters as the driver reads them."""

from __future__ import annotations

import ctypes
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.addresses import ASKED, Address, current_stream
from conv_advisor.kernels.cuda.parts import launching
from conv_advisor.kernels.cuda.parts.launching import _Config, _Parameters, launch_of, prepare_start


def read(place: int) -> list[int]:
    """Two addresses and a value of 32 bits, by the pointers that lie there."""
    first, second, value = (ctypes.c_void_p * 3).from_address(place)
    addresses = [ctypes.c_uint64.from_address(each or 0).value for each in (first, second)]
    return [*addresses, ctypes.c_uint32.from_address(value or 0).value]


def test_a_launch_sets_its_addresses_and_no_more() -> None:
    parameters = _Parameters((0, 0), [ctypes.c_uint32(7)])
    for addresses in ((2**40, 16), (32, 2**41)):
        parameters.set(addresses)
        assert read(parameters.place) == [*addresses, 7]


def test_an_array_is_taken_by_value_and_every_launch_has_its_own() -> None:
    parameters = _Parameters(((ctypes.c_uint64 * 16)(), 0), [ctypes.c_uint32(7)])
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


class Driver:
    """Takes launches; the first of a thread that has used no device is refused."""

    def __init__(self) -> None:
        self.is_refusing = False
        self.launched: list[tuple[int, list[int]]] = []

    def cuLaunchKernelEx(self, config: int, _function: int, parameters: int, _extra: None) -> int:  # noqa: N802 the driver's
        if self.is_refusing:
            return 201
        self.launched.append((_Config.from_address(config).stream or 0, read(parameters)))
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(launching, "_driver", lambda: driver)
    return driver


KERNEL: Any = SimpleNamespace(kernel=SimpleNamespace(ptr=77))


def test_a_launch_takes_addresses_and_the_stream_that_was_asked_for(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = ConvProblem.parse("9-2-3-8-8-bias-residual-relu")
    launch = launch_of(prepare_start(KERNEL, (1, 1, 1), 32, 0, (7,)), problem.epilogue)
    assert launch.by_address
    x, weight, y, bias, residual = map(Address, range(16, 96, 16))
    monkeypatch.setattr(ASKED, "stream", 4096)
    launch.run(x, weight, y, bias, residual)
    x.ptr = 160
    launch.run(x, weight, y, bias, residual)
    assert [stream for stream, _ in driver.launched] == [4096, 4096]
    assert [addresses[:2] for _, addresses in driver.launched] == [[16, 32], [160, 32]]


def test_a_stream_is_asked_for_by_one_thread_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ASKED, "stream", 4096)
    asked: list[int | None] = []
    other = Thread(target=lambda: asked.append(ASKED.stream))
    other.start()
    other.join()
    assert asked == [None]
    assert current_stream() == 4096


def test_a_thread_that_has_used_no_device_is_given_the_current_one(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.is_refusing = True
    monkeypatch.setattr(launching, "_use_device", lambda: setattr(driver, "is_refusing", False))
    monkeypatch.setattr(ASKED, "stream", 0)
    prepare_start(KERNEL, (1, 1, 1), 32, 0, (7,))(16, 32)
    assert driver.launched == [(0, [16, 32, 7])]


def test_what_the_driver_still_refuses_is_an_error(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.is_refusing = True
    monkeypatch.setattr(launching, "_use_device", lambda: None)
    monkeypatch.setattr(launching, "_error", lambda status: RuntimeError(f"status {status}"))
    monkeypatch.setattr(ASKED, "stream", 0)
    with pytest.raises(RuntimeError, match="status 201"):
        prepare_start(KERNEL, (1, 1, 1), 32, 0, (7,))(16, 32)
