"""The end of a database's connections: they close when no copy of the store is left, and not by chance."""

from __future__ import annotations

import weakref
from typing import Any

from sqlalchemy import Engine, event


class Connections:
    """An object that every copy of a store shares: its connections close with the last copy, at the latest at exit.

    Parameters
    ----------
    engine : sqlalchemy.Engine
    """

    def __init__(self, engine: Engine) -> None:
        weakref.finalize(self, close, engine)


def close(engine: Engine) -> None:
    """Close every connection of an engine; those in use by a thread close when it returns them."""
    if not event.contains(engine, "checkin", _close_returned):
        event.listen(engine, "checkin", _close_returned)
    engine.dispose()


def _close_returned(connection: Any, record: Any) -> None:
    if connection is not None:
        record.invalidate()
