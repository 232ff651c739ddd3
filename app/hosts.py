"""The host and origin of a request, as a browser states them: other host names and other sites are refused."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
ANY: Final = "*"
_MAX_SEEN: Final = 256


def is_loopback(host: str) -> bool:
    """Whether an address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Hosts:
    """The names under which the service answers; protects against DNS rebinding, where another name resolves to it.

    Parameters
    ----------
    names : iterable of str
        Lower case and without a port, ``*.example.org`` for all below one, ``*`` for any; an IPv6 address in brackets.
    """

    def __init__(self, names: Iterable[str]) -> None:
        allowed = list(dict.fromkeys(name.lower() for name in names))
        self.names = tuple(allowed)
        self._any = ANY in allowed
        self._whole = frozenset(allowed)
        self._below = tuple(name[1:] for name in allowed if name.startswith("*."))
        self._seen: set[bytes] = set()

    def allow(self, host: bytes) -> bool:
        """Whether a Host header has one of the names; any port is allowed."""
        if self._any or host in self._seen:
            return True
        name = _without_port(host.decode("latin-1").lower())
        is_allowed = name in self._whole or (bool(self._below) and name.endswith(self._below))
        if is_allowed and len(self._seen) < _MAX_SEEN:
            self._seen.add(host)
        return is_allowed


def foreign_origin(headers: Mapping[bytes, bytes]) -> str | None:
    """The other origin of a browser's request that changes something; None if it comes from this service's pages.

    Clients other than browsers send no origin, and cannot be misused by another site.
    """
    origin = headers.get(b"origin")
    if origin is not None:
        own = headers.get(b"host", b"")
        return None if own and _authority(origin) == own else origin.decode("latin-1")
    site = headers.get(b"sec-fetch-site", b"same-origin")
    return None if site in (b"same-origin", b"none") else f"another site ({site.decode('latin-1')})"


def _authority(origin: bytes) -> bytes:
    try:
        return urlsplit(origin.decode("latin-1")).netloc.encode("latin-1")
    except ValueError:  # unbalanced brackets
        return b""


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and not name.endswith(":") else host
