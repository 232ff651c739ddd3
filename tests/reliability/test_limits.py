"""Bodies ten times over the limit from 64 clients at once are refused, and the server holds no more than it may."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.reliability.scale import HASTE
from tests.reliability.servers import Answer, head_of, read_answer, running
from tests.reliability.watch import peak_bytes

pytestmark = pytest.mark.slow

LIMIT_BYTES = 4 * 2**20
BODY_BYTES = 10 * LIMIT_BYTES
CLIENTS = 64
_PART = bytes(64 * 1024)
_OCTETS = "application/octet-stream"
_PATHS = ("/v1/convolutions", "/v2/models/conv/infer")
_BUFFERS_BYTES = CLIENTS * 2 * 2**20
"""What a server may take for its own and the sockets' buffers: 2 MiB a client."""
MOST_BYTES = 4 * LIMIT_BYTES + _BUFFERS_BYTES
"""Four bodies may be held at once; 64 bodies would take 2.5 GiB."""

Send = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def send_announced(writer: asyncio.StreamWriter, path: str) -> None:
    writer.write(head_of("POST", path, _OCTETS, Content_Length=BODY_BYTES))
    for _ in range(BODY_BYTES // len(_PART)):
        writer.write(_PART)
        await writer.drain()


async def send_chunked(writer: asyncio.StreamWriter, path: str, pause_s: float = 0.0, part: bytes = _PART) -> None:
    writer.write(head_of("POST", path, _OCTETS, Transfer_Encoding="chunked"))
    for _ in range(BODY_BYTES // len(part)):
        writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        await writer.drain()
        await asyncio.sleep(pause_s)


async def send_slowly(writer: asyncio.StreamWriter, path: str) -> None:
    await send_chunked(writer, path, 0.02, bytes(256 * 1024))


async def ask(port: int, send: Callable[[asyncio.StreamWriter, str], Awaitable[None]], path: str) -> Answer:
    """Send for as long as the server takes it, and hear what it says."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sending = asyncio.create_task(send(writer, path))
    try:
        return await asyncio.wait_for(read_answer(reader), 300)
    finally:
        sending.cancel()
        await asyncio.wait([sending])
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def until_refused(
    port: int, send: Callable[[asyncio.StreamWriter, str], Awaitable[None]], path: str
) -> list[int]:
    """Ask, again where the server is busy; the statuses."""
    statuses: list[int] = []
    while not statuses or statuses[-1] == 503:
        answer = await ask(port, send, path)
        statuses.append(answer.status)
        assert answer.headers["content-type"] == "application/problem+json"
        if answer.status == 503:
            await asyncio.sleep(float(answer.headers["retry-after"]))
    return statuses


@pytest.mark.timeout(900)
@pytest.mark.parametrize("send", [send_announced, send_chunked, send_slowly])
def test_bodies_ten_times_too_long_are_refused_in_bounded_memory(
    tmp_path: Path,
    send: Callable[[asyncio.StreamWriter, str], Awaitable[None]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running(tmp_path, max_body_bytes=LIMIT_BYTES) as server:
        asyncio.run(ask(server.port, send, _PATHS[0]))
        before, began = peak_bytes(server.process.pid), time.monotonic()

        async def all_at_once() -> list[list[int]]:
            return await asyncio.gather(*(until_refused(server.port, send, _PATHS[i % 2]) for i in range(CLIENTS)))

        found = Counter(status for statuses in asyncio.run(all_at_once()) for status in statuses)
        more = peak_bytes(server.process.pid) - before
        with capsys.disabled():
            took = time.monotonic() - began
            print(f"\n{send.__name__}: {dict(found)}, {more / 2**20:.0f} MiB more, {took:.1f} s")
        assert found[413] == CLIENTS
        assert set(found) <= {413, 503}
        assert send is not send_announced or set(found) == {413}
        assert more < MOST_BYTES
        assert server.http.get("/livez").status_code == 200


@pytest.mark.timeout(900)
def test_who_announces_much_and_sends_nothing_keeps_nobody_out(tmp_path: Path) -> None:
    with running(tmp_path, haste=HASTE / 2, max_body_bytes=LIMIT_BYTES) as server:

        async def idle() -> tuple[int, list[Answer]]:
            head = head_of("POST", _PATHS[0], _OCTETS, Content_Length=LIMIT_BYTES) + b"12345678"
            idlers = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(CLIENTS)]
            for _, writer in idlers:
                writer.write(head)
            await asyncio.sleep(1)
            asked = {"layer": "8-2-3-6-4", "variant": "advised"}
            ran = await asyncio.to_thread(server.http.post, "/v1/convolutions", json=asked)
            answers = [await asyncio.wait_for(read_answer(reader), 300) for reader, _ in idlers]
            for _, writer in idlers:
                writer.close()
            return ran.status_code, answers

        status, answers = asyncio.run(idle())
        assert status == 200
        assert {(answer.status, answer.is_last) for answer in answers} == {(408, True)}
