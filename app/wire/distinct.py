"""JSON whose objects have every name once: readers differ in which value of a repeated one counts (RFC 8259, 4)."""

from __future__ import annotations

import json
from typing import Any

from conv_advisor.data.errors import InvalidInput


def check_distinct(text: bytes) -> None:
    """See that no object in JSON that was read has a name twice.

    Raises
    ------
    InvalidInput
        The name, and the values that it is given.
    """
    try:
        json.loads(text, object_pairs_hook=distinct)
    except (ValueError, RecursionError):  # a number, or a depth, that whoever read it did not mind
        return


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of its names and values; for `json.loads`.

    Raises
    ------
    InvalidInput
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(repeated, [value for name, value in pairs if name == repeated], "one value in an object")
    return found
