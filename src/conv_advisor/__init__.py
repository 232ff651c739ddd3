"""conv-advisor: which convolution algorithm is fastest for a layer on a GPU, how fast, and how sure.

The four rooms lie at the top of the repository and are reached through this package, so that an installation has one
name in site-packages: ``data`` the facts, ``kernels`` what runs or times a convolution, ``models`` from measurements to
advice, ``app`` how people reach it.

Names are loaded when they are first asked for, so that importing the package takes next to no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str

__all__ = ["__version__"]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("conv-advisor")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
