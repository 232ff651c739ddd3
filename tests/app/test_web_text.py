"""Numbers as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from conv_advisor.app.web import text


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (None, "—"),
        (0.0004567, "457 ns"),
        (0.010622608, "10.6 µs"),
        (0.0099999997, "10.0 µs"),
        (0.01, "10.0 µs"),
        (0.999, "999 µs"),
        (1.0, "1.00 ms"),
        (347.2, "347 ms"),
        (1234.0, "1.23 s"),
        (123456.0, "123 s"),
    ],
)
def test_times_have_three_digits_and_a_unit(ms: float | None, said: str) -> None:
    assert text.time(ms) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (None, "unknown"),
        (0, "none"),
        (387, "387 B"),
        (1023.9, "1.00 KiB"),
        (2**20, "1 MiB"),
        (36_800_000, "35.1 MiB"),
        (2**31, "2 GiB"),
    ],
)
def test_bytes_have_binary_units(count: float | None, said: str) -> None:
    assert text.size(count) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.05, "0.05"), (3.0, "3"), (196.0, "196"), (9999.0, "9,999"), (115_605_504, "116 M"), (1e13, "10 T")],
)
def test_quantities_are_short(value: float, said: str) -> None:
    assert text.quantity(value) == said


def test_the_rest_is_short_too() -> None:
    assert [text.slowdown(ratio) for ratio in (0.0000865, 1.0, 1.234, 9.999, 23.4)] == [
        "8.7e-05×",
        "1.00×",
        "1.23×",
        "10.00×",
        "23×",
    ]
    assert [text.error(value) for value in (None, 0.0, 2.14e-7)] == ["—", "0", "2.1e-07"]
    assert [text.percent(share) for share in (0, 0.021, 0.25, 1)] == ["0 %", "2.1 %", "25 %", "100 %"]
    assert text.moment(datetime(2026, 1, 2, 3, 4, tzinfo=UTC)) == text.moment("2026-01-02T03:04:00+00:00")
    assert text.moment(None) == "—"
    assert [text.duration(seconds) for seconds in (0.72, 59.94, 61, 3700)] == [
        "0.7 s",
        "59.9 s",
        "1 min 01 s",
        "1 h 01 min",
    ]
