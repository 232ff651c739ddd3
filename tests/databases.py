"""The databases that the store is tested on: SQLite, and a real PostgreSQL where its URL is given."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url

from conv_advisor.data.database.opening import open_engine

POSTGRESQL_URL = "TEST_POSTGRESQL_URL"
"""Environment variable: URL of a database whose user may create others; `.ci/run` starts such a server."""


DATABASES = ("sqlite", "postgresql")


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty database of its own."""
    with new_database(request.param, tmp_path) as url:
        yield url


@contextmanager
def new_database(kind: str, folder: Path) -> Iterator[str]:
    """URL of an empty database, one of `DATABASES`; a file in the folder, or in the PostgreSQL server."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'database' / 'store.db'}"
        return
    with new_postgresql() as url:
        yield url


@contextmanager
def new_postgresql() -> Iterator[str]:
    """URL of an empty database in the PostgreSQL server that the environment names; skips where it names none."""
    server = os.environ.get(POSTGRESQL_URL)
    if not server:
        assert os.environ.get("REQUIRE_POSTGRESQL") != "1", f"REQUIRE_POSTGRESQL=1, but {POSTGRESQL_URL} is not set"
        pytest.skip(f"no PostgreSQL: {POSTGRESQL_URL} is not set")
    name = f"test_{secrets.token_hex(6)}"
    engine = open_engine(server).execution_options(isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        yield make_url(server).set(database=name).render_as_string(hide_password=False)
        with engine.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        engine.dispose()
