"""Numbers as people read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_TIMES: Final = ((1e-3, 1e6, "ns"), (1.0, 1e3, "µs"), (1e3, 1.0, "ms"))
"""Below so many ms: the factor, and the unit."""
_DECIMAL: Final = ("", "k", "M", "G", "T", "P")
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB")
NONE: Final = "—"


def time(ms: float | None) -> str:
    """A time, to three digits."""
    if ms is None:
        return NONE
    for below, factor, unit in _TIMES:
        if ms < below:
            return f"{_three(ms * factor)} {unit}"
    return f"{_three(ms / 1e3)} s"


def size(count: float | None) -> str:
    """Bytes, in binary units."""
    if count is None:
        return "unknown"
    if not count:
        return "none"
    return _scaled(count, 1024, _BINARY, " ")


def quantity(value: float) -> str:
    """A count or a ratio, to three digits, with a decimal prefix where it is large."""
    return digits(value) if value < 1e4 else _scaled(value, 1000, _DECIMAL, " ").rstrip()


def digits(value: float) -> str:
    """Three digits, or all of an integer; an exponent only where it is very small."""
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{int(value):,}"
    return _three(value)


def slowdown(ratio: float) -> str:
    """A time against another."""
    return f"{digits(ratio)}×" if ratio < 0.095 else f"{ratio:.2f}×" if ratio < 10 else f"{ratio:,.0f}×"


def error(relative: float | None) -> str:
    """A relative error."""
    return NONE if relative is None else "0" if not relative else f"{relative:.1e}"


def percent(share: float) -> str:
    """A share."""
    return f"{share * 100:.0f} %" if share >= 0.095 or not share else f"{share * 100:.1f} %"


def moment(at: datetime | str | None) -> str:
    """A time of day, in UTC."""
    if not at:
        return NONE
    instant = datetime.fromisoformat(at) if isinstance(at, str) else at
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def duration(seconds: float) -> str:
    """How long something took."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _three(value: float) -> str:
    rounded = float(f"{value:.3g}")
    if abs(rounded) >= 100:
        return f"{rounded:,.0f}"
    if abs(rounded) >= 10:
        return f"{rounded:.1f}"
    return f"{rounded:.2f}" if abs(rounded) >= 1e-3 or not rounded else f"{rounded:.1e}"


def _scaled(value: float, base: int, units: tuple[str, ...], gap: str) -> str:
    place = 0
    while value >= base * 0.9995 and place < len(units) - 1:
        value, place = value / base, place + 1
    return f"{digits(value)}{gap}{units[place]}"
