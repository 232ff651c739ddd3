"""Whether a database's file is still the one that was opened, and can be written."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, event, text
from sqlalchemy.exc import SQLAlchemyError

from conv_advisor.data.database.space import reason
from conv_advisor.data.errors import StoreError

PATIENCE_S: Final = 0.5
"""How long another process may write before the file counts as locked."""

_Identity = tuple[int, int] | None


class Presence:
    """The files of a database as they were at first, with its log: a process could go on writing to deleted ones.

    Parameters
    ----------
    file : str or None
        None, or a name that is no file's: a database elsewhere or in memory, which is not watched.
    """

    def __init__(self, file: str | None) -> None:
        self._file = Path(file) if file and not file.startswith(("file:", ":")) else None
        self._opened = {path: _identity(path) for path in _files(self._file)}

    def check(self) -> None:
        """Check that the files are there and have not been replaced.

        Raises
        ------
        StoreError
            Writes made now would be lost.
        """
        for path, opened in self._opened.items():
            current = _identity(path)
            if opened is None and path != self._file:  # no log yet
                self._opened[path] = current
            elif current is None:
                raise StoreError(f"{path} is gone; what is written would be lost")
            elif current != opened:
                raise StoreError(f"{path} is not the file that was opened; restart the service to open it")

    def refuse_others(self, engine: Engine) -> None:
        """Open no more connections where the files are gone or replaced.

        SQLite would create a missing file anew, take the log of the old one for its own and delete it; and a second log
        beside one that is still written ruins the file.
        """
        event.listen(engine, "do_connect", self._check_connecting)

    def _check_connecting(self, *_: object) -> None:
        try:
            self.check()
        except StoreError as error:
            raise sqlite3.OperationalError(str(error)) from error

    def check_writable(self) -> None:
        """Check that the files are there, and commit a transaction that changes nothing.

        Raises
        ------
        StoreError
        """
        self.check()
        if self._file is None:
            return
        for path in self._opened:
            if path.exists() and not (path.stat().st_mode & 0o222 and os.access(path, os.W_OK)):
                raise StoreError(f"{path} is read-only")
        try:
            with closing(sqlite3.connect(self._file, timeout=PATIENCE_S, isolation_level=None)) as connection:
                _write(connection)
        except sqlite3.Error as error:
            raise StoreError(f"{self._file} cannot be written: {reason(error, self._file)}") from error


def check_writable(engine: Engine, presence: Presence) -> None:
    """Check that a database accepts writes.

    Raises
    ------
    StoreError
        The reason why it does not.
    """
    presence.check_writable()
    if engine.dialect.name == "postgresql":
        try:
            with engine.connect() as connection:
                if connection.execute(text("SHOW transaction_read_only")).scalar_one() == "on":
                    raise StoreError("the database is read-only")
        except SQLAlchemyError as error:
            raise StoreError(f"the database cannot be asked: {type(error).__name__}") from error


def _write(connection: sqlite3.Connection) -> None:
    """Commit a page to the log; no code uses this number, and it stays what it is."""
    connection.execute("BEGIN IMMEDIATE")
    (number,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {number:d}")
    connection.execute("COMMIT")


def _files(file: Path | None) -> list[Path]:
    return [] if file is None else [file, file.with_name(f"{file.name}-wal")]


def _identity(file: Path) -> _Identity:
    try:
        stat = file.stat()
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino)
