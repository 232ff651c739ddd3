"""The version of this project."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Final

NOT_INSTALLED: Final = "0+source"
"""The version of sources that run without being installed."""


@cache
def version() -> str:
    """The version that is installed, else `NOT_INSTALLED`."""
    try:
        return version_of("conv-advisor")
    except PackageNotFoundError:
        return NOT_INSTALLED
