"""What compilers made, kept in the user's cache: the same source, options and compiler are compiled once."""

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
"""A build that nobody asked for in this time is deleted."""


def kept_build(compiler: str, key: Sequence[str], build: Callable[[Path], None]) -> Path:
    """Folder with what a compiler makes, built where the cache has it not; many processes may ask at once.

    Parameters
    ----------
    compiler : str
        Names a part of the cache.
    key : sequence of str
        All that the build follows from: source, options, version of the compiler.
    build : callable (folder) -> None
        Writes into an empty folder. What it raises is raised, and nothing is kept.

    Notes
    -----
    The cache is the user's own (``$XDG_CACHE_HOME/conv-advisor`` on Linux), for a build is code that will run. Where it
    cannot be written, builds last as long as the process.
    """
    home = _home(compiler)
    kept = home / hashlib.sha256(json.dumps(list(key)).encode()).hexdigest()
    try:
        os.utime(kept)  # it is in use
    except FileNotFoundError:
        _build_into(kept, build)
    return kept


def _build_into(kept: Path, build: Callable[[Path], None]) -> None:
    """Build beside the place and move there, so that nobody sees half a build."""
    folder = Path(tempfile.mkdtemp(dir=kept.parent))
    try:
        build(folder)
        folder.rename(kept)
    except OSError:
        if not kept.is_dir():  # else another process was first
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _home(compiler: str) -> Path:
    """Where the builds of a compiler are, without those long unused."""
    from platformdirs import user_cache_path

    home = user_cache_path("conv-advisor") / compiler
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        tempfile.TemporaryFile(dir=home).close()
    except OSError:
        home = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, home, ignore_errors=True)
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
