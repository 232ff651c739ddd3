"""SIGTERM while requests come in: every request that a connection was accepted for gets its whole answer."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from conv_advisor.app.observe.templates import Templates
from conv_advisor.app.server.border import Border
from tests.app.serving import LAYER
from tests.fakes import hangs
from tests.processes import read_pid, slowness_meanwhile
from tests.reliability.faulty import FAST, HANGING
from tests.reliability.scale import count
from tests.reliability.servers import Server, read_answer, request_of, running

pytestmark = pytest.mark.slow

ROUNDS = count(2, 50)
CLIENTS = 12
_CONVOLUTION = json.dumps({"layer": LAYER, "variant": FAST}).encode()
_LAYERS = json.dumps({"layers": [LAYER] * 200}).encode()
REQUESTS = (
    request_of("GET", f"/v1/advice?layer={LAYER}"),
    request_of("GET", "/v1/variants"),
    request_of("POST", "/v1/advice", _LAYERS),
    request_of("POST", "/v1/convolutions", _CONVOLUTION),
)


async def client(port: int, seed: int, found: Counter[str]) -> None:
    """Ask, on a connection that is kept or on one for each request, until no connection is accepted any more."""
    rng = random.Random(seed)
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    while True:
        if connection is not None and connection[0].at_eof():  # closed while it was idle, as after any pause
            connection = None
        if connection is None:
            try:
                connection = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionError:
                found["refused"] += 1
                return
        reader, writer = connection
        asked = rng.choice(REQUESTS)
        try:
            # In two parts, as a slow network brings them.
            cut = rng.randrange(len(asked)) if rng.random() < 0.2 else 0
            writer.write(asked[:cut])
            await asyncio.sleep(0.02 * bool(cut))
            writer.write(asked[cut:])
            answer = await asyncio.wait_for(read_answer(reader), 300)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            found[f"dropped: {error!r}"] += 1
            connection = None
            continue
        found[f"answered {answer.status}"] += 1
        if answer.is_last or seed % 2:
            writer.close()
            connection = None
        await asyncio.sleep(rng.random() * 0.02)


async def load(server: Server) -> Counter[str]:
    """Ask from all clients, and end the server meanwhile."""
    found: Counter[str] = Counter()
    clients = [asyncio.create_task(client(server.port, seed, found)) for seed in range(CLIENTS)]
    while found["answered 200"] <= 2 * CLIENTS and not any(each.done() for each in clients):
        await asyncio.sleep(0.01)
    await asyncio.sleep(random.random())
    server.process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(asyncio.gather(*clients), 300)
    return found


@pytest.mark.timeout(7200)
def test_no_request_is_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found: Counter[str] = Counter()
    began = time.monotonic()
    for each in range(ROUNDS):
        with running(tmp_path / str(each), pace_s=0.005) as server:
            found += asyncio.run(load(server))
            server.process.wait(timeout=300)
            assert server.process.returncode in (0, -signal.SIGTERM)
    with capsys.disabled():
        print(f"\n{ROUNDS} times SIGTERM in {time.monotonic() - began:.0f} s: {dict(found)}")
    assert [said for said in found if said.startswith("dropped")] == []
    assert found["refused"] == ROUNDS * CLIENTS
    assert found["answered 200"] > ROUNDS * CLIENTS
    assert {said for said in found if said.startswith("answered")} <= {"answered 200", "answered 503"}


def test_what_does_not_end_in_time_is_told_so(tmp_path: Path) -> None:
    with running(tmp_path) as server:

        async def ask_and_end() -> tuple[int, dict[str, str], str, float]:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            body = json.dumps({"layer": LAYER, "variant": HANGING}).encode()
            writer.write(request_of("POST", "/v1/convolutions", body))
            await asyncio.to_thread(read_pid, hangs(server.recording))
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            answer = await asyncio.wait_for(read_answer(reader), 300)
            writer.close()
            return answer.status, answer.headers, json.loads(answer.body)["detail"], time.monotonic() - began

        with slowness_meanwhile() as slowed:
            status, headers, detail, took = asyncio.run(ask_and_end())
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert detail == "the service is being stopped"
        assert 4 < took < 30 * slowed.most
        server.process.wait(timeout=300)


def test_work_that_only_the_servers_end_ends_is_told_so() -> None:
    """What computes on a thread, such as a plan, is nobody's to stop: uvicorn cancels who waits for it."""
    sent: list[Message] = []

    async def never(_scope: Scope, _receive: Receive, _send: Send) -> None:
        await asyncio.sleep(3600)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async def ask_and_cancel() -> None:
        scope = {"type": "http", "method": "GET", "path": "/v1/plans", "query_string": b"", "headers": []}
        asked = asyncio.create_task(Border(never, 2**20, Templates(FastAPI()))(scope, receive, send))
        await asyncio.sleep(0)
        asked.cancel()
        await asked

    asyncio.run(ask_and_cancel())
    start, body = sent
    headers = dict(start["headers"])
    assert (start["status"], headers[b"retry-after"], headers[b"connection"]) == (503, b"1", b"close")
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert json.loads(body["body"])["detail"] == "the service is being stopped"
