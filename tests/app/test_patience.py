"""Whom the server waits for, and who makes room."""

from __future__ import annotations

import asyncio
import gc
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvicorn

from conv_advisor.app.server import drain, patience
from conv_advisor.app.server.patience import MOST_CONNECTIONS, MOST_UNSENT_BYTES, Patience, most_connections
from conv_advisor.app.server.protocol import Protocol
from tests.processes import free_port


class Connection:
    """Notes how it was ended."""

    def __init__(self, ended: list[Connection]) -> None:
        self._ended = ended

    def give_up(self) -> None:
        self._ended.append(self)

    cut = give_up


def crowd(patience: Patience, count: int) -> tuple[list[Connection], list[Connection]]:
    ended: list[Connection] = []
    connections = [Connection(ended) for _ in range(count)]
    state: Any = patience
    state.connections.update(connections)
    return connections, ended


def test_the_one_that_was_waited_for_longest_makes_room_and_none_that_works() -> None:
    own = Patience(most_connections=2)
    (first, second, third), ended = crowd(own, 3)
    for connection in (first, second, third):
        own.wait(connection, 10)
    own.wait(first, 10)  # it has sent something
    own.go_on(second)  # it has sent all of its request
    assert own.make_room()
    assert ended == [third]
    assert own.make_room()
    assert ended == [third, first]
    assert not own.make_room()


def test_where_there_is_room_nobody_makes_any() -> None:
    own = Patience(most_connections=3)
    connections, ended = crowd(own, 3)
    own.wait(connections[0], 10)
    assert own.make_room()
    assert not ended


def test_those_that_take_too_long_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Patience(most_connections=9)
    (quick, slow, working), ended = crowd(own, 3)
    now = patience.time.monotonic()
    monkeypatch.setattr(patience.time, "monotonic", lambda: now)
    own.wait(slow, 1)
    own.wait(quick, 3)
    own.wait(working, 1)
    own.go_on(working)
    monkeypatch.setattr(patience.time, "monotonic", lambda: now + 2)
    own.give_up()
    assert ended == [slow]


def test_the_time_in_which_the_server_was_away_counts_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Patience(most_connections=9)
    (waited_for,), ended = crowd(own, 1)
    now = patience.time.monotonic()
    monkeypatch.setattr(patience.time, "monotonic", lambda: now)
    own.wait(waited_for, 5)
    for second in (0, 1, 2, 60, 61, 62):  # it was stopped for nearly a minute
        monkeypatch.setattr(patience.time, "monotonic", lambda second=second: now + second)
        own.give_up()
        assert not ended
    for second in (63, 64):
        monkeypatch.setattr(patience.time, "monotonic", lambda second=second: now + second)
        own.give_up()
    assert ended == [waited_for]


def test_answers_that_nobody_reads_are_bounded_together() -> None:
    own = Patience(most_connections=99)
    connections, ended = crowd(own, 20)
    for connection in connections:
        own.hold(connection, MOST_UNSENT_BYTES // 10)
    assert ended == connections[:10]
    own.release(connections[10])
    own.hold(connections[11], 1)
    own.hold(connections[0], MOST_UNSENT_BYTES // 10)
    assert ended == connections[:10]


@pytest.mark.parametrize(
    ("descriptors", "most"), [(512, 384), (2**20, MOST_CONNECTIONS), (resource.RLIM_INFINITY, MOST_CONNECTIONS)]
)
def test_a_share_of_the_descriptors_is_left(monkeypatch: pytest.MonkeyPatch, descriptors: int, most: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (descriptors, descriptors))
    assert most_connections() == most


def limited(limit: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python where so many files may be open, soft and hard."""
    command = ["prlimit", f"--nofile={limit}", sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_server_that_may_open_too_few_files_says_so_and_does_not_start(tmp_path: Path) -> None:
    done = limited("20:200", "-m", "conv_advisor", "serve", "--port", "0", "--home", str(tmp_path / "home"))
    assert done.returncode == 2
    assert "RLIMIT_NOFILE is 200; allowed: at least 256 open files" in done.stderr
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(("limit", "raised"), [("20:4096", "1024"), ("20:512", "512"), ("300:4096", "300")])
def test_a_limit_that_is_too_low_is_raised_where_it_may_be(limit: str, raised: str) -> None:
    ensure = "from conv_advisor.app.server.descriptors import ensure_descriptors; ensure_descriptors()"
    done = limited(limit, "-c", f"{ensure}; import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])")
    assert done.stdout.strip() == raised, done.stderr


def test_a_client_that_does_not_begin_tls_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "HANDSHAKE_S", 0.5)
    pem = tmp_path / "server.pem"
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(pem)
    port = free_port()
    config = uvicorn.Config(lambda: None, port=port, http=Protocol, ws="none", lifespan="off", ssl_certfile=pem)
    server = drain.Server(config, lambda: None, lambda: None)

    async def connect() -> bytes:
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            return await asyncio.wait_for(reader.read(), 300)
        finally:
            writer.close()
            server.should_exit = True
            await serving

    threshold = gc.get_threshold()
    try:
        assert asyncio.run(connect()) == b""
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
