"""Turns on a device: of the processes of a user that time launches on it, one does at a time."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from conv_advisor.kernels.builds import cache_folder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment] # a module elsewhere

log = logging.getLogger(__name__)

LONGEST_WAIT_S: Final = 10.0
"""A variant alone takes at most four turns in a task, whose least deadline is 60 s (`app.settings`)."""
_LOOK_EVERY_S: Final = 0.001
"""A process that is busy gives its turn back only while it prepares its next launch."""


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
    A file in the user's cache. Where that cannot be opened or locked, and on Windows, nothing is locked. Threads of one
    process do not exclude each other.

    Who takes turns is `CudaRunner`, when it makes operands and when it verifies and times launches: that of sweeps, of
    the workers of servers, and of benchmarks that use one. Nobody else does: not what prepares launches or asks the
    library for its picks, not the trials of the PyTorch backend, and no benchmark that times PyTorch's calls.

    A turn is waited for within the deadline of a task, so that a process that hangs in its own must not keep others for
    long: what has waited `LONGEST_WAIT_S` goes on without, and waits no more until it finds the turn free.
    """

    def __init__(self, device: str) -> None:
        self._device, self._depth = device, 0
        self._file: int | None = None
        self._patience_s = LONGEST_WAIT_S
        if fcntl is not None:
            path: Path = cache_folder("devices") / device.replace(":", "-")
            with suppress(OSError):  # such as that of another user who has the same cache
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> None:
        if self._file is not None and not self._depth:
            self._wait()
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._file is not None and not self._depth:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _wait(self) -> None:
        until_s = time.monotonic() + self._patience_s
        while not (is_mine := self._try()) and time.monotonic() < until_s:
            time.sleep(_LOOK_EVERY_S)
        if not is_mine and self._patience_s:
            log.warning("%s: no turn after %g s of waiting: going on without one", self._device, self._patience_s)
        self._patience_s = LONGEST_WAIT_S if is_mine else 0.0

    def _try(self) -> bool:
        """Take the turn, unless another process has it; true also where the file system has no locks."""
        if self._file is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:  # ENOLCK, say
                os.close(self._file)
                self._file = None
        return True
