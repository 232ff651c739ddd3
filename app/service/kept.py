"""A cache of encoded answers, valid as long as they are what would be answered."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from hashlib import blake2b
from operator import attrgetter
from typing import Final

from cachetools import LRUCache

_ENTRY_BYTES: Final = 750
"""What an entry takes beside its question and its answer: what holds them and their headers, 500 to 700 measured."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An encoded answer.

    Parameters
    ----------
    body : bytes
    tag : bytes
        Its entity tag: the same for the same body, on every server.
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
    """Answers by what was asked in bytes, the one asked for longest ago out first; for one thread.

    Parameters
    ----------
    most_bytes : int
        What all answers together may take, with the questions and what holds both.

    Attributes
    ----------
    hits, misses : int
        How often `get` had an answer, and had none.
    """

    def __init__(self, most_bytes: int) -> None:
        self.hits = self.misses = 0
        self._kept: LRUCache[bytes, _Kept] = LRUCache(most_bytes, attrgetter("size_bytes"))

    def get(self, asked: bytes, basis_of: Callable[[str | None], object]) -> Answer | None:
        """The answer, if it would be made from the same today.

        Parameters
        ----------
        asked : bytes
        basis_of : callable (device_id) -> object
            What an answer on the device that was asked for (None: whichever is the default) depends on beside what is
            asked; equal to the kept answer's own if and only if nothing has changed.
        """
        kept = self._kept.get(asked)
        basis = None if kept is None else basis_of(kept.device_id)
        if kept is None or (kept.basis is not basis and kept.basis != basis):  # mostly it is: comparing takes longer
            self.misses += 1
            return None
        self.hits += 1
        return kept.answer

    def put(self, asked: bytes, device_id: str | None, basis: object, answer: Answer) -> None:
        """Keep an answer, unless it alone is more than may be kept."""
        size_bytes = len(asked) + len(answer.body) + _ENTRY_BYTES
        if size_bytes <= self._kept.maxsize:
            self._kept[asked] = _Kept(device_id, basis, answer, size_bytes)


class Parts:
    """Encoded parts of answers to lists; made in threads, several at once.

    Parameters
    ----------
    most : int
        Parts that are kept; where there are more, all are given up, since most of them serve one list alone.

    Attributes
    ----------
    hits, misses : int
        How many parts of answers were kept, and had to be made; whoever makes them counts.
    """

    def __init__(self, most: int) -> None:
        self.hits = self.misses = 0
        self._most = most
        self._kept: dict[Hashable, tuple[object, dict[Hashable, bytes]]] = {}

    def of(self, asked: Hashable, basis: object) -> dict[Hashable, bytes]:
        """The parts that answer this, each by what of a list it is for: to be read, and to be added to.

        Parameters
        ----------
        asked : hashable
            What is asked for the whole list.
        basis : object
            What the parts depend on beside that; equal if and only if nothing has changed.
        """
        kept = self._kept
        found = kept.get(asked)
        if found is not None and found[0] == basis and len(found[1]) < self._most:
            return found[1]
        if sum(len(parts) for _, parts in list(kept.values())) + len(kept) >= self._most:
            kept.clear()
        parts: dict[Hashable, bytes] = {}
        kept[asked] = (basis, parts)
        return parts
