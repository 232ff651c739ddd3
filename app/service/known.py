"""Measurements for advice and training in a process without a server."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from conv_advisor.app.settings import Settings
    from conv_advisor.data.records import Records


def records_of(settings: Settings, *, is_brief: bool = False) -> Records:
    """The shipped measurements, and those of the store if there is one: reading creates none.

    Parameters
    ----------
    settings : Settings
    is_brief : bool
        Whether the process ends before anything else could be measured: it then skips an empty store.

    Raises
    ------
    StoreError
    """
    from conv_advisor.data.records import Records

    if not settings.has_store or (is_brief and not settings.database_url and _holds_nothing(settings.store_file)):
        return Records()
    from conv_advisor.data.store import Store  # loads the database libraries, which a new user does not need

    return Records(Store(settings.store_url))


def _holds_nothing(file: Path) -> bool:
    """Whether a SQLite file has no measurements; False if that cannot be read, so that the store reports it.

    This asks SQLite itself, which answers in a fraction of the time that loading SQLAlchemy takes.
    """
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            return not connection.execute("SELECT EXISTS (SELECT 1 FROM measurements)").fetchone()[0]
    except sqlite3.Error:
        return False
