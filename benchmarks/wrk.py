"""A server process on a core of its own, and wrk, which loads it from the others."""

from __future__ import annotations

import http.client
import math
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Final

CONNECTIONS: Final = 16
"""Enough that the server never waits for the next request."""
LIST_CONNECTIONS: Final = 2
HALF_LOAD_CONNECTIONS: Final = 64


@dataclass(frozen=True)
class Load:
    """What wrk saw.

    Parameters
    ----------
    per_s : float
        Requests a second.
    p99_ms : float
        Latency that 99 % of them did not exceed.
    failed : int
        Answers other than 2xx and 3xx, and errors of the socket.
    requests : int
    cpu_s : float
        Processor time that the server took for them.
    """

    per_s: float
    p99_ms: float
    failed: int
    requests: int
    cpu_s: float = math.nan

    @property
    def per_cpu_s(self) -> float:
        """Requests a second of the server's core, however many others it is shared with."""
        return self.requests / self.cpu_s if self.cpu_s else math.nan


@dataclass(frozen=True)
class Server:
    """A server process on loopback."""

    port: int
    pid: int

    @property
    def cpu_s(self) -> float:
        """Time on the processor so far, in user and system mode."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_wrk(
    server: Server,
    paths: Sequence[str],
    *,
    folder: Path,
    seconds: int,
    bodies: Sequence[str] = (),
    headers: Mapping[str, str] = MappingProxyType({}),
    half_of: float | None = None,
) -> Load:
    """Ask for the paths, or post the bodies to the first of them, one after the other and again from the start.

    Parameters
    ----------
    server : Server
    paths : sequence of str
    folder : Path
        For what wrk reads.
    seconds : int
    bodies : sequence of str
        JSON.
    headers : mapping of str to str
        Of each request, beside the host.
    half_of : float, optional
        Requests a second: each connection waits so long at random that the load is half of that.

    Raises
    ------
    RuntimeError
        A request failed.
    """
    number = next(_NUMBERS)
    lines, script = folder / f"{number}.txt", folder / f"{number}.lua"
    lines.write_text("\n".join(bodies or paths) + "\n")
    if bodies:
        request = f'wrk.format("POST", "{paths[0]}", {{["content-type"] = "application/json"}}, line)'
    else:
        request = 'wrk.format("GET", line)'
    connections, delay = LIST_CONNECTIONS if bodies else CONNECTIONS, ""
    if half_of is not None:
        connections = HALF_LOAD_CONNECTIONS
        mean_ms = connections / (half_of / 2) * 1e3
        delay = f"function delay() return math.floor(math.random() * {2 * mean_ms:.6f} + 0.5) end\n"
    header_lines = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items())
    script.write_text(_SCRIPT.format(headers=header_lines, lines=lines, asked=request) + delay)
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "--latency", "-s", str(script)]
    command += [f"http://127.0.0.1:{server.port}"]
    cores = os.sched_getaffinity(0)
    before = server.cpu_s
    printed = subprocess.run(_on(cores - {min(cores)} or cores, command), check=True, capture_output=True, text=True)  # noqa: S603 - our own words
    load = replace(read_wrk(printed.stdout), cpu_s=server.cpu_s - before)
    if load.failed:
        raise RuntimeError(f"{load.failed} requests such as {paths[0]} failed")
    return load


_NUMBERS: Final = count(1)

_SCRIPT: Final = """
wrk.headers["Host"] = "127.0.0.1"
{headers}
local asked = {{}}
for line in io.lines("{lines}") do asked[#asked + 1] = {asked} end
local place = 0
function request()
  place = place % #asked + 1
  return asked[place]
end
"""


def read_wrk(printed: str) -> Load:
    """The figures that wrk prints.

    Raises
    ------
    ValueError
        It printed something else.
    """
    per_s = re.search(r"Requests/sec:\s+([\d.]+)", printed)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s|m)\b", printed)
    requests = re.search(r"(\d+) requests in", printed)
    if per_s is None or p99 is None or requests is None:
        raise ValueError(f"not what wrk prints: {printed[:500]}")
    scale = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}[p99[2]]
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", printed)
    broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", printed)
    failed = sum(int(digits) for match in (refused, broken) if match for digits in match.groups())
    return Load(float(per_s[1]), float(p99[1]) * scale, failed, int(requests[1]))


@contextmanager
def served(name: str, home: Path, **variables: str) -> Iterator[Server]:
    """A server process on a core of its own, ready; `variables` join its environment."""
    ours = {"CONV_ADVISOR_HOME": str(home), "CONV_ADVISOR_DEVICE": "cpu", "CONV_ADVISOR_LOG_LEVEL": "warning"}
    with kept_port() as port:
        command = [sys.executable, "-m", "benchmarks.serving_apps", name, str(port)]
        pinned = _on({min(os.sched_getaffinity(0))}, command)
        process = subprocess.Popen(pinned, env=os.environ | ours | variables)  # noqa: S603 - our own words
        try:
            _wait_until_ready(port, process)
            yield Server(port, process.pid)
        finally:
            process.terminate()
            process.wait()


@contextmanager
def kept_port() -> Iterator[int]:
    """A free port that no other process is given within the block.

    It stays bound, without listening: servers ask to share such a port (``SO_REUSEADDR``).
    """
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        yield int(sock.getsockname()[1])


def _wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers that it is ready, so that nothing of its start is on its core any more."""
    until = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < until:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.2)
    raise RuntimeError("the server does not start")


def _on(cores: set[int], command: list[str]) -> list[str]:
    """The command, kept to these cores."""
    return ["taskset", "-c", ",".join(map(str, sorted(cores))), *command]
