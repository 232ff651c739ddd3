"""Times and their noise, and the fingerprint of a device."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC

import pytest

from conv_advisor.data.measurement import Device, Measurement, Outcome, relative_noise
from conv_advisor.data.problem import ConvProblem

DEVICE = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", processors=132, versions={"cudnn": "9.19.0"})


def _measurement(*samples_ms: float) -> Measurement:
    return Measurement(
        ConvProblem.parse("14-1-3-256-128"), "cuda.cuconv", DEVICE, Outcome.MEASURED, samples_ms=samples_ms
    )


def test_time_is_the_median_of_the_samples() -> None:
    assert _measurement(3.0, 1.0, 100.0).time_ms == 3.0
    assert _measurement(1.0, 2.0).time_ms == 1.5


def test_no_samples_no_time() -> None:
    assert _measurement().time_ms is None
    assert _measurement().noise is None


def test_noise_worked_by_hand() -> None:
    # Median 10; deviations 1 0 1 0 4, median 1.
    expected = math.sqrt(math.pi / 2) * 1.4826 / (10 * math.sqrt(5))
    assert relative_noise([9.0, 10.0, 11.0, 10.0, 14.0]) == pytest.approx(expected)


def test_noise_does_not_depend_on_the_unit_and_one_outlier_does_not_spoil_it() -> None:
    samples = [9.0, 10.0, 11.0, 10.0, 14.0]
    assert relative_noise([1000 * sample for sample in samples]) == pytest.approx(relative_noise(samples))
    assert relative_noise([9.0, 10.0, 11.0, 10.0, 1e9]) == relative_noise(samples)


def test_one_sample_says_nothing_of_its_spread() -> None:
    assert relative_noise([5.0]) == 1.0
    assert relative_noise([5.0, 5.0]) == 0.0


def test_a_measurement_is_dated_in_utc() -> None:
    assert _measurement().measured_at.tzinfo is UTC


def test_a_device_survives_its_json() -> None:
    assert Device.from_json(DEVICE.json) == DEVICE
    assert Device.from_json(DEVICE.json).fingerprint == DEVICE.fingerprint


@pytest.mark.parametrize(
    "change",
    [{"versions": {"cudnn": "9.20.0"}}, {"versions": {}}, {"processors": 114}, {"max_clock_mhz": 1980}],
    ids=lambda change: next(iter(change)),
)
def test_any_difference_changes_the_fingerprint(change: dict[str, object]) -> None:
    assert replace(DEVICE, **change).fingerprint != DEVICE.fingerprint


def test_the_order_of_versions_does_not_change_the_fingerprint() -> None:
    one = replace(DEVICE, versions={"cudnn": "9.19.0", "driver": "580"})
    other = replace(DEVICE, versions={"driver": "580", "cudnn": "9.19.0"})
    assert one.fingerprint == other.fingerprint
    assert len(one.fingerprint) == 16
