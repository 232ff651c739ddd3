"""Packages that the base installation leaves out, and the extra that brings each of them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from conv_advisor.data.errors import NotInstalled

EXTRA_OF: Final = {
    "numba": "cpu",
    "scipy": "cpu",
    "threadpoolctl": "cpu",
    "sklearn": "train",
    "pyarrow": "train",
    "cupy": "cuda",
    "pynvml": "cuda",
    "distributed": "cluster",
    "psycopg": "cluster",
    "opentelemetry.sdk": "cluster",
    "onnx": "onnx",
    "torch": "torch",
    "httpx": "client",
}
"""By the name that is imported; `require` is called before code that needs one of them."""


def require(*packages: str) -> None:
    """Refuse to begin work that needs packages that are not installed.

    Parameters
    ----------
    *packages : str
        Names in `EXTRA_OF`.

    Raises
    ------
    NotInstalled
        Naming the first package that is missing, and its extra.
    """
    for package in packages:
        extra = EXTRA_OF[package]
        if find_spec(package) is None:
            raise NotInstalled(extra, package)
