"""What others may see of a database: nothing of its files, and of its errors only what went wrong."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, StatementError

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_OTHERS: Final = 0o007
_BESIDE: Final = ("", "-wal", "-shm")
"""The files of one SQLite database. SQLite makes the latter two as open as the first."""


def keep_to_the_point(engine: Engine) -> None:
    """Take statements and their parameters out of every error of this engine, wherever it is shown or logged.

    Parameters are what callers sent: the body of a job, an idempotency key.
    """
    event.listen(engine, "handle_error", _shorten)


def _shorten(context: ExceptionContext) -> None:
    error, cause = context.sqlalchemy_exception, context.original_exception
    if isinstance(error, StatementError):
        error.statement = error.params = error.code = None
    if isinstance(error, DBAPIError):
        error.args = cause.args = (_reason(cause),)  # of the cause too: a traceback shows it


def _reason(cause: Any) -> str:
    """The driver's message, without the row that PostgreSQL adds as a detail, or the value that a driver quotes."""
    state: str | None = getattr(cause, "sqlstate", None)
    if state is None:
        return str(cause).partition(" with text ")[0]  # what is not UTF-8, SQLite's driver quotes
    is_of_a_value = state.startswith("22")
    return f"{type(cause).__name__} ({state})" + ("" if is_of_a_value else f": {cause.diag.message_primary}")


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents for this user alone; one that exists stays as it is."""
    for missing in reversed([parent for parent in (folder, *folder.parents) if not parent.exists()]):
        missing.mkdir(mode=_FOLDER_MODE, exist_ok=True)


def make_file(file: Path) -> None:
    """Make a SQLite file that only this user can read; one that exists stays as it is."""
    with suppress(OSError):  # an existing file is not opened: closing it would drop the locks that SQLite holds on it
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, _FILE_MODE))


def close_to_others(file: Path) -> None:
    """Let only this user read a SQLite file and those beside it.

    A mode that lets in a group and nobody else is a decision of the owner, and stays. A mode that cannot be changed is
    left to SQLite, which reports what it cannot do.
    """
    for name in _BESIDE:
        with suppress(OSError):
            path = Path(f"{file}{name}")
            if path.stat().st_mode & _OTHERS:
                path.chmod(_FILE_MODE)
