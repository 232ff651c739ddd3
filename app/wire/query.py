"""The parameters of a URL: each once, but for those that may be lists, whose numbers may be parameters each."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote_plus

from conv_advisor.app.wire.schemas import LISTS


def values_of(query: str) -> Mapping[str, str | list[str]]:
    """What is given, by name: a list of what is given more than once.

    Notes
    -----
    `parse_qsl` takes four times as long where there is nothing to be decoded.
    """
    pairs = [part.split("=", 1) for part in query.split("&")]
    if "%" in query or "+" in query or min(map(len, pairs)) < 2:
        pairs = [[*pair] for pair in parse_qsl(query, keep_blank_values=True)]
    given = dict(pairs)
    if len(given) == len(pairs):
        return given
    lists: dict[str, list[str]] = {}
    for name, value in pairs:
        lists.setdefault(name, []).append(value)
    return {name: several if len(several) > 1 else several[0] for name, several in lists.items()}


def repeated_in(query: bytes) -> str:
    """The first parameter that is given more than once and is no list: nobody can say which of its values counts."""
    names = [part.partition(b"=")[0] for part in query.split(b"&")]
    if len(set(names)) == len(names) and b"%" not in query:
        return ""
    seen: set[str] = set()
    for name in (unquote_plus(each.decode("latin-1")) for each in names if each):
        if name in seen and name not in LISTS:
            return name
        seen.add(name)
    return ""
