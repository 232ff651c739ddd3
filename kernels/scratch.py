"""Scratch memory of a launch, which the caller that runs it may replace."""

from __future__ import annotations


class Scratch:
    """Device memory whose contents matter only during one run.

    A launch starts with memory of its own. A caller that runs it on several streams, or captures it in graphs that run
    side by side, frees that memory and gives each run its own address.

    Parameters
    ----------
    nbytes : int

    Attributes
    ----------
    ptr : int
        Address of at least ``nbytes`` of device memory, aligned to 256 bytes; a launch reads it anew in each run.

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
        """Free its own memory: from now on the caller sets an address before each run."""
        self._own, self.ptr = None, 0
