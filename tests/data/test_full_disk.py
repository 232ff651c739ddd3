"""A full disk: what is said names the file and the disk, and nothing that was stored is lost."""

from __future__ import annotations

import shutil
import sqlite3
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, select

from conv_advisor.app.jobs.table import Jobs
from conv_advisor.data.database.tables import MEASUREMENTS as ROWS
from conv_advisor.data.errors import StoreError
from conv_advisor.data.store import Store
from tests.data.stored import MEASUREMENTS
from tests.disks import filled, small_disk

Usage = namedtuple("Usage", "total used free")


def _count(store: Store) -> int:
    return int(store.fetch(select(func.count()).select_from(ROWS))[0][0])


def _allow_no_more_pages(store: Store) -> None:
    """Have SQLite say SQLITE_FULL to whatever grows the file, on every connection."""

    def limit(connection: Any, *_: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # raised to what the file has

    event.listen(store.engine, "checkout", limit)


@pytest.mark.parametrize(
    ("free_bytes", "said"),
    [
        (0, r"cannot write the store: the disk of {file} is full \(0 bytes free\)"),
        (2**30, r"cannot write the store: database or disk is full: {file}, on whose disk 1073741824 bytes are free"),
        (None, r"cannot write the store: database or disk is full: {file}"),
    ],
)
def test_what_is_full_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int | None, said: str
) -> None:
    def usage(folder: Path) -> Usage:
        assert folder == tmp_path
        if free_bytes is None:
            raise OSError
        return Usage(2**40, 2**40, free_bytes)

    file = tmp_path / "store.db"
    with Store(f"sqlite:///{file}") as store:
        _allow_no_more_pages(store)
        monkeypatch.setattr(shutil, "disk_usage", usage)
        with pytest.raises(StoreError, match=said.format(file=file) + r"\Z"):
            store.append(MEASUREMENTS * 1000)
        assert _count(store) == 0
        with pytest.raises(StoreError, match=said.format(file=file).removeprefix("cannot write the store: ")):
            Jobs(store).create("sweep", {"networks": ["x" * 10**6]})


def test_another_error_is_left_as_it_is(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        with store.engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE measurements")
        with pytest.raises(StoreError, match=r"no such table: measurements\Z"):
            store.append(MEASUREMENTS)


def test_a_disk_that_fills_up_loses_nothing_that_was_stored(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 * 2**20) as disk:
        file = disk / "store.db"
        with Store(f"sqlite:///{file}") as store:
            store.append(MEASUREMENTS)
            with filled(disk):
                for _ in range(2):
                    with pytest.raises(StoreError, match=rf"the disk of {file} is full \(0 bytes free\)"):
                        store.append(MEASUREMENTS * 1000)
                    assert _count(store) == len(MEASUREMENTS)
                with pytest.raises(StoreError, match=rf"the disk of {file} is full"):
                    store.check_writable()
            store.check_writable()
            store.append(MEASUREMENTS)
        with sqlite3.connect(file) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
        with Store(f"sqlite:///{file}") as store, filled(disk):
            assert _count(store) == 2 * len(MEASUREMENTS)


def test_a_store_that_is_made_on_a_full_disk_is_refused_and_made_later(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2**20) as disk:
        url, rest = f"sqlite:///{disk / 'store.db'}", disk / "rest"
        rest.touch()
        for n_bytes in range(0, 2**19, 2**13):  # it fails at any of the pages that a new database has
            rest.write_bytes(bytes(n_bytes))
            with filled(disk):
                rest.write_bytes(b"")
                try:
                    Store(url).close()
                except StoreError as error:
                    assert f"the disk of {disk / 'store.db'} is full" in str(error)  # noqa: PT017 - it may be made
                else:
                    break
        else:
            pytest.fail("it is never made")
        assert n_bytes
