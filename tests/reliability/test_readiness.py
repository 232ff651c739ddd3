"""The next probe of readiness tells what is missing, and that it is there again."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from conv_advisor.app.service import ready
from conv_advisor.app.service.ready import LONGEST_S, Readiness
from conv_advisor.data.database.presence import Presence
from conv_advisor.data.errors import StoreError
from conv_advisor.data.store import Store
from conv_advisor.models.registry.on_disk import Registry
from conv_advisor.models.registry.shared import SharedModels
from tests.app.serving import GPU, LAYER, TIMES_MS, small_tree
from tests.databases import new_postgresql
from tests.processes import eventually, is_running
from tests.reliability.faulty import BROKEN
from tests.reliability.servers import Server, running
from tests.reliability.stalling import stalling

pytestmark = pytest.mark.slow


def lose_store(server: Server) -> None:
    (server.home / "conv-advisor.db").rename(server.home / "away")


def find_store(server: Server) -> None:
    (server.home / "away").rename(server.home / "conv-advisor.db")


def break_worker(server: Server) -> None:
    """Kill the worker and the one that stands by, both of which must be there: none that begins later is missed."""
    pids: list[int] = []

    def are_both_there() -> bool:
        pids[:] = server.workers()
        return len(pids) == 2

    assert eventually(are_both_there)
    Path(f"{server.recording}{BROKEN}").touch()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not any(map(is_running, pids)))


def mend_worker(server: Server) -> None:
    Path(f"{server.recording}{BROKEN}").unlink()


def lose_log(server: Server) -> None:
    (server.home / "conv-advisor.db-wal").rename(server.home / "away-wal")


def find_log(server: Server) -> None:
    (server.home / "away-wal").rename(server.home / "conv-advisor.db-wal")


def forbid_writing(server: Server) -> None:
    (server.home / "conv-advisor.db").chmod(0o400)


def allow_writing(server: Server) -> None:
    (server.home / "conv-advisor.db").chmod(0o600)


CHANGES = {
    "file": (lose_store, find_store),
    "log": (lose_log, find_log),
    "permission": (forbid_writing, allow_writing),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CHANGES)
def test_the_next_probe_tells_what_is_missing_and_that_it_is_there_again(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lose, restore = CHANGES[name]
    with running(tmp_path) as server:
        lose(server)
        began = time.monotonic()
        said = server.http.get("/readyz")
        lost_s = time.monotonic() - began
        assert said.status_code == 503
        assert list(said.json()["missing"]) == ["store"]
        assert said.headers["retry-after"]
        assert server.http.get("/livez").status_code == 200
        time.sleep(1)
        assert not server.is_ready(), "it stays so"
        restore(server)
        began = time.monotonic()
        assert server.is_ready()
        with capsys.disabled():
            print(f"\n{name}: told in {lost_s:.2f} s, and again in {time.monotonic() - began:.2f} s")


@pytest.mark.timeout(900)
def test_a_worker_that_is_gone_is_told_and_one_that_can_start_again_is_tried_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path) as server:
        break_worker(server)
        said = server.http.get("/readyz")
        assert said.status_code == 503, "the next probe tells"
        assert list(said.json()["missing"]) == ["worker"]
        assert server.http.get("/livez").status_code == 200
        time.sleep(3)
        assert not server.is_ready(), "it stays so, however often it is tried"
        mend_worker(server)
        began, tried = time.monotonic(), set[int]()

        def is_back() -> bool:
            tried.update(server.workers())
            return server.is_ready()

        assert eventually(is_back)
        with capsys.disabled():
            print(f"\nworker: again after {time.monotonic() - began:.2f} s")
        # One may have met the broken device before it was mended, one is a spare that has just begun to stand by.
        assert len(tried) <= 3


@pytest.mark.timeout(900)
def test_a_tree_that_is_missing_is_told_until_there_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(tmp_path, model=None) as server:
        said = server.http.get("/readyz")
        assert said.status_code == 503
        assert list(said.json()["missing"]) == ["model"]
        with Store(f"sqlite:///{tmp_path / 'conv-advisor.db'}") as store:
            began = time.monotonic()
            SharedModels(Registry(tmp_path / "elsewhere"), store.engine).add(small_tree(TIMES_MS), in_charge=True)
        assert eventually(server.is_ready)
        took_s = time.monotonic() - began
        active = tmp_path / "models" / GPU.id / "active.json"
        active.unlink()
        assert eventually(active.exists), "what this host has lost comes back from the database"
        assert server.is_ready()
        with capsys.disabled():
            print(f"\nmodel: there after {took_s:.2f} s")


@pytest.mark.timeout(900)
def test_a_database_that_stalls_keeps_nobody_waiting_who_does_not_ask_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        new_postgresql() as url,
        stalling(url) as way,
        running(tmp_path, probe_s=LONGEST_S, database_url=way.url) as server,
    ):
        advice = {"params": {"layer": LAYER}}
        assert server.http.get("/v1/advice", **advice).status_code == 200
        with ThreadPoolExecutor(2) as threads:
            way.stall()
            began = time.monotonic()
            waiting = [threads.submit(server.http.get, "/v1/advice", **advice) for _ in range(2)]
            assert not server.is_ready()
            lost_s = time.monotonic() - began
            for _ in range(20):
                assert server.http.get("/livez").status_code == 200
                time.sleep(0.1)
            way.go_on()
            began = time.monotonic()
            assert eventually(server.is_ready)
            assert {each.result().status_code for each in waiting} == {200}
        with capsys.disabled():
            print(f"\nstalled: told after {lost_s:.2f} s, again after {time.monotonic() - began:.2f} s")


def test_a_part_that_hangs_is_told_too_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, goes_on = [], threading.Event()

    def check() -> dict[str, str]:
        asked.append(1)
        goes_on.wait(300)
        return {}

    async def ask_twice() -> tuple[list[dict[str, str]], float]:
        readiness, began = Readiness(check), time.monotonic()
        found = list(await asyncio.gather(readiness.shortcomings(), readiness.shortcomings()))
        took = time.monotonic() - began
        assert readiness._running is not None
        assert len(readiness._running._callbacks) == 1  # the check's own: nothing of those who asked is left there
        monkeypatch.setattr(ready, "LONGEST_S", 300.0)
        goes_on.set()
        return [*found, await readiness.shortcomings()], took

    found, took = asyncio.run(ask_twice())
    assert found == [{"checks": "a part did not answer within 1.5 s"}] * 2 + [{}]
    assert len(asked) == 1
    assert took >= LONGEST_S


def test_a_file_that_was_replaced_is_not_the_one_that_was_opened(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    file.touch()
    presence = Presence(str(file))
    presence.check()
    file.rename(tmp_path / "old")
    with pytest.raises(StoreError, match="is gone"):
        presence.check()
    file.touch()
    with pytest.raises(StoreError, match="not the file that was opened"):
        presence.check()
    (tmp_path / "old").rename(file)
    presence.check()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store


def test_a_store_that_can_be_written_says_nothing_and_is_not_changed(database_url: str) -> None:
    with Store(database_url) as store:
        for _ in range(3):
            store.check_writable()


def test_a_log_that_is_gone_is_told(store: Store, tmp_path: Path) -> None:
    store.check_writable()
    (tmp_path / "store.db-wal").unlink()
    with pytest.raises(StoreError, match=r"store\.db-wal is gone"):
        store.check_writable()
    assert not (tmp_path / "store.db-wal").exists(), "a second log beside that which others write would ruin the file"


@pytest.mark.parametrize("name", ["store.db", "store.db-wal"])
def test_a_file_that_is_read_only_is_told(store: Store, tmp_path: Path, name: str) -> None:
    (tmp_path / name).chmod(0o400)
    with pytest.raises(StoreError, match=f"{name} is read-only"):
        store.check_writable()
    (tmp_path / name).chmod(0o600)
    store.check_writable()


def test_a_lock_that_is_held_is_told_soon(store: Store, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="cannot be written: database is locked"):
            store.check_writable()  # while it is held: nobody lets it go before
        assert store.devices() == []
        other.execute("ROLLBACK")
    store.check_writable()


def test_a_disk_that_takes_no_more_is_told(store: Store, tmp_path: Path) -> None:
    size = (tmp_path / "store.db-wal").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(StoreError, match="cannot be written"):
            store.check_writable()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    store.check_writable()


def test_a_postgresql_that_takes_nothing_is_told() -> None:
    with new_postgresql() as url:
        Store(url).close()
        read_only = f"{url}&options=-c%20default_transaction_read_only%3Don"
        with Store(read_only) as store, pytest.raises(StoreError, match="read-only"):
            store.check_writable()


@pytest.mark.parametrize("name", [None, "", ":memory:", "file:memory?mode=memory"])
def test_nothing_is_said_of_a_database_that_is_no_file(name: str | None) -> None:
    Presence(name).check()
