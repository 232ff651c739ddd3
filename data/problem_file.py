"""Problems in a text file, one per line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import ConvProblem, DType, Layout


def read_problems(path: Path, dtypes: Iterable[DType], layouts: Iterable[Layout]) -> list[ConvProblem]:
    """Read the problems of a file, each once, in its order.

    Parameters
    ----------
    path : Path
        A line is a layer in short or long form, optionally followed by a dtype and then a layout; the text after a
        ``#`` is a comment.
    dtypes, layouts : iterable
        Dtypes and layouts of lines that name none.

    Raises
    ------
    InvalidInput
        Naming the line, or the file that cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("problems", str(path), f"a readable text file ({error})") from None
    dtypes, layouts = tuple(dtypes), tuple(layouts)
    problems: dict[ConvProblem, None] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            for dtype in [DType(words[1])] if len(words) > 1 else dtypes:
                for layout in [Layout(words[2])] if len(words) > 2 else layouts:
                    problems[ConvProblem.parse(words[0], dtype=dtype, layout=layout)] = None
        except (InvalidInput, ValueError) as error:
            raise InvalidInput(f"{path.name} line {number}", line, f"a layer, a dtype, a layout ({error})") from None
    return list(problems)
