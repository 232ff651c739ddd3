"""A cache of encoded answers, each valid as long as the same answer would be given."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from hashlib import blake2b
from operator import attrgetter
from typing import Final

from cachetools import LRUCache

_ENTRY_BYTES: Final = 750
"""Memory of an entry beside its question and answer: the containers and their headers, 500 to 700 measured."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An encoded answer.

    Parameters
    ----------
    body : bytes
    tag : bytes
        Entity tag: the same for the same body, on every server.
    """

    body: bytes
    tag: bytes

    @classmethod
    def of(cls, body: bytes) -> Answer:
        """A body with its tag."""
        return cls(body, b'"%s"' % blake2b(body, digest_size=12).hexdigest().encode())


@dataclass(frozen=True, slots=True)
class _Kept:
    device_id: str | None
    basis: object
    answer: Answer
    size_bytes: int


class Answers:
    """Answers by the bytes of the request, least recently used out first; for one thread.

    Parameters
    ----------
    most_bytes : int
        Memory of all answers together, with the requests and their containers.

    Attributes
    ----------
    hits, misses : int
        How often `get` had an answer, or had none.
    """

    def __init__(self, most_bytes: int) -> None:
        self.hits = self.misses = 0
        self._kept: LRUCache[bytes, _Kept] = LRUCache(most_bytes, attrgetter("size_bytes"))

    def get(self, request: bytes, basis_of: Callable[[str | None], object]) -> Answer | None:
        """The cached answer, if it would be made from the same basis now.

        Parameters
        ----------
        request : bytes
        basis_of : callable (device_id) -> object
            The basis of an answer on the requested device (None: the default one): what it depends on beside the
            request. Equal to the cached answer's basis if and only if nothing has changed.
        """
        entry = self._kept.get(request)
        basis = None if entry is None else basis_of(entry.device_id)
        if entry is None or (entry.basis is not basis and entry.basis != basis):  # `is` is faster, and mostly true
            self.misses += 1
            return None
        self.hits += 1
        return entry.answer

    def put(self, request: bytes, device_id: str | None, basis: object, answer: Answer) -> None:
        """Cache an answer, unless it alone is too large."""
        size_bytes = len(request) + len(answer.body) + _ENTRY_BYTES
        if size_bytes <= self._kept.maxsize:
            self._kept[request] = _Kept(device_id, basis, answer, size_bytes)


class Parts:
    """Encoded parts of answers to lists; for several threads.

    Parameters
    ----------
    most : int
        Most parts in the cache; beyond that all are dropped, since most of them serve only one list.

    Attributes
    ----------
    hits, misses : int
        How many parts were cached, or had to be made; the caller of `of` counts.
    """

    def __init__(self, most: int) -> None:
        self.hits = self.misses = 0
        self._most = most
        self._kept: dict[Hashable, tuple[object, dict[Hashable, bytes]]] = {}

    def of(self, request: Hashable, basis: object) -> dict[Hashable, bytes]:
        """The parts for one request, each by its element of the list; callers read them and add to them.

        Parameters
        ----------
        request : hashable
            Request for the whole list.
        basis : object
            What the parts depend on beside the request; equal if and only if nothing has changed.
        """
        entries = self._kept
        entry = entries.get(request)
        if entry is not None and entry[0] == basis and len(entry[1]) < self._most:
            return entry[1]
        if sum(len(parts) for _, parts in list(entries.values())) + len(entries) >= self._most:
            entries.clear()
        parts: dict[Hashable, bytes] = {}
        entries[request] = (basis, parts)
        return parts
