"""Clients that send and never read, send slowly or without end, or only hold connections: nobody else waits."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx
import pytest

from conv_advisor.app.server.drain import LAST_REQUESTS_S
from conv_advisor.app.server.protocol import HEAD_S, MOST_HEAD_BYTES, READ_S
from conv_advisor.app.wire.body import LEAST_BYTES_PER_S, LONGEST_PAUSE_S
from tests.app.serving import LAYER
from tests.processes import eventually, slowness_meanwhile
from tests.reliability.faulty import FAST, HANGING
from tests.reliability.scale import HASTE, count
from tests.reliability.servers import Server, head_of, request_of, running
from tests.reliability.watch import held_bytes, peak_bytes

MIB = 2**20
DESCRIPTORS = 512
HELD = 600
CLIENTS = 12
FLOOD_S = count(2, 5)
GET: Final = request_of("GET", "/livez")
_OCTETS = "application/octet-stream"
_LAYERS = json.dumps({"layers": [LAYER] * 3}).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with as few descriptors as a shell may give it."""
    with running(tmp_path_factory.mktemp("home"), descriptors=DESCRIPTORS) as server:
        yield server


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that gives up on its clients sooner."""
    with running(tmp_path_factory.mktemp("hasty"), descriptors=DESCRIPTORS, haste=HASTE) as server:
        yield server


def connect(server: Server, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=250)
    client.sendall(sent)
    return client


def answers(sent: bytes, server: Server, cuts: tuple[int, ...] = ()) -> list[tuple[int, bytes]]:
    """Status and body of every answer to what is sent in these parts, until the server closes."""
    with connect(server) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start, end in zip((0, *cuts), (*cuts, len(sent)), strict=True):
            client.sendall(sent[start:end])
            if cuts:
                time.sleep(0.002)
        return read_answers(client)


def read_answers(client: socket.socket) -> list[tuple[int, bytes]]:
    found = []
    with client.makefile("rb") as file:
        while line := file.readline():
            headers = {}
            while header := file.readline().strip():
                name, _, value = header.partition(b":")
                headers[name.lower()] = value.strip()
            found.append((int(line.split()[1]), file.read(int(headers[b"content-length"]))))
    return found


def is_closed(client: socket.socket) -> bool:
    """Whether what is sent on it is no longer taken, not even to be discarded."""
    try:
        client.sendall(b" ")
    except OSError:
        return True
    return False


def seconds_to_live(server: Server) -> float:
    """How long somebody else, who has just come, waits for an answer."""
    began = time.monotonic()
    assert httpx.get(f"http://127.0.0.1:{server.port}/livez", timeout=300).status_code == 200
    return time.monotonic() - began


@contextmanager
def flooding(server: Server, part: bytes, head: bytes = b"") -> Iterator[None]:
    """Clients that send the same again and again for as long as they are let, and never read."""
    is_over = threading.Event()

    def send() -> None:
        with connect(server, head) as client, suppress(OSError):
            client.settimeout(0.2)
            while not is_over.is_set():
                with suppress(TimeoutError):
                    client.send(part)

    threads = [threading.Thread(target=send) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", ["/livez", "/v1/variants", "/nowhere"])
def test_requests_that_come_while_an_answer_waits_are_not_read(
    server: Server, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before, slowest = held_bytes(server.process.pid), 0.0
    with slowness_meanwhile() as slowed, flooding(server, request_of("GET", path) * 1000):
        until = time.monotonic() + FLOOD_S
        while time.monotonic() < until:
            slowest = max(slowest, seconds_to_live(server))
        more = held_bytes(server.process.pid) - before
    with capsys.disabled():
        print(f"\n{CLIENTS} clients that pipeline {path}: {more / MIB:.0f} MiB more, /livez in {slowest:.2f} s at most")
    assert more < 32 * MIB
    assert slowest < 2 * slowed.most


def test_requests_that_come_together_are_answered_one_after_the_other(server: Server) -> None:
    paths = [f"/v1/nothing-{number}" for number in range(500)]
    sent = b"".join(request_of("GET", path) for path in paths)
    found = answers(sent + head_of("GET", "/livez", Connection="close"), server)
    assert [status for status, _ in found] == [404] * len(paths) + [200]


def test_wherever_requests_are_cut_they_are_the_same_requests(server: Server) -> None:
    chunked = head_of("POST", "/v1/advice", "application/json", Transfer_Encoding="chunked")
    first, second = _LAYERS[:7], _LAYERS[7:]
    chunked += b"%x;of=1\r\n%b\r\n%x\r\n%b\r\n0\r\nTrailer: x\r\n\r\n" % (len(first), first, len(second), second)
    refused = head_of("POST", "/v1/advice", _OCTETS, Content_Length=8) + b"\r\n\r\n\r\n\r\n"
    sent = b"".join((b"\r\n", GET, chunked, request_of("POST", "/v1/advice", _LAYERS), refused, chunked, GET, GET))
    sent += head_of("GET", "/livez", Connection="close")
    whole = answers(sent, server)
    assert [status for status, _ in whole] == [200, 200, 200, 415, 200, 200, 200, 200]
    assert len(json.loads(whole[1][1])["advice"]) == 3
    rng = random.Random(1)
    for _ in range(20):
        cuts = tuple(sorted(rng.sample(range(1, len(sent)), rng.randrange(1, 40))))
        assert answers(sent, server, cuts) == whole, cuts


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: ", id="a header"),
        pytest.param(b"GET /", id="a path"),
        pytest.param(b"", id="a method"),
        pytest.param(
            head_of("POST", "/v1/advice", "application/json", Transfer_Encoding="chunked") + b"1;", id="a chunk's size"
        ),
        pytest.param(
            head_of("POST", "/v1/advice", "application/json", Transfer_Encoding="chunked") + b"0\r\nX-Long: ",
            id="a trailer",
        ),
    ],
)
def test_what_has_no_end_is_refused(server: Server, sent: bytes) -> None:
    before = peak_bytes(server.process.pid)
    with connect(server, sent) as client:
        with suppress(OSError):
            for _ in range(64 * 16):
                client.sendall(b"A" * 65536)
        with suppress(ConnectionError):
            (status, body), *more = read_answers(client)
            assert not more
            assert status in ((400, 431) if not sent else (431,))
            assert json.loads(body)["status"] == status
    assert peak_bytes(server.process.pid) - before < 4 * MIB
    with slowness_meanwhile() as slowed:
        took = seconds_to_live(server)
    assert took < slowed.most


def test_a_head_may_be_long_but_no_longer_than_is_said(server: Server) -> None:
    head = head_of("GET", "/livez", Connection="close", X_Long="A")
    fits = head_of("GET", "/livez", Connection="close", X_Long="A" * (MOST_HEAD_BYTES - len(head) + 1))
    assert len(fits) == MOST_HEAD_BYTES
    assert [status for status, _ in answers(fits, server)] == [200]
    many = b"".join(b"X-%d: a\r\n" % number for number in range(MOST_HEAD_BYTES // 8))
    for too_long in (fits.replace(b"X-Long: ", b"X-Long: A"), GET[:-2] + many + b"\r\n"):
        ((status, body),) = answers(too_long, server)
        assert status == 431
        assert json.loads(body)["detail"] == f"the head of the request is longer than {MOST_HEAD_BYTES} bytes"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /livez\r\n",
        b"GET /livez HTTP/1.1\n\n",
        b"\x16\x03\x01\x02\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET",
    ],
)
def test_what_is_no_http_is_refused_as_everything_is(server: Server, sent: bytes) -> None:
    with connect(server, sent * (HELD if sent != b"GET" else 1) + b"\r\n\r\n") as client:
        head, _, body = b"".join(iter(lambda: client.recv(65536), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    lines = head.lower().split(b"\r\n")
    expected = b"content-type: application/problem+json", b"x-content-type-options: nosniff", b"connection: close"
    assert set(expected) <= set(lines)
    assert json.loads(body)["type"] == "/problems/bad-request"


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
def test_the_host_that_the_target_names_is_the_one_that_counts(server: Server, method: str) -> None:
    """A proxy's form of a request: who heeds its target and who heeds its header must not see two requests."""
    named = {
        ("http://localhost/livez", "localhost"): 200,
        (f"http://127.0.0.1:{server.port}/livez", "evil.example"): 200,
        ("http://evil.example/livez", "localhost"): 421,
        ("HTTPS://evil.example:443/livez", "localhost"): 421,
        ("http://localhost@evil.example/livez", "localhost"): 421,
        ("http://evil.example", "localhost"): 400,
    }
    for (target, host), status in named.items():
        sent = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        ((answered, _),) = answers(sent, server)
        assert answered == (405 if method != "GET" and status == 200 else status), (target, host)


@pytest.mark.parametrize(("path", "is_told"), [("/v2/models/conv/infer", True), ("/v2", True), ("/v1/advice", False)])
@pytest.mark.parametrize(
    ("rest", "status"),
    [
        (b"X-Long: %b\r\n\r\n" % (b"A" * MOST_HEAD_BYTES), 431),
        (b"no header\r\n\r\n", 400),
        (b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\nno size\r\n", 400),
    ],
    ids=["a long head", "no header", "two lengths", "no chunk"],
)
def test_what_no_request_is_has_the_protocols_error_too(
    server: Server, path: str, rest: bytes, status: int, *, is_told: bool
) -> None:
    ((answered, body),) = answers(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + rest, server)
    said = json.loads(body)
    assert (answered, said["status"]) == (status, status)
    assert said.get("error") == (said["detail"] if is_told else None)


@pytest.mark.parametrize(
    "headers", [{"Connection": "close"}, {"Connection": "Upgrade", "Upgrade": "h2c"}], ids=["close", "upgrade"]
)
def test_nothing_is_read_after_the_last_request(server: Server, headers: dict[str, str]) -> None:
    """Though it arrives after the answer: closing the socket would reset the connection, and lose the answer."""
    head = head_of("GET", "/livez", **headers)
    assert [status for status, _ in answers(head + GET * 2, server)] == [200]
    for pause_s in (0.0, 0.01, 0.1):
        with connect(server, head) as client:
            time.sleep(pause_s)
            client.sendall(GET)
            time.sleep(pause_s)
            client.sendall(GET)
            assert [status for status, _ in read_answers(client)] == [200]


def test_a_client_that_keeps_an_answered_connection_keeps_neither_socket_nor_server(tmp_path: Path) -> None:
    asked, many = json.dumps({"layers": [LAYER]}).encode(), json.dumps({"layers": [LAYER] * 1000}).encode()
    last = {"Connection": "close"}
    with running(tmp_path) as server, ExitStack() as clients:
        for body in (asked, many):
            head = head_of("POST", "/v1/advice", "application/json", Content_Length=len(body), **last)
            client = clients.enter_context(connect(server, head + body))
            time.sleep(0.5)  # more than the socket holds is sent while it is read
            assert [status for status, _ in read_answers(client)] == [200]
            assert eventually(lambda client=client: is_closed(client), 10)
        head = head_of("POST", "/v1/advice", "application/json", Content_Length=len(asked))
        late = clients.enter_context(connect(server, head))
        assert seconds_to_live(server) < 10
        server.process.terminate()
        time.sleep(LAST_REQUESTS_S + 0.5)
        late.sendall(asked)
        assert [status for status, _ in read_answers(late)] == [200]
        began = time.monotonic()
        server.process.wait(30)
        assert time.monotonic() - began < 4
    assert "given up" not in server.log()


def test_a_body_is_read_though_its_client_would_change_to_another_protocol(server: Server) -> None:
    """As Java's own client sends its first request; wherever it is cut."""
    upgrade = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIAAAAB"}
    head = ("POST", "/v1/advice", "application/json")
    whole = head_of(*head, Content_Length=len(_LAYERS), **upgrade) + _LAYERS
    chunked = head_of(*head, Transfer_Encoding="chunked", **upgrade)
    chunked += b"7\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (_LAYERS[:7], len(_LAYERS) - 7, _LAYERS[7:])
    rng = random.Random(2)
    for sent in (whole, chunked):
        for number in (0, 1, 1, 4, 30):
            cuts = tuple(sorted(rng.sample(range(1, len(sent)), number)))
            ((status, body),) = answers(sent + GET, server, (*cuts, len(sent)))
            assert status == 200, cuts
            assert len(json.loads(body)["advice"]) == 3
    empty = head_of(*head, Content_Length=0, **upgrade)
    assert [status for status, _ in answers(empty + GET, server)] == [422]
    ((status, body),) = answers(chunked.replace(b"\r\n7\r\n", b"\r\nno size\r\n"), server)
    assert (status, "chunk" in json.loads(body)["detail"]) == (400, True)


def test_who_sends_no_more_and_still_reads_is_answered(server: Server) -> None:
    """As `nc` does with a request from a file; the answers take threads, so that the end is there before them."""
    page = head_of("GET", "/?layer=8-2-3-6-4")
    for sent, requests in (
        (page, 1),
        (request_of("POST", "/v1/advice", _LAYERS), 1),
        (page + GET + request_of("POST", "/v1/advice", _LAYERS) + page, 4),
    ):
        with connect(server, sent) as client:
            client.shutdown(socket.SHUT_WR)
            assert [status for status, _ in read_answers(client)] == [200] * requests


def test_who_ends_within_a_request_gets_no_answer_and_holds_nothing(server: Server) -> None:
    for sent in (GET[:-2], head_of("POST", "/v1/advice", "application/json", Content_Length=9) + b"{"):
        with connect(server, sent) as client:
            client.shutdown(socket.SHUT_WR)
            client.settimeout(250)
            assert client.recv(1) == b""


def test_the_convolution_of_who_sends_no_more_is_stopped(server: Server) -> None:
    asked = {"layer": "8-2-3-6-4", "variant": HANGING}
    with connect(server, request_of("POST", "/v1/convolutions", json.dumps(asked).encode())) as client:
        client.shutdown(socket.SHUT_WR)
        client.settimeout(250)
        assert client.recv(65536).startswith(b"HTTP/1.1 499 ")
    assert server.http.post("/v1/convolutions", json=asked | {"variant": FAST}).status_code == 200


def held(server: Server, stack: ExitStack, sent: bytes) -> list[socket.socket]:
    return [stack.enter_context(connect(server, sent)) for _ in range(HELD)]


def are_closed(clients: list[socket.socket]) -> bool:
    """Whether the server has ended them all."""
    for client in clients:
        client.settimeout(0)
        try:
            while client.recv(65536):
                pass
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
    return True


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET /livez HTTP/1.1\r\nHost: loc", id="half a head"),
        pytest.param(GET, id="a whole request"),
        pytest.param(head_of("POST", "/v1/advice", "application/json", Content_Length=80) + b"{", id="half a body"),
        pytest.param(head_of("GET", "/livez", Content_Length=80) + b"{", id="half a body for nobody"),
    ],
)
def test_connections_that_are_held_keep_nobody_out_and_are_ended(hasty: Server, sent: bytes) -> None:
    with slowness_meanwhile() as slowed, ExitStack() as stack:
        began = time.monotonic()
        clients = held(hasty, stack, sent)
        slowest = max(seconds_to_live(hasty) for _ in range(20))
        asked = time.monotonic()
        assert eventually(lambda: are_closed(clients), within_s=200)
        closed = time.monotonic()
        assert eventually(hasty.is_ready)
    assert slowest < 2 * slowed.most
    assert closed - asked < (2 * HEAD_S / HASTE + 20) * slowed.most
    assert closed - began < (3 * HEAD_S / HASTE + 20) * slowed.most


def test_a_client_that_works_keeps_its_connection_among_many_that_do_not(server: Server) -> None:
    with ExitStack() as stack, httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        connection = client.get("/livez").extensions["network_stream"].get_extra_info("client_addr")
        for _ in range(HELD // 50):
            for _ in range(50):
                stack.enter_context(connect(server))
            answer = client.get("/livez")
            assert answer.extensions["network_stream"].get_extra_info("client_addr") == connection


@pytest.mark.slow
def test_a_head_that_comes_byte_by_byte_is_ended_in_time(hasty: Server) -> None:
    began = time.monotonic()
    with slowness_meanwhile() as slowed, connect(hasty, b"GET /livez HTTP/1.1\r\n") as client:
        client.settimeout(0.5)
        while True:
            try:
                answer = client.recv(65536)
                break
            except TimeoutError:
                client.sendall(b"A: b\r\n")
        took = time.monotonic() - began
        assert answer.startswith(b"HTTP/1.1 408 ")
    assert HEAD_S / HASTE - 1 < took < (HEAD_S / HASTE + 10) * slowed.most


@pytest.mark.slow
def test_a_body_that_comes_byte_by_byte_is_ended_in_time(hasty: Server) -> None:
    head = head_of("POST", "/v1/convolutions", _OCTETS, Content_Length=MIB)
    began = time.monotonic()
    with slowness_meanwhile() as slowed, connect(hasty, head) as client:
        client.settimeout(0.5)
        while True:
            try:
                answer = client.recv(65536)
                break
            except TimeoutError:
                client.sendall(b"A")
        client.settimeout(250)
        answer += b"".join(iter(lambda: client.recv(65536), b""))
        took = time.monotonic() - began
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert f"{LEAST_BYTES_PER_S} bytes a second".encode() in answer
    assert took < (LONGEST_PAUSE_S / HASTE + 10) * slowed.most


def is_gone(client: socket.socket) -> bool:
    """Whether the server has ended a connection that nobody reads from."""
    try:
        client.send(b"\r\n")
    except ConnectionError:
        return True
    except BlockingIOError:
        pass
    return False


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_client_that_does_not_read_is_given_up(hasty: Server) -> None:
    page = request_of("GET", "/openapi.json") * 200
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    began = time.monotonic()
    client.connect(("127.0.0.1", hasty.port))
    with slowness_meanwhile() as slowed, client:
        client.setblocking(False)
        with suppress(BlockingIOError):
            client.send(page)
        assert eventually(lambda: is_gone(client), within_s=200)
        took = time.monotonic() - began
    assert READ_S / HASTE - 2 < took < (READ_S / HASTE + 45) * slowed.most
