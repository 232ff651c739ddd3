"""What a process without a server answers and trains from."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from conv_advisor.app.settings import Settings
    from conv_advisor.data.records import Records


def records_of(settings: Settings, *, is_brief: bool = False) -> Records:
    """What ships, and the store's own measurements if there is a store: asking creates none.

    Parameters
    ----------
    settings : Settings
    is_brief : bool
        Whether the process ends before anybody else could measure: it does without a store that holds nothing.

    Raises
    ------
    StoreError
    """
    from conv_advisor.data.records import Records

    if not settings.has_store or (is_brief and not settings.database_url and _holds_nothing(settings.store_file)):
        return Records()
    from conv_advisor.data.store import Store  # the database and its libraries, which a new user does without

    return Records(Store(settings.store_url))


def _holds_nothing(file: Path) -> bool:
    """Whether nothing was ever measured into a SQLite file; false where that cannot be told, which the store then is.

    SQLite itself is asked: it answers in a fraction of the time that SQLAlchemy takes to load.
    """
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            return not connection.execute("SELECT EXISTS (SELECT 1 FROM measurements)").fetchone()[0]
    except sqlite3.Error:
        return False
