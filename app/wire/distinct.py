"""Refuses JSON objects that repeat a name: readers differ in which value then counts (RFC 8259, 4)."""

from __future__ import annotations

import json
from typing import Any

from conv_advisor.data.errors import InvalidInput


def check_distinct(text: bytes) -> None:
    """Check that no object in a JSON text has a name twice.

    Raises
    ------
    InvalidInput
        With the name, and the values that it has.
    """
    try:
        json.loads(text, object_pairs_hook=distinct)
    except (ValueError, RecursionError):  # a number or a depth that the strict reader accepted
        return


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from its names and values; a hook for `json.loads`.

    Raises
    ------
    InvalidInput
    """
    by_name = dict(pairs)
    if len(by_name) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(repeated, [value for name, value in pairs if name == repeated], "one value in an object")
    return by_name
