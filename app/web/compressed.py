"""Pages, static files and long answers as gzip, for whoever says that they take it.

What a page says is not secret to whoever asks for it, and no page holds a token, a cookie or a key that opens anything:
a guess that is sent along in a query gains nothing from the length of the answer (BREACH).
"""

from __future__ import annotations

import gzip
from functools import lru_cache
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers

LEAST_BYTES: Final = 1_000
"""Below that the saving is lost in one packet."""

_FAST: Final = 4
_BEST: Final = 9
_FASTEST: Final = 1
"""Levels of gzip: of a page, which is made anew for each request, of a file, which is not, and of data."""


def takes_gzip(headers: Headers) -> bool:
    """Whether a request's Accept-Encoding names gzip, or anything, and does not refuse it (RFC 9110, 12.5.3)."""
    weights: dict[str, float] = {}
    for part in headers.get("accept-encoding", "").split(","):
        coding, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weights[coding] = _weight(parameters)
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def compressed(body: bytes) -> bytes:
    """A page as gzip."""
    return gzip.compress(body, _FAST, mtime=0)


def packed(body: bytes, headers: Headers) -> tuple[bytes, dict[str, str]]:
    """Data as whoever asked takes it, and the headers that say how: long lists shrink to a quarter.

    At the lowest level, which takes 7 ms a megabyte of advice; the next ones take twice as long and save a tenth.
    """
    said = {"vary": "Accept-Encoding"}
    if len(body) < LEAST_BYTES or not takes_gzip(headers):
        return body, said
    return gzip.compress(body, _FASTEST, mtime=0), said | {"content-encoding": "gzip"}


@lru_cache(maxsize=64)
def compressed_file(path: Path, changed_ns: int) -> bytes:
    """A file as gzip, made once for each state of the file."""
    del changed_ns  # it keys the cache
    return gzip.compress(path.read_bytes(), _BEST, mtime=0)


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
