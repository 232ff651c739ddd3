"""Turns on a device: of the processes of a user that time launches on it, one does at a time."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from conv_advisor.kernels.builds import cache_folder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment] # a module elsewhere


class Exclusive:
    """A lock that processes share: with it held, no other process that takes it launches on the device.

    So several sweeps, or a sweep beside a server, get true times on one GPU, and compile while another has its turn.
    The lock of a process that dies is free.

    Parameters
    ----------
    device : str
        Names the device on this host, such as its PCI bus id.

    Notes
    -----
    A file in the user's cache. Where that cannot be written, and on Windows, nothing is locked. Threads of one process
    do not exclude each other. What waits for its turn too long is ended by the deadline of its task.
    """

    def __init__(self, device: str) -> None:
        self._depth = 0
        self._file: int | None = None
        if fcntl is not None:
            path: Path = cache_folder("devices") / device.replace(":", "-")
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> None:
        if self._file is not None and not self._depth:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._file is not None and not self._depth:
            fcntl.flock(self._file, fcntl.LOCK_UN)
