"""A count and its noun, as a sentence has them."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """A count and its noun, and what follows it: ``1 problem was``, ``1,200 problems were``.

    Parameters
    ----------
    count : int
    one : str
        What is said of one.
    many : str
        What is said of none and of several; by default `one` with an s.
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"
