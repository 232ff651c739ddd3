"""The version of the kernels: a digest that changes with any of their sources."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

_SUFFIXES: Final = (".py", ".cu", ".cuh")


@cache
def sources_digest() -> str:
    """Eight hex digits that change with any file in this folder: all that chooses, plans, compiles and launches."""
    home, digest = Path(__file__).parent, hashlib.sha256()
    for file in sorted(file for file in home.rglob("*") if file.suffix in _SUFFIXES):
        digest.update(f"{file.relative_to(home).as_posix()}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:8]
