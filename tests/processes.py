"""What tests ask about processes, how they wait, and the ports of what they start."""

from __future__ import annotations

import atexit
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_USUAL_S: Final = 0.1
"""For a million steps of a generator: chosen, as what a server's core takes at most."""


def eventually(is_so: Callable[[], object], within_s: float = 300.0) -> bool:
    """Whether it becomes so within that time."""
    until = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() >= until:
            return False
        time.sleep(0.01)
    return True


def free_port() -> int:
    """A port of this host that is kept for whoever is told it, as long as this process lives.

    It stays bound, without listening: servers ask to share such a port (``SO_REUSEADDR``), and nobody is given it by
    chance, not even while one server has ended and the next has not begun.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    atexit.register(kept.close)
    return int(kept.getsockname()[1])


def slowness() -> float:
    """How many times longer than usual this machine takes for the same work now; at least 1.

    A virtual machine may have a fraction of its speed for minutes. What is promised in seconds is of the usual speed.
    """
    began = time.perf_counter()
    sum(number * number for number in range(10**6))
    return max(1.0, (time.perf_counter() - began) / _USUAL_S)


def children(pid: int) -> list[int]:
    """The processes that any thread of this one has started and not collected.

    Each process is asked for its parent: the lists that threads have of their own go with a thread that ends.
    """
    others = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    return [other for other in others if parent_of(other) == pid]


def parent_of(pid: int) -> int | None:
    """The process that started this one; None where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def command_of(pid: int) -> bytes:
    """The command line of a process, NUL between its words; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_running(pid: int) -> bool:
    """Whether the process has not ended; one that nobody has collected yet has.

    One whose first thread has ended has not while others end: nobody can collect it before.
    """
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    threads = int(others[16])
    return state not in "ZX" or threads > 1


def read_pid(path: Path) -> int:
    """The process id that a task writes once it runs."""
    assert eventually(lambda: path.exists() and path.read_text())
    return int(path.read_text())
