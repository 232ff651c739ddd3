"""The two ways to spread a sweep over the devices of this host: children of this process, and a Dask cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from conv_advisor.app.workers.any_engine import AnyEngine
from conv_advisor.app.workers.cluster.engine import ClusterEngine
from conv_advisor.app.workers.cluster.link import Link
from conv_advisor.app.workers.engine import Engine

START_TIMEOUT_S: Final = 120.0
_COMMAND: Final = (sys.executable, "-c", "from conv_advisor.app.cli import main; main()")


class Local:
    """The devices of this host, each with a child of this process."""

    name = "local"

    def __init__(self, devices: Sequence[str], stack: ExitStack) -> None:
        self._engines = [
            stack.enter_context(Engine(device, start_timeout_s=START_TIMEOUT_S, has_spare=False)) for device in devices
        ]

    def engines(self, count: int) -> Sequence[AnyEngine]:
        """The engines of the first so many devices."""
        return self._engines[:count]


class Dask:
    """A scheduler and one worker a device, all of them processes of their own."""

    name = "dask"

    def __init__(self, devices: Sequence[str], stack: ExitStack) -> None:
        self._stack = stack
        scheduler = stack.enter_context(_process("scheduler", "--port", "0"))
        self._link = Link(_first_line(scheduler))
        workers = [
            stack.enter_context(_process("worker", "--scheduler", self._link.address, "--device", device))
            for device in devices
        ]
        for process in workers:
            _first_line(process)
        self._workers = workers
        self._engine: ClusterEngine | None = None

    def engines(self, count: int) -> Sequence[AnyEngine]:
        """The cluster once it has so many workers: the others are ended, so ask for fewer every time."""
        for process in self._workers[count:]:
            process.send_signal(signal.SIGTERM)
            process.wait(START_TIMEOUT_S)
        self._workers = self._workers[:count]
        if self._engine:
            self._engine.close()
        self._engine = self._stack.enter_context(ClusterEngine(self._link, start_timeout_s=START_TIMEOUT_S))
        if not self._engine.wait_ready(START_TIMEOUT_S, count):
            raise SystemExit(f"{self._engine.n_workers} of {count} workers have joined {self._link.address}")
        return [self._engine]


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([*_COMMAND, *arguments], stdout=subprocess.PIPE, text=True, env=_environment())  # noqa: S603 - our own
    try:
        yield process
    finally:
        process.terminate()
        process.wait(START_TIMEOUT_S)


def _environment() -> dict[str, str]:
    """This process's environment, without settings of another cluster."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CONV_ADVISOR_SCHEDULER")}


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout  # noqa: S101 - it is a pipe
    line = process.stdout.readline().strip()
    if not line:
        raise SystemExit(f"{process.args!r} ended with status {process.wait()}")
    return line
