"""What the benchmarks on a device share: how they read lists, and how they end early without losing anything."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeVar

from conv_advisor.data.shipped import SUFFIX

T = TypeVar("T")


def list_of(allowed: Collection[T], kind: Callable[[str], T] = str) -> Callable[[str], list[T]]:  # type: ignore[assignment]  # str reads text
    """A reader of comma-separated values, each one of those allowed."""

    def parse(text: str) -> list[T]:
        values = [kind(part) for part in text.split(",")]
        unknown = [part for part in values if part not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(map(str, allowed))}")
        return values

    return parse


def existing(text: str) -> Path:
    """An argument that names measurements: a file, a folder, or a shipped table without its suffix."""
    path = Path(text)
    if not (path.exists() or path.with_name(path.name + SUFFIX).is_file()):
        raise argparse.ArgumentTypeError(f"{text} is neither a file nor a folder")
    return path


def shard(text: str) -> tuple[int, int]:
    """Read ``I/N``: the I-th of N parts, counted from 0."""
    index, count = (int(part) for part in text.split("/"))
    if not 0 <= index < count:
        raise argparse.ArgumentTypeError(f"{text}: I counts from 0 to N - 1")
    return index, count


def say(text: str) -> None:
    """Tell the person who waits, beside the output."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """Treat a polite end as Ctrl-C, so that what was measured is written."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
