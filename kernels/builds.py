"""Builds kept in the user's cache: the same source with the same options and compiler is compiled once."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

UNUSED_S: Final = 30 * 24 * 3600
"""A build that was not used for this long is deleted."""


def kept_build(compiler: str, key: Sequence[str], build: Callable[[Path], None]) -> Path:
    """Folder with a compiler's output, built where the cache does not have it; many processes may call this at once.

    Parameters
    ----------
    compiler : str
        Names the part of the cache.
    key : sequence of str
        All that the build depends on: source, options, version of the compiler.
    build : callable (folder) -> None
        Writes into an empty folder. Its errors pass through, and nothing is kept.

    Notes
    -----
    The cache is the user's own (``$XDG_CACHE_HOME/conv-advisor`` on Linux), for a build is code that will run. Where it
    cannot be written, builds last as long as the process.
    """
    home = _home(compiler)
    folder = home / hashlib.sha256(json.dumps(list(key)).encode()).hexdigest()
    try:
        os.utime(folder)  # it is in use
    except FileNotFoundError:
        _build_into(folder, build)
    return folder


def _build_into(target: Path, build: Callable[[Path], None]) -> None:
    """Build in a temporary folder beside the target and rename it, so that no process sees half a build."""
    unfinished = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        build(unfinished)
        unfinished.rename(target)
    except OSError:
        if not target.is_dir():  # else another process was first
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def cache_folder(name: str) -> Path:
    """A folder of the user's cache; where that cannot be written, one that lasts as long as the process."""
    from platformdirs import user_cache_path

    home = user_cache_path("conv-advisor") / name
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        tempfile.TemporaryFile(dir=home).close()
    except OSError:
        home = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


@cache
def _home(compiler: str) -> Path:
    """Folder of a compiler's builds, after those long unused are deleted."""
    home = cache_folder(compiler)
    _delete_unused(home)
    return home


def _delete_unused(home: Path) -> None:
    oldest = time.time() - UNUSED_S
    for folder in home.iterdir():
        try:
            is_unused = folder.stat().st_mtime < oldest
        except FileNotFoundError:  # another process was first
            continue
        if is_unused:
            shutil.rmtree(folder, ignore_errors=True)
