"""The schema of a database, and its upgrade to this version's: at once where it is new, else by Alembic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, func, inspect, select, text
from sqlalchemy.exc import OperationalError

from conv_advisor.data.database.tables import METADATA
from conv_advisor.data.errors import StoreError

HEAD: Final = "0005"
"""The revision that this version works with: the newest of `MIGRATIONS`."""

MIGRATIONS: Final = Path(__file__).parent / "migrations"

_LOCK: Final = 0x636F6E76
"""The PostgreSQL advisory lock that a migrating process holds."""


def revision(engine: Engine) -> str | None:
    """The revision of a database's schema; None for an empty one, and for one older than migrations."""
    with engine.connect() as connection:
        return _revision(connection)


def upgrade(engine: Engine) -> None:
    """Bring a database's schema to `HEAD`; several processes may do so at once; a database at `HEAD` costs one look.

    Raises
    ------
    StoreError
        A newer version of this project has already changed it.
    """
    current = revision(engine)
    if current is None or current < HEAD:
        with _locked(engine) as connection:  # another process may have done it in the meantime: then this does nothing
            if _is_new(connection):
                _create(connection)
            elif _revision(connection) != HEAD:
                _migrate(connection)
        _shrink(engine)
    elif current > HEAD:
        raise StoreError(f"the database's schema is {current}, newer than {HEAD}, which this version knows")


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    current: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return current


def _is_new(connection: Connection) -> bool:
    return connection.dialect.name == "sqlite" and not inspect(connection).get_table_names()


def _create(connection: Connection) -> None:
    """Create today's tables, which is what all migrations together make: Alembic takes 0.2 s for the same."""
    METADATA.create_all(connection, checkfirst=False)
    version = "version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)"
    connection.exec_driver_sql(f"CREATE TABLE alembic_version ({version})")
    connection.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


def _migrate(connection: Connection) -> None:
    from alembic import command  # 0.2 s, saved where the database is up to date
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)


def _shrink(engine: Engine) -> None:
    """Shrink a file after a migration, where most of it is empty and nobody else has it open."""
    if engine.dialect.name != "sqlite":
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        names = "page_count", "freelist_count"
        pages, free = (connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names)
        if free > pages / 2:
            with suppress(OperationalError):  # another process reads: the empty pages are used again later
                connection.exec_driver_sql("VACUUM")


@contextmanager
def _locked(engine: Engine) -> Iterator[Connection]:
    """A transaction that only one process is in at a time, applied whole or not at all."""
    if engine.dialect.name != "sqlite":
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
            yield connection
        return
    # The driver begins no transaction before it creates a table, so it is told to begin none at all.
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.exec_driver_sql("ROLLBACK")
            raise
        connection.exec_driver_sql("COMMIT")
