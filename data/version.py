"""The version of this project."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Final

NOT_INSTALLED: Final = "0+source"
"""What stands for a version where the sources run from where they lie."""


@cache
def version() -> str:
    """The version that is installed, else `NOT_INSTALLED`."""
    try:
        return version_of("conv-advisor")
    except PackageNotFoundError:
        return NOT_INSTALLED
