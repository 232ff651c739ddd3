"""Small JSON files that ship with the data or are fitted to it: read with checked types, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from conv_advisor.data.errors import ModelRejected

T = TypeVar("T", bound=msgspec.Struct)


def read_checked(path: Path, kind: type[T], fault: Callable[[T], str | None]) -> T:
    """A file's content.

    Parameters
    ----------
    path : Path
    kind : type
        What it holds.
    fault : callable (content) -> str or None
        What is wrong with it beyond its types.

    Raises
    ------
    ModelRejected
        Naming the file and the reason.
    """
    try:
        content = msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelRejected(f"{path}: {error}") from error
    reason = fault(content)
    if reason:
        raise ModelRejected(f"{path}: {reason}")
    return content
