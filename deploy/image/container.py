"""A mounted image, and its command run without an engine, yet as an orchestrator that grants nothing would run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from deploy.image.buildah import Buildah

USER = 10001
"""The service's user id, as debian.sh and the Dockerfile say."""
_SCRIPT = Path(__file__).with_name("as_pid_1.sh")


@dataclass(frozen=True, slots=True)
class Container:
    """A mounted image.

    Parameters
    ----------
    root : Path
        Its root folder.
    config : dict
        Its configuration: ``Env``, ``Cmd``, ``User``, ``Healthcheck``.
    volume : Path
        Folder of this machine that it has as ``/var/lib/conv-advisor``.
    """

    root: Path
    config: dict[str, Any]
    volume: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the image sets."""
        return dict(variable.split("=", 1) for variable in self.config["Env"])

    def start(self, output: IO[str] | int, *command: str, **variables: str) -> subprocess.Popen[str]:
        """Run a command, by default the image's own, as process 1; `stop` ends it and all that it started.

        Parameters
        ----------
        output : file, or subprocess.PIPE
            Where all that it writes goes.
        *command : str
        **variables : str
            Beside those of the image.
        """
        isolated = ("/usr/bin/unshare", "--mount", "--pid", "--fork", "/bin/sh", str(_SCRIPT))
        return subprocess.Popen(
            [*isolated, str(self.root), str(self.volume), *(command or self.config["Cmd"])],
            env=self.environment | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def call(self, *command: str, timeout_s: float = 300.0, **variables: str) -> tuple[int, str]:
        """Run a command to its end: its exit status, and what it wrote."""
        with self.start(subprocess.PIPE, *command, **variables) as process:
            try:
                output, _ = process.communicate(timeout=timeout_s)
            finally:
                stop(process)
        return process.returncode, output


def children(pid: int) -> list[int]:
    """The processes that any thread of a process has started and not collected."""
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]


def stop(process: subprocess.Popen[str]) -> None:
    """Kill what `Container.start` started.

    Process 1 of the namespace takes everything in it along. To kill ``unshare`` alone would leave it running: a process
    that changes its user, as ours does, no longer ends with its parent.
    """
    for pid in children(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.kill()


def mounted(buildah: Buildah, image: str, volume: Path) -> tuple[str, Container]:
    """Mount an image; the name by which `Buildah.call` removes it, and the container."""
    os.chown(volume, USER, USER)
    name = buildah.call("from", "--pull-never", image)
    root = Path(buildah.call("mount", name))
    return name, Container(root, json.loads(buildah.call("inspect", name))["Docker"]["config"], volume)
