"""Plain text for a terminal: tables that fit its width, and colours with a meaning where it shows any.

Rich would do both, but importing it takes longer than an answer.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, TextIO

_GAP: Final = "  "
_PARTS: Final = re.compile(r"[^_.-]+[_.-]*|[_.-]+")
_LEAST_LINE: Final = 20
_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
"""Control characters and what is written for them: names come from models of unknown origin."""
_LEAST_TEXT: Final = 12
"""Characters that a column of text is folded to at least; where that is too wide, a list replaces the table."""


class Mark(StrEnum):
    """What a colour says; the value is its ANSI code."""

    AHEAD = "32"
    """Green: faster than others."""
    BEHIND = "31"
    """Red: slower than others."""
    UNSURE = "33"
    """Yellow: predicted or a guess, not measured."""
    HEAD = "1"
    """Bold: the answer, and names of columns."""
    FAINT = "2"
    """Faint: remarks beside the answer."""


class Marked(str):
    """Text with a meaning that a colour may show; the length of the str is the width that is seen."""

    __slots__ = ("mark",)
    mark: Mark

    def __new__(cls, text: str, mark: Mark) -> Marked:
        """Mark a text."""
        marked = super().__new__(cls, text)
        marked.mark = mark
        return marked


def write(text: str) -> None:
    """Write lines of text, each folded between words to the terminal's width."""
    for line in text.splitlines():
        mark = text.mark if isinstance(text, Marked) else None
        for part in _folded(line.translate(_CONTROLS), width()):
            sys.stdout.write(_painted(part, mark) + "\n")


def write_error(text: str) -> None:
    """Write lines to standard error, each folded between words where that is a terminal."""
    most = max(shutil.get_terminal_size().columns, _LEAST_LINE) if sys.stderr.isatty() else None
    for line in text.splitlines():
        sys.stderr.write("\n".join(_folded(line.translate(_CONTROLS), most)) + "\n")


def write_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> None:
    """Write a table that fits the terminal: its text folded, or as a list where even that is too wide.

    Parameters
    ----------
    columns : sequence of str
        Their names; if all are empty, no line of names is written.
    rows : iterable of sequence of str
        `Marked` ones in colour.
    right : iterable of int
        Columns of numbers, which are set flush right; only their names are ever folded.
    """
    cells = [tuple(map(_harmless, row)) for row in rows]
    flush = set(right)
    natural = [max([len(name), *(len(row[place]) for row in cells)]) for place, name in enumerate(columns)]
    folded = {place: max([*map(len, columns[place].split()), *(len(row[place]) for row in cells)]) for place in flush}
    widths = _fitted(natural, folded, width())
    lines = _stacked(columns, cells) if widths is None else _lined(columns, cells, widths, flush)
    for line in lines:
        sys.stdout.write(line.rstrip() + "\n")


def width() -> int | None:
    """Characters of a line: COLUMNS, else the terminal's; None where there is no terminal and nothing is folded."""
    if not os.environ.get("COLUMNS", "").isdecimal() and not sys.stdout.isatty():
        return None
    return max(shutil.get_terminal_size().columns, _LEAST_LINE)


def is_colourful(stream: TextIO) -> bool:
    """Whether colours are shown: on a terminal, unless NO_COLOR says no; elsewhere where FORCE_COLOR says so."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _fitted(natural: Sequence[int], flush: Mapping[int, int], most: int | None) -> list[int] | None:
    """Widths within the limit: names of the flush columns give way, then the widest columns of text; else None."""
    widths = list(natural)
    spare = len(_GAP) * (len(widths) - 1)
    if most is not None and sum(widths) + spare > most:
        widths = [flush.get(place, size) for place, size in enumerate(widths)]
    while most is not None and sum(widths) + spare > most:
        soft = [place for place in range(len(widths)) if place not in flush and widths[place] > _LEAST_TEXT]
        if not soft:
            return None
        widths[max(soft, key=widths.__getitem__)] -= 1
    return widths


def _lined(
    columns: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int], flush: set[int]
) -> Iterator[str]:
    heads = [Marked(name, Mark.HEAD) for name in columns]
    for row in [heads, *cells] if any(columns) else cells:
        parts = [_folded(cell, size) for cell, size in zip(row, widths, strict=True)]
        for line in range(max(map(len, parts))):
            pieces = [part[line] if line < len(part) else "" for part in parts]
            yield _GAP.join(
                _padded(piece, size, place in flush, row[place])
                for place, (piece, size) in enumerate(zip(pieces, widths, strict=True))
            )


def _harmless(cell: str) -> str:
    """The cell, its control characters written out."""
    if cell.isprintable():
        return cell
    text = cell.translate(_CONTROLS)
    return Marked(text, cell.mark) if isinstance(cell, Marked) else text


def _stacked(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows as a list: the first cell of each, and below it the others by name."""
    most = width()
    for first, *others in cells:
        yield from (_painted(part, Mark.HEAD) for part in _folded(first, most))
        for name, cell in zip(columns[1:], others, strict=True):
            line = f"{name}: {cell}" if name else cell
            mark = cell.mark if isinstance(cell, Marked) else None
            if cell:
                yield from (_GAP + _painted(part, mark) for part in _folded(line, most and most - len(_GAP)))


def _folded(text: str, most: int | None) -> list[str]:
    """The lines of a text, broken between words; a word longer than a line is broken behind a _, . or -."""
    if most is None or len(text) <= most:
        return [text]
    return _Folder(most, break_on_hyphens=False).wrap(text) or [""]


class _Folder(textwrap.TextWrapper):
    def _split(self, text: str) -> list[str]:
        words = super()._split(text)
        return [part for word in words for part in ([word] if len(word) <= self.width else _PARTS.findall(word))]


def _padded(piece: str, size: int, is_right: bool, cell: str) -> str:
    space = " " * (size - len(piece))
    shown = _painted(piece, cell.mark if isinstance(cell, Marked) else None)
    return space + shown if is_right else shown + space


def _painted(text: str, mark: Mark | None) -> str:
    return f"\x1b[{mark}m{text}\x1b[0m" if mark and text and is_colourful(sys.stdout) else text
