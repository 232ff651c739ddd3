"""The end of a database's connections: they are closed when nobody has the store any more, and not by chance."""

from __future__ import annotations

import weakref
from typing import Any

from sqlalchemy import Engine, event


class Connections:
    """What every copy of a store shares: with the last of them its connections are closed, at the latest at exit.

    Parameters
    ----------
    engine : sqlalchemy.Engine
    """

    def __init__(self, engine: Engine) -> None:
        weakref.finalize(self, close, engine)


def close(engine: Engine) -> None:
    """Close every connection of an engine: those that a thread still uses when it gives them back."""
    if not event.contains(engine, "checkin", _close_returned):
        event.listen(engine, "checkin", _close_returned)
    engine.dispose()


def _close_returned(connection: Any, record: Any) -> None:
    if connection is not None:
        record.invalidate()
