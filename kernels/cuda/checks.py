"""Random operands and the float64 reference on the device: thin launchers of verify.cu."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Final

import cupy
import numpy as np

from conv_advisor.data.problem import ConvProblem, DType, Layout

_C_TYPES: Final = {
    DType.FLOAT32: "float",
    DType.TF32: "float",
    DType.FLOAT16: "__half",
    DType.BFLOAT16: "__nv_bfloat16",
}
_STORAGE: Final[dict[DType, type[np.generic]]] = {
    DType.FLOAT32: np.float32,
    DType.TF32: np.float32,
    DType.FLOAT16: np.float16,
    DType.BFLOAT16: np.uint16,
}
_KERNELS: Final = ("fill", "reference_at", "gather", "count_not_finite")
_THREADS: Final = 256


def storage_type(dtype: DType) -> type[np.generic]:
    """The NumPy type of CuPy arrays of this dtype; bfloat16 is stored as its bits."""
    return _STORAGE[dtype]


class Checks:
    """The kernels of verify.cu for one device and process."""

    @cached_property
    def _module(self) -> Any:
        names = [f"{kernel}<{c_type}>" for kernel in _KERNELS for c_type in sorted(set(_C_TYPES.values()))]
        source = Path(__file__).with_name("verify.cu").read_text()
        return cupy.RawModule(code=source, options=("-std=c++17",), name_expressions=[*names, "nothing"])

    @cached_property
    def _nothing(self) -> Any:
        return self._module.get_function("nothing")

    def _kernel(self, name: str, dtype: DType) -> Any:
        return self._module.get_function(f"{name}<{_C_TYPES[dtype]}>")

    def nothing(self) -> None:
        """Enqueue the empty kernel."""
        self._nothing((1,), (32,), ())

    def fill(self, array: Any, dtype: DType, seed: int) -> None:
        """Fill an array with values uniform in (-1, 1)."""
        self._kernel("fill", dtype)((_grid(array.size),), (_THREADS,), (array, array.size, seed))

    def poison(self, array: Any, dtype: DType) -> None:
        """Fill an array with NaN."""
        array.fill(0x7FC0 if dtype is DType.BFLOAT16 else np.nan)

    def reference_at(self, problem: ConvProblem, x: Any, weight: Any, outputs: np.ndarray) -> np.ndarray:
        """The float64 convolution at chosen outputs.

        Parameters
        ----------
        outputs : int64 array of shape (n_compared, 4)
            Indices (n, k, p, q).

        Returns
        -------
        reference : float64 array of shape (n_compared,)
        """
        result = cupy.empty(len(outputs), np.float64)
        sizes = (problem.c, problem.h, problem.w, problem.k, problem.r, problem.s)
        steps = (problem.stride_h, problem.stride_w, problem.pad_h, problem.pad_w)
        dilations = (problem.dilation_h, problem.dilation_w)
        groups_and_layout = (problem.groups, int(problem.layout is Layout.NHWC))
        self._kernel("reference_at", problem.dtype)(
            (len(outputs),),
            (_THREADS,),
            (x, weight, cupy.asarray(outputs), result, *sizes, *steps, *dilations, *groups_and_layout),
        )
        host: np.ndarray = cupy.asnumpy(result)
        return host

    def gather(self, problem: ConvProblem, y: Any, offsets: Any) -> np.ndarray:
        """The elements of y at linear offsets, as float64 on the host."""
        result = cupy.empty(offsets.size, np.float64)
        blocks = -(-offsets.size // _THREADS)
        self._kernel("gather", problem.dtype)((blocks,), (_THREADS,), (y, offsets, result, offsets.size))
        host: np.ndarray = cupy.asnumpy(result)
        return host

    def is_finite(self, array: Any, dtype: DType) -> bool:
        """Whether every element is finite."""
        counter = cupy.zeros(1, np.uint32)
        self._kernel("count_not_finite", dtype)((_grid(array.size),), (_THREADS,), (array, array.size, counter))
        return int(counter[0]) == 0


def linear_offsets(problem: ConvProblem, outputs: np.ndarray) -> np.ndarray:
    """Offsets into y of outputs (n, k, p, q), in the problem's memory order."""
    n, k, p, q = outputs.T
    index = (n, k, p, q) if problem.layout is Layout.NCHW else (n, p, q, k)
    offsets: np.ndarray = np.ravel_multi_index(index, problem.y_shape).astype(np.int64)
    return offsets


def _grid(count: int) -> int:
    return max(1, min(-(-count // _THREADS), 8192))
