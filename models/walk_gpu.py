"""Walking trees on a GPU, with CuPy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.extras import require
from conv_advisor.models.walk import Boosted, Mean, Tree, boosted_nodes_of, nodes_of

SOURCE: Final = Path(__file__).with_name("walk.cu")

_THREADS: Final = 256
_BLOCK: Final = 2**16
"""Rows of which the places in all trees are in memory at once."""


class OnGpu:
    """By a GPU of this machine, which must have memory for a teacher and the rows: with all that ships, 2 GB.

    Parameters
    ----------
    place : int
        As CUDA counts the GPUs.

    Raises
    ------
    InvalidInput
        There is no such GPU.
    NotInstalled
    """

    def __init__(self, place: int = 0) -> None:
        count = n_gpus()
        if not 0 <= place < count:
            if not count:
                require("cupy")
            raise InvalidInput("gpu", place, f"a GPU that CUDA finds, of which there are {count} here")
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        """What is on a GPU stays with its process."""
        return OnGpu, (self.place,)

    @cached_property
    def _module(self) -> Any:
        import cupy

        with self._device():
            return cupy.RawModule(code=SOURCE.read_text(encoding="utf-8"))

    def _device(self) -> Any:
        import cupy

        return cupy.cuda.Device(self.place)

    def hold(self, x: np.ndarray) -> Any:
        """A copy on the GPU."""
        import cupy

        with self._device():
            return cupy.asarray(np.ascontiguousarray(x, np.float32))

    def mean(self, trees: Sequence[Tree], values: np.ndarray) -> Mean:
        """As `models.walk.Walk.mean`."""
        import cupy

        with self._device():
            nodes, roots = (cupy.asarray(each) for each in _raw(*nodes_of(trees)))
            table = cupy.asarray(np.ascontiguousarray(values, np.float32))
        n_trees, n_targets = len(trees), values.shape[1]

        def of(x: Any) -> np.ndarray:
            mean = np.empty((len(x), n_targets), np.float32)
            with self._device():
                walk, gather = (self._module.get_function(name) for name in ("places", "mean"))
                for first in range(0, len(x), _BLOCK):
                    some = x[first : first + _BLOCK]
                    n = np.int64(len(some))
                    places = cupy.empty((n_trees, len(some)), np.int32)
                    found = cupy.empty((len(some), n_targets), np.float32)
                    grid = (-(-len(some) // _THREADS), n_trees)
                    walk(grid, (_THREADS,), (some, np.int64(x.shape[1]), n, nodes, roots, places))
                    told = (places, n, np.int32(n_trees), table, np.int32(n_targets), found)
                    gather((len(some),), (_THREADS,), told)
                    found.get(out=mean[first : first + _BLOCK])
            return mean

        return of

    def boosted(self, fitted: Any) -> Boosted:
        """As `models.walk.Walk.boosted`."""
        import cupy

        packed_nodes, packed_roots, packed_values = boosted_nodes_of(fitted)
        with self._device():
            nodes, roots = (cupy.asarray(each) for each in _raw(packed_nodes, packed_roots))
            values = cupy.asarray(packed_values)
        start, n_trees = np.float64(fitted._baseline_prediction.item()), np.int32(len(packed_roots))

        def of(x: Any, rows: np.ndarray) -> np.ndarray:
            if not len(rows):
                return np.empty(0)
            with self._device():
                asked, sums = cupy.asarray(rows.astype(np.int64)), cupy.empty(len(rows), np.float64)
                told = (x, np.int64(x.shape[1]), asked, np.int64(len(rows)), nodes, roots, n_trees, values, start, sums)
                self._module.get_function("boosted")((-(-len(rows) // _THREADS),), (_THREADS,), told)
                found: np.ndarray = sums.get()
            return found

        return of


def n_gpus() -> int:
    """How many GPUs CuPy finds; none where it is not installed."""
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount())
    except (ImportError, RuntimeError):
        return 0


def _raw(nodes: np.ndarray, roots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes as bytes: CuPy has no arrays of records."""
    return nodes.view(np.uint8), roots
