"""A real server process, and its answers as they arrive, byte by byte."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from conv_advisor.app.settings import PREFIX
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.tree.file import TreeModel
from tests.app.serving import LARGE, SMALL, TIMES_MS, keep_tree, small_tree
from tests.processes import children, command_of, eventually, free_port
from tests.reliability.faulty import HASTE, PACE, PROBE, write_recording

_START_S = 300.0
_ANSWER_S = 300.0
_TREE: Final = small_tree(TIMES_MS)


@dataclass
class Server:
    """A running server, a client of it, and the files it lives on."""

    process: subprocess.Popen[bytes]
    port: int
    http: httpx.Client
    home: Path

    @property
    def recording(self) -> Path:
        """What its device replays."""
        return self.home / "recording.parquet"

    def workers(self) -> list[int]:
        """The processes that own the device, or stand by."""
        return [pid for pid in children(self.process.pid) if str(self.recording).encode() in command_of(pid)]

    def kill_workers(self) -> None:
        """What a driver or the kernel may do to them."""
        for pid in self.workers():
            os.kill(pid, signal.SIGKILL)

    def log(self) -> str:
        """What it has written."""
        return (self.home / "server.log").read_text()

    def is_ready(self) -> bool:
        """What it says of itself."""
        return self.http.get("/readyz").status_code == 200


@contextmanager
def running(
    home: Path,
    *problems: ConvProblem,
    pace_s: float = 0.0,
    haste: float = 1.0,
    probe_s: float = 60.0,
    model: TreeModel | None = _TREE,
    descriptors: int | None = None,
    **settings: object,
) -> Iterator[Server]:
    """A server on a device that replays two layers and these problems, once it is ready but for a tree not given.

    Parameters
    ----------
    pace_s : float
        How long one convolution takes.
    haste : float
        How many times sooner than usual it gives up: on slow clients, and on a database that others have locked.
    probe_s : float
        How long a probe of readiness waits for its checks, which a busy machine may not get done in a second.
    descriptors : int, optional
        How many files and sockets it may have open.
    """
    home.mkdir(parents=True, exist_ok=True)
    write_recording(home / "recording.parquet", SMALL, LARGE, *problems)
    if model:
        keep_tree(home, model)
    port = free_port()
    settings = {"start_timeout_s": _START_S, "log_level": "warning"} | settings
    given = {f"{PREFIX}{name.upper()}": str(value) for name, value in settings.items()}
    environment = (
        os.environ | {f"{PREFIX}HOME": str(home), PACE: str(pace_s), HASTE: str(haste), PROBE: str(probe_s)} | given
    )
    module = [sys.executable, "-m", "tests.reliability.faulty", str(home / "recording.parquet")]
    with (home / "server.log").open("ab") as log:
        limit = [] if descriptors is None else ["prlimit", f"--nofile={descriptors}"]
        command = [*limit, *module, "serve", "--port", str(port)]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=_ANSWER_S) as http:
        server = Server(process, port, http, home)
        try:
            missing = [] if model else ["model"]
            assert eventually(lambda: _missing(server) == missing, within_s=_START_S), server.log()
            yield server
        finally:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Answer:
    """A whole answer.

    Parameters
    ----------
    status : int
    headers : dict of str to str
        Their names in lower case.
    body : bytes
    """

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def is_last(self) -> bool:
        """Whether the server closes the connection after it."""
        return self.headers.get("connection", "").lower() == "close"


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read one answer whole.

    Raises
    ------
    asyncio.IncompleteReadError, ConnectionError
        It was not sent, or not to its end.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = b"".join([part async for part in _chunks(reader)])
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Answer(int(first.split()[1]), headers, body)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)


def head_of(method: str, path: str, kind: str = "", **headers: object) -> bytes:
    """The head of a request; the names of headers with _ for -."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"] + ([f"Content-Type: {kind}"] if kind else [])
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def request_of(method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """A whole request."""
    return head_of(method, path, kind, Content_Length=len(body)) + body if body else head_of(method, path)


def _missing(server: Server) -> list[str] | None:
    """The parts that it is not ready for want of; None where it does not answer yet."""
    assert server.process.poll() is None, server.log()
    try:
        said: dict[str, Any] = server.http.get("/readyz").json()
    except httpx.TransportError:
        return None
    return list(said.get("missing", ()))
