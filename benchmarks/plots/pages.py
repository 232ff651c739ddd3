"""A page with parts that a script writes, each between two marks; Markdown tables and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence


def marks(name: str) -> tuple[str, str]:
    """The lines between which a part is written."""
    return f"<!-- {name}: written by python -m benchmarks.plots -->", f"<!-- end of {name} -->"


def rewritten(page: str, parts: Mapping[str, str]) -> str:
    """The page with these parts, by name, written anew.

    Raises
    ------
    ValueError
        The page has not exactly one pair of marks for a part.
    """
    for name, text in parts.items():
        begin, end = marks(name)
        if page.count(begin) != 1 or page.count(end) != 1:
            raise ValueError(f"the page needs one line {begin!r} and one {end!r}")
        whole = "\n\n".join((begin, text, end))
        before, after = page.index(begin), page.index(end) + len(end)
        page = f"{page[:before]}{whole}{page[after:]}"
    return page


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float, digits: int = 2) -> str:
    """A number with so many decimals; a dash where there is none."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def percent(share: float) -> str:
    """A share in whole percent; a dash where there is none."""
    return f"{100 * share:.0f} %" if math.isfinite(share) else "-"
