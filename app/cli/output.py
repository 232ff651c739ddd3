"""What commands print: one JSON value, or a table; and how they read lists and layers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar

import typer

from conv_advisor.app.cli.table import Mark, Marked, write, write_table
from conv_advisor.app.wire.spellings import dtype_of, layout_of
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import DType, Layout

Kind = TypeVar("Kind", bound=StrEnum)
T = TypeVar("T")

_GLANCE_S: Final = 1.0

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
LayerName = Annotated[
    str, typer.Argument(help="size-batch-filter-filters-depth, such as 14-1-3-256-128; or Conv2d(...) with --input.")
]


def _member(kind: type[DType] | type[Layout], spelled: Callable[[str], object]) -> Callable[[str], Any]:
    """A parser of an option that takes our names and those of other libraries (`app.wire.spellings`)."""

    def read(text: str) -> Any:
        try:
            return kind(str(spelled(text)))
        except ValueError:
            names = ", ".join(repr(str(member)) for member in kind)
            raise typer.BadParameter(f"{text!r} is not one of {names}.") from None

    return read


def _dtype_option(beside: str = "") -> Any:
    """An option of a precision, with words about its default."""
    return typer.Option(
        help=f"Precision; float32 means no tensor cores. fp16, half and bf16 are read too.{beside}",
        parser=_member(DType, dtype_of),
        metavar=f"[{'|'.join(DType)}]",
        autocompletion=lambda: list(DType),
    )


OneDType = Annotated[DType, _dtype_option()]
OwnDType = Annotated[DType | None, _dtype_option("  [default: a model's own; float32 for a network by its name]")]
OneLayout = Annotated[
    Layout,
    typer.Option(
        help="Memory order; channels_last is accepted too.",
        parser=_member(Layout, layout_of),
        metavar=f"[{'|'.join(Layout)}]",
        autocompletion=lambda: list(Layout),
    ),
]


def print_json(value: Any) -> None:
    """One JSON value on one line."""
    sys.stdout.write(json.dumps(value) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table; columns of numbers are set flush right."""
    cells = [list(row) for row in rows]
    numeric = [
        place
        for place in range(len(columns))
        if cells and all(isinstance(row[place], int | float | None) for row in cells)
    ]
    if title:
        write(Marked(title, Mark.HEAD))
    write_table(columns, ([_text(value) for value in row] for row in cells), numeric)


@contextmanager
def progress_bar() -> Iterator[Callable[[float, float, str], None]]:
    """A progress bar with share and time left, on a terminal's standard error; elsewhere nothing is shown.

    The yielded function takes the amount done, the total, and what is being done.
    """
    if not sys.stderr.isatty():
        yield lambda done, total, doing: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=None)

        def show(done: float, total: float, doing: str) -> None:
            progress.update(bar, completed=done, total=total, description=doing)

        yield show


@contextmanager
def patient_bar() -> Iterator[Callable[[float, float, str], None]]:
    """A `progress_bar` that appears once the work takes longer than `_GLANCE_S`."""
    started, bar = time.monotonic(), None
    with ExitStack() as stack:

        def show(done: float, total: float, doing: str) -> None:
            nonlocal bar
            if bar is None and done < total and time.monotonic() - started > _GLANCE_S:
                bar = stack.enter_context(progress_bar())
            if bar:
                bar(done, total, doing)

        yield show


def watched(items: Sequence[T], doing: str) -> Iterator[T]:
    """The items one by one, with a `patient_bar` that says how many are done."""
    with patient_bar() as show:
        for n_done, item in enumerate(items):
            show(n_done, len(items), doing)
            yield item
        show(len(items), len(items), doing)


def print_next(*steps: str) -> None:
    """Say what to do next: commands, each with what it is for."""
    write(Marked("Next: " + "; ".join(steps), Mark.FAINT))


def split_enum(option: str, text: str, kind: type[Kind]) -> list[Kind]:
    """Read a comma-separated list of an enumeration's values.

    Raises
    ------
    InvalidInput
    """
    members = []
    for word in split_words(option, text):
        try:
            members.append(kind(word))
        except ValueError:
            raise InvalidInput(option, word, ", ".join(kind)) from None
    return members


def split_words(option: str, text: str) -> list[str]:
    """Read a comma-separated list.

    Raises
    ------
    InvalidInput
        It is empty.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise InvalidInput(option, text, "a comma-separated list")
    return words


def split_counts(option: str, text: str) -> list[int]:
    """Read a comma-separated list of positive integers.

    Raises
    ------
    InvalidInput
    """
    words = split_words(option, text)
    if not all(word.isdecimal() and int(word) for word in words):
        raise InvalidInput(option, text, "positive integers, separated by commas")
    return [int(word) for word in words]


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
