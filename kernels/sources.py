"""The version of the kernels: a digest that changes with any of their sources."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Final

_SUFFIXES: Final = (".py", ".cu", ".cuh")


@cache
def sources_digest(part: str = "") -> str:
    """Eight hex digits that change with any source in this folder: all that chooses, plans, compiles and launches.

    Parameters
    ----------
    part : str
        A folder in it, for the digest of what is there alone.
    """
    home, digest = str(Path(__file__).parent / part), hashlib.sha256()
    # As strings: paths that are globbed, compared and made relative take longer than all else here.
    paths = (f"{folder}/{name}" for folder, _, names in os.walk(home) for name in names)
    for path in sorted(path for path in paths if path.endswith(_SUFFIXES)):
        digest.update(path[len(home) :].encode() + b"\0")
        digest.update(hashlib.sha256(Path(path).read_bytes()).digest())
    return digest.hexdigest()[:8]
