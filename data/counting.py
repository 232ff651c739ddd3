"""A count and its noun, for a sentence."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """A count with its noun and the words after it: ``1 problem was``, ``1,200 problems were``.

    Parameters
    ----------
    count : int
    one : str
        The words after a count of one.
    many : str
        The words after any other count; by default `one` with an s.
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"
