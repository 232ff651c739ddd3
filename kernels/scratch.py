"""Scratch memory of a launch, which whoever runs it may replace."""

from __future__ import annotations


class Scratch:
    """Device memory whose contents matter during one run alone.

    A launch is made with memory of its own. Who runs it on several streams, or captures it in graphs that run side by
    side, frees that and gives each run an address of its own.

    Parameters
    ----------
    nbytes : int

    Attributes
    ----------
    ptr : int
        Device address of at least ``nbytes``, which a launch reads anew in each run; aligned to 256 bytes.

    Raises
    ------
    cupy.cuda.memory.OutOfMemoryError
    """

    def __init__(self, nbytes: int) -> None:
        import cupy

        self.nbytes = nbytes
        self._own = cupy.cuda.alloc(nbytes) if nbytes else None
        self.ptr: int = self._own.ptr if self._own else 0

    def free(self) -> None:
        """Free the memory of its own: from now on each run is given an address before."""
        self._own, self.ptr = None, 0
