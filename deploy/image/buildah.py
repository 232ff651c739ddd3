"""buildah, which builds and mounts images without an engine."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Buildah:
    """The command, on a store of its own where one is named.

    Parameters
    ----------
    store : Path or None
        Folder of images and layers; None: the system's.
    """

    def __init__(self, store: Path | None) -> None:
        self._options = ["--root", str(store / "images"), "--runroot", str(store / "run")] if store else []

    def call(self, *arguments: str, timeout_s: float | None = None) -> str:
        """Run a subcommand; what it printed.

        Raises
        ------
        subprocess.CalledProcessError, subprocess.TimeoutExpired
        """
        command = ["buildah", *self._options, *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=timeout_s).stdout.strip()
