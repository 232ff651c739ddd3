"""What convolutions take of the server's memory goes back when they are answered, and is bounded until then."""

from __future__ import annotations

import random
import select
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from conv_advisor.data.problem import ConvProblem
from tests.app.serving import CRASHING, FAST, REFUSED
from tests.processes import eventually
from tests.reliability.scale import count
from tests.reliability.servers import Server, head_of, running
from tests.reliability.watch import held_bytes, peak_bytes

MIB = 2**20
CONVOLUTIONS = count(60, 1000)
MOST_MORE_BYTES = 64 * MIB
SIZES = (64, 256, 512, 1024, 1536, 2048)
"""Edges of planes of one channel: 16 KiB to 16 MiB of x, and of y as much."""
_OCTETS = "application/octet-stream"


def plane(size: int, pad: int = 0) -> ConvProblem:
    """A pointwise convolution of one channel: the fewest operations for its bytes."""
    return ConvProblem(n=1, c=1, h=size, w=size, k=1, r=1, s=1, pad_h=pad, pad_w=pad)


def body_of(problem: ConvProblem, variant: str) -> bytes:
    """A request for its convolution."""
    x = np.ones(problem.x_shape, np.float32)
    weight = np.full(problem.weight_shape, 2, np.float32)
    return save(
        {"x": x, "weight": weight},
        {"pad_h": str(problem.pad_h), "pad_w": str(problem.pad_w), "variant": variant},
    )


def convolve(server: Server, problem: ConvProblem, variant: str) -> httpx.Response:
    return server.http.post("/v1/convolutions", content=body_of(problem, variant), headers={"content-type": _OCTETS})


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_thousand_convolutions_end_where_they_began(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(1)
    problems = [plane(size) for size in SIZES]
    with running(tmp_path, *problems) as server:
        for problem in problems:
            assert convolve(server, problem, FAST).status_code == 200
        before = held_bytes(server.process.pid)
        for number in range(CONVOLUTIONS):
            problem = rng.choice(problems)
            # One in ten fails, and what failed is not kept either.
            variant = REFUSED if number % 10 == 9 else FAST
            answer = convolve(server, problem, variant)
            assert answer.status_code == (409 if variant == REFUSED else 200)
            assert variant == REFUSED or float(load(answer.content)["y"].max()) == 2
        more = held_bytes(server.process.pid) - before
        with capsys.disabled():
            print(f"\n{CONVOLUTIONS} convolutions: {more / MIB:.0f} MiB more than after the first six")
        assert more < MOST_MORE_BYTES


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_convolutions_give_their_memory_back_without_a_collection_of_garbage(tmp_path: Path) -> None:
    problem = plane(2048)
    with running(tmp_path, problem) as server:
        convolve(server, problem, FAST)
        before = held_bytes(server.process.pid)
        for variant in (FAST, REFUSED, CRASHING) * 5:
            convolve(server, problem, variant)
        assert eventually(lambda: held_bytes(server.process.pid) - before < 48 * MIB)


def readable(clients: list[socket.socket]) -> list[socket.socket]:
    """Those whose answer has begun to arrive."""
    return select.select(clients, [], [], 0)[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_small_requests_for_large_answers_that_nobody_reads_are_bounded_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longest = 20 * MIB
    problem = plane(1, pad=1000)
    assert problem.y_bytes > 15 * MIB
    body = body_of(problem, FAST)
    head = head_of("POST", "/v1/convolutions", _OCTETS, Content_Length=len(body))
    with running(tmp_path, problem, max_body_bytes=longest) as server:
        before = peak_bytes(server.process.pid)

        def ask(_number: int) -> socket.socket:
            client = socket.create_connection(("127.0.0.1", server.port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.sendall(head + body)
            return client

        with ThreadPoolExecutor(16) as threads:
            clients = list(threads.map(ask, range(24)))
        assert eventually(lambda: len(readable(clients)) == len(clients))
        began = time.monotonic()
        assert server.http.get("/livez").status_code == 200
        took = time.monotonic() - began
        more = peak_bytes(server.process.pid) - before
        first = [client.recv(12) for client in clients]
        for client in clients:
            client.close()
        with capsys.disabled():
            print(f"\n24 answers of 15 MiB that nobody reads: {more / MIB:.0f} MiB more, /livez in {took:.2f} s")
        assert set(first) == {b"HTTP/1.1 200", b"HTTP/1.1 503"}
        assert more < 4 * longest + 3 * problem.y_bytes  # what is held, and one on its way from the worker
        assert eventually(lambda: convolve(server, problem, FAST).status_code == 200)
