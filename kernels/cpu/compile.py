"""Compiles the loops with Numba, to machine code that is cached where possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit, types

FLOATS = types.Array(types.float32, 1, "C", readonly=True)
"""A flat array that is only read; a writable one is accepted too."""
OUT_FLOATS = types.Array(types.float32, 1, "C")
FLOATS_4D = types.Array(types.float32, 4, "A", readonly=True)
"""A tensor of any strides that is only read."""
COMPLEX_3D = types.Array(types.complex64, 3, "C", readonly=True)
OUT_COMPLEX_3D = types.Array(types.complex64, 3, "C")
INTS = types.Array(types.int64, 1, "C", readonly=True)
INT = types.int64


def ints(count: int) -> Any:
    """A tuple of this many integers."""
    return types.UniTuple(types.int64, count)


def compiled(*signature: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Compile a function for this signature, once.

    The only change to the arithmetic is that a product and a sum may be contracted into one operation: NaN, infinities
    and the order of sums are those of the source. The code is cached beside the source or in the user's cache; where
    neither can be written (a read-only container with no home), each process compiles it again. The cache notices only
    changes in the kernel's own file: a kernel takes constants of other files as arguments.
    """
    options = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}

    def compile_now(function: Callable[..., None]) -> Callable[..., None]:
        try:
            kernel: Callable[..., None] = njit(types.void(*signature), cache=True, **options)(function)
        except (RuntimeError, OSError):
            # Numba raises these where it finds no folder for the cache, or the disk is full.
            kernel = njit(types.void(*signature), **options)(function)
        return kernel

    return compile_now
