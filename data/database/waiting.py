"""How long a transaction waits for locks of others: as long as suits the caller, on the same connections."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, Engine, event

LONGEST_WAIT_S: Final = 30.0
"""How long one writer of a SQLite file waits for another, unless `waiting_at_most` sets less."""
_OPTION: Final = "conv_advisor_wait_s"


def waiting_at_most(engine: Engine, seconds: float) -> Engine:
    """The same database, on the same connections, whose transactions wait no longer than this for each lock."""
    return engine.execution_options(**{_OPTION: seconds})


def limit_waiting(engine: Engine) -> None:
    """Have every transaction of an engine wait as long as `waiting_at_most` says; called once, when it is opened."""
    limits = {"sqlite": _limit_in_sqlite, "postgresql": _limit_in_postgresql}
    limit = limits.get(engine.dialect.name)
    if limit is not None:
        event.listen(engine, "begin", limit)


def _limit_in_sqlite(connection: Connection) -> None:
    wait_ms = round(connection.get_execution_options().get(_OPTION, LONGEST_WAIT_S) * 1e3)
    if connection.info.get(_OPTION) != wait_ms:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {wait_ms}")
        connection.info[_OPTION] = wait_ms


def _limit_in_postgresql(connection: Connection) -> None:
    """The limit of this transaction alone: a setting within a transaction that is undone is undone with it."""
    wait_s = connection.get_execution_options().get(_OPTION)
    if wait_s is not None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(wait_s * 1e3)}")
