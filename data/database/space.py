"""What is said of a write that failed for want of space: SQLite names neither the file nor how full its disk is."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext

_OF_SPACE: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
"""A full disk is the first in the database and its log, and the second in the index of the log."""
_LITTLE_BYTES: Final = 16 * 2**20
"""A disk with less free is full for our purpose: a transaction that failed may have been longer than what is free."""


def reason(error: BaseException, file: Path) -> str:
    """What went wrong with a SQLite file, and where it may be the disk's space, how much of it is free now."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _OF_SPACE:
        return str(error)
    try:
        free_bytes = shutil.disk_usage(file.parent).free
    except OSError:
        return f"{error}: {file}"
    if free_bytes < _LITTLE_BYTES:
        return f"the disk of {file} is full ({free_bytes} bytes free)"
    return f"{error}: {file}, on whose disk {free_bytes} bytes are free"


def name_what_is_full(engine: Engine, file: Path) -> None:
    """Have the errors of an engine say `reason`."""

    def explain(context: ExceptionContext) -> None:
        error, cause = context.sqlalchemy_exception, context.original_exception
        if error is not None:
            error.args = cause.args = (reason(cause, file),)

    event.listen(engine, "handle_error", explain)
