"""Opening the database, and building its rows."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from sqlalchemy import URL, Dialect, Engine, Float, Row, Table, create_engine, event, insert, make_url
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import PoolProxiedConnection, QueuePool
from sqlalchemy.sql.functions import GenericFunction

from conv_advisor.data.database.privacy import close_to_others, keep_to_the_point, make_file, make_folder
from conv_advisor.data.database.space import name_what_is_full
from conv_advisor.data.database.waiting import LONGEST_WAIT_S, limit_waiting
from conv_advisor.data.extras import require
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import COLUMNS, ConvProblem, to_columns

AnyRow = Row[*tuple[Any, ...]]

ROWS_AT_ONCE: Final = 16_384
"""Most rows of a large table that are read or written at once."""
_KEYS_AT_ONCE: Final = 500
"""Most values of one IN list: every database takes so many."""
_POSTGRESQL_LIMITS: Final = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "tcp_user_timeout": 15_000,
}
"""Limits that keep a connection from waiting for ever on a host that is gone; the URL can set each of them."""
_TURN_S: Final = 0.5
"""How long to wait for a connection of another thread where no more can be opened: most are free sooner."""


class _InTurn(QueuePool):
    """As many connections as threads ask for at once, and the same ones in turn where no more can be opened.

    Where the file is gone the open connections can still read it, and a background thread may hold one just now.
    """

    def connect(self) -> PoolProxiedConnection:
        """As `QueuePool.connect`."""
        give_up_at_s = monotonic() + _TURN_S
        while True:
            try:
                return super().connect()
            except sqlite3.OperationalError:
                is_none_open = not self.checkedout() and not self.checkedin()
                if is_none_open or monotonic() > give_up_at_s:
                    raise
                sleep(0.005)


logging.getLogger(f"{__name__}.{_InTurn.__qualname__}").setLevel(logging.WARNING)  # as SQLAlchemy's own pools begin


class now_s(GenericFunction[float]):  # noqa: N801 - a function of SQL
    """Seconds since 1970 by the database's own clock, which all of its clients share."""

    type = Float(53)
    inherit_cache = True


@compiles(now_s, "sqlite")
def _now_s_in_sqlite(_function: now_s, _compiler: Any, **_: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now_s, "postgresql")
def _now_s_in_postgresql(_function: now_s, _compiler: Any, **_: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


def open_engine(url: str) -> Engine:
    """Open a database; a SQLite file gets its folder, settings fit for several processes, and is private to this user.

    No error of the engine shows a statement or a parameter.

    Raises
    ------
    NotInstalled
        The database is PostgreSQL, and its driver is missing.
    """
    parsed = make_url(url)
    openers = {"sqlite": _open_sqlite, "postgresql": _open_postgresql, "postgres": _open_postgresql}
    engine = openers.get(parsed.get_backend_name(), create_engine)(parsed)
    keep_to_the_point(engine)
    if file := _file(engine.url):
        name_what_is_full(engine, file)
    limit_waiting(engine)
    return engine


def _open_sqlite(url: URL) -> Engine:
    file = _file(url)
    # As many connections as threads ask for: a thread that waited for a connection would wait for a writer.
    engine = create_engine(url, pool_size=0, poolclass=_InTurn) if file else create_engine(url)
    if file:
        make_folder(file.parent)
        make_file(file)
        event.listen(engine, "do_connect", lambda *_: close_to_others(file))
    event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _file(url: URL) -> Path | None:
    """The file of a SQLite database; None for one elsewhere or in memory."""
    is_file = url.get_backend_name() == "sqlite" and url.database and not url.database.startswith(("file:", ":"))
    return Path(str(url.database)) if is_file else None


def _open_postgresql(url: URL) -> Engine:
    """PostgreSQL by psycopg 3, whatever driver SQLAlchemy takes by default; a server that is gone is noticed."""
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.get_driver_name() == "psycopg":
        require("psycopg")
    limits = {name: value for name, value in _POSTGRESQL_LIMITS.items() if name not in url.query}
    return create_engine(url, connect_args=limits, pool_pre_ping=True, pool_timeout=10)


def _prepare_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {round(LONGEST_WAIT_S * 1e3)}")
    _use_write_ahead_log(cursor)
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _use_write_ahead_log(cursor: sqlite3.Cursor) -> None:
    """Turn on the log; if two processes do so at once, SQLite refuses one of them without waiting."""
    give_up_at_s = monotonic() + LONGEST_WAIT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() > give_up_at_s:
                raise
            sleep(0.01)
        else:
            return


def in_lists(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    """The keys in lists short enough for one IN each."""
    return (keys[start : start + _KEYS_AT_ONCE] for start in range(0, len(keys), _KEYS_AT_ONCE))


def problem_row(problem: ConvProblem) -> dict[str, Any]:
    return {"key": problem.key} | dict(zip(COLUMNS, to_columns(problem), strict=True))


def device_row(device: Device) -> dict[str, Any]:
    return {"fingerprint": device.fingerprint, "id": device.id, "json": device.json}


def bulk_insert(target: Table, columns: Mapping[str, Sequence[Any]], dialect: Dialect) -> tuple[str, list[Any]]:
    """The statement and parameters that add these columns' rows.

    The driver gets them unprocessed: for plain values, SQLAlchemy's work on each row takes
    longer than the database's.
    """
    compiled = insert(target).compile(dialect=dialect, column_keys=list(columns))
    if compiled.positiontup is None:
        return str(compiled), [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return str(compiled), list(zip(*(columns[name] for name in compiled.positiontup), strict=True))
