"""Token buckets: how often one caller may ask, in bounded memory for any number of callers."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

MAX_CALLERS: Final = 10_000
"""Buckets in memory; the least recently used one is dropped first, since it is most nearly full again."""
_IPV6_PREFIX: Final = 64
"""The network of one subscriber, who has 2^64 addresses."""


class Rates:
    """A bucket for each caller, which fills at a steady rate; every request takes one from it.

    Parameters
    ----------
    per_s : float
        Requests a second in the long run.
    burst : int
        Requests at once after a pause.
    most : int
        Most buckets in memory.
    clock : callable () -> float
        Seconds.
    """

    def __init__(
        self, per_s: float, burst: int, most: int = MAX_CALLERS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s, self._burst, self._most, self._clock = per_s, float(burst), most, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, caller: str) -> float:
        """Take one from the caller's bucket; 0 if there was one, else the seconds to wait."""
        now = self._clock()
        level, since = self._buckets.pop(caller, (self._burst, now))
        level = min(level + (now - since) * self._per_s, self._burst)
        is_granted = level >= 1
        self._buckets[caller] = (level - is_granted, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return 0.0 if is_granted else (1 - level) / self._per_s


def network_of(client: tuple[str, int] | None) -> str:
    """The identity of a client without a token: its IPv4 address, or the /64 network of its IPv6 address."""
    host = client[0] if client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address.packed[: _IPV6_PREFIX // 8] + bytes(8), _IPV6_PREFIX)))
