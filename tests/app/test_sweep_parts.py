"""The parts of a sweep that need no worker: its one writer, and which layers it begins with."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from conv_advisor.app.sweep.attempt import Layer, Result, Trial
from conv_advisor.app.sweep.expected import expected_ms
from conv_advisor.app.sweep.writer import Writer
from conv_advisor.data.errors import StoreError
from conv_advisor.data.measurement import Device, Measurement, Outcome, Pick
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels import catalog
from tests.processes import eventually

GPU = Device("nvidia-h200", "NVIDIA H200", "cuda", "9.0", processors=132, max_clock_mhz=1980)
SMALL, LARGE = ConvProblem.parse("7-1-1-32-832"), ConvProblem.parse("56-32-3-256-256")


class SlowStore:
    """A store that writes when it is told to, or fails."""

    def __init__(self, error: StoreError | None = None) -> None:
        self.error = error
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.written: list[list[ConvProblem]] = []

    def append(self, measurements: Iterable[Measurement], _picks: Iterable[Pick]) -> None:
        self.begun.set()
        self.may_go_on.wait()
        if self.error:
            raise self.error
        self.written.append([measurement.problem for measurement in measurements])


def result(n: int) -> Result:
    problem = replace(SMALL, n=n)
    return Result(problem, [Measurement(problem, "cudnn.gemm", GPU, Outcome.NOT_SUPPORTED)], [])


def writer(store: Any) -> Writer:
    return Writer(store)


def test_what_comes_during_a_write_is_written_together_after_it():
    store = SlowStore()
    one = writer(store)
    one.put(result(1))
    assert store.begun.wait(60)
    for n in (2, 3, 4):
        one.put(result(n))  # at once, although the store is busy
    store.may_go_on.set()
    one.close()
    one.check()
    assert [[problem.n for problem in problems] for problems in store.written] == [[1], [2, 3, 4]]


def test_a_failed_write_is_the_error_of_whoever_comes_next_and_of_the_end():
    store = SlowStore(StoreError("the disk is full"))
    store.may_go_on.set()
    one = writer(store)
    one.put(result(1))
    assert eventually(lambda: one.has_failed)
    with pytest.raises(StoreError, match="full"):
        one.put(result(2))
    one.close()
    with pytest.raises(StoreError, match="full"):
        one.check()
    assert store.written == []


def layer(problem: ConvProblem, n_variants: int | None = None) -> Layer:
    names = tuple(variant.id for variant in catalog.for_device_kind("cuda"))[:n_variants]
    return (Trial(problem, names, has_picks=False),)


def test_a_layer_is_longer_with_more_work_more_batches_and_more_variants_that_apply():
    assert expected_ms(layer(LARGE), GPU) > expected_ms(layer(SMALL), GPU)
    assert expected_ms(layer(SMALL), GPU) > expected_ms(layer(SMALL, 3), GPU)
    assert expected_ms(layer(SMALL) + layer(replace(SMALL, n=8)), GPU) > 2 * expected_ms(layer(SMALL), GPU)
    strided = replace(SMALL, stride_h=2, stride_w=2)  # fewer variants compute it
    assert expected_ms(layer(strided), GPU) < expected_ms(layer(SMALL), GPU)


@pytest.mark.parametrize("device", [Device("cpu", "A CPU", "cpu"), Device("some", "Some GPU", "cuda")])
def test_a_device_of_unknown_size_still_has_an_order(device: Device):
    names = tuple(variant.id for variant in catalog.for_device_kind(device.kind))
    times_ms = [
        expected_ms((Trial(replace(problem, dtype=DType.FLOAT32), names, has_picks=False),), device)
        for problem in (SMALL, LARGE)
    ]
    assert 0 < times_ms[0] < times_ms[1]


def test_an_unknown_variant_takes_no_time():
    assert expected_ms((Trial(SMALL, ("cuda.unheard_of",), has_picks=False),), GPU) == 0
