"""A process that ends loudly where one call takes too long or too much memory."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class TookTooLong(BaseException):
    """A call did not come back; not an Exception, so that nothing under test takes it for one of its own."""


def _on_alarm(_signal: int, _frame: FrameType | None) -> None:
    raise TookTooLong


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` in what takes more of the processor's time; of the main thread of a process alone.

    A machine that does much else is not taken for a call that never ends.
    """
    before = signal.signal(signal.SIGPROF, _on_alarm)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def limit_memory(more_bytes: int) -> None:
    """Let this process have so much more address space than it has: what asks for more gets a MemoryError."""
    limit = _status_bytes("VmSize", "self") + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def held_bytes(pid: int | str = "self") -> int:
    """The memory that a process holds now."""
    return _status_bytes("VmRSS", pid)


def peak_bytes(pid: int | str = "self") -> int:
    """The most memory that a process has held."""
    return _status_bytes("VmHWM", pid)


def _status_bytes(name: str, pid: int | str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024
