"""Launches by the driver: with clusters, beginning before the kernel ahead ends, and at little cost to the host."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final

from conv_advisor.data.epilogue import Epilogue
from conv_advisor.kernels.cuda.parts.arithmetic import SHARED_BYTES
from conv_advisor.kernels.cuda.parts.epilogue import addresses
from conv_advisor.kernels.variant import Launch

Start = Callable[..., None]
"""Takes the kernel's leading parameters, device addresses or arrays by value, and enqueues it on the current stream."""

PORTABLE_CLUSTER: Final = 8
"""Blocks that a cluster may have without being allowed more."""

_MAY_BE_LARGE: Final = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_CLUSTER_DIMENSION: Final = 4  # CU_LAUNCH_ATTRIBUTE_...
_PROGRAMMATIC_STREAM_SERIALIZATION: Final = 6

_allowing: Final = threading.Lock()
"""Held while a kernel is allowed more shared memory: layers with the same tile are prepared side by side."""


def prepare_start(
    kernel: Any,
    grid: tuple[int, int, int],
    threads: int,
    shared_bytes: int,
    sizes: Sequence[int],
    *,
    cluster: int = 1,
    overlaps: bool = False,
    is_structure: bool = False,
) -> Start:
    """Everything about a launch but the addresses.

    Parameters
    ----------
    kernel : cupy.RawKernel
    grid : tuple of int
        Blocks in x, y and z; x is a multiple of the cluster.
    threads : int
        Threads of a block.
    shared_bytes : int
        Dynamic shared memory of a block.
    sizes : sequence of int
        The kernel's parameters behind the addresses, each of 32 bits.
    cluster : int
        Blocks in x that can reach each other's shared memory.
    overlaps : bool
        Whether it may begin while the kernel ahead of it in the stream still runs; it then waits for that itself.
    is_structure : bool
        Whether the sizes are the fields of one parameter.

    Returns
    -------
    start : callable (*leading) -> None
    """
    if shared_bytes > SHARED_BYTES:
        # Kernels are shared: another problem with the same tile may have asked for more.
        with _allowing:
            kernel.max_dynamic_shared_size_bytes = max(shared_bytes, kernel.max_dynamic_shared_size_bytes)
    words = [int(size) & 0xFFFFFFFF for size in sizes]
    values = [(ctypes.c_uint32 * len(words))(*words)] if is_structure else [*map(ctypes.c_uint32, words)]
    config = _Config(*grid, threads, 1, 1, shared_bytes)
    config.attributes = (_Attribute * 2)(*_attributes(cluster, overlaps))
    config.n_attributes = (cluster > 1) + overlaps
    return _start(kernel, config, values, cluster)


def launch_of(start: Start, epilogue: Epilogue) -> Launch:
    """The launch of one kernel that takes x, weight, y and what the epilogue reads."""

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        start(x.data.ptr, weight.data.ptr, y.data.ptr, *addresses(epilogue, ends))

    return Launch(run)


def _start(kernel: Any, config: _Config, values: list[Any], cluster: int) -> Start:
    kept: dict[int, _Parameters] = {}
    launch: list[Any] = []

    def start(*leading: int | ctypes.Array[Any]) -> None:
        if not launch:  # whoever prepares without a GPU never comes here
            launch.extend((_driver().cuLaunchKernelEx, kernel.kernel.ptr, _current_stream()))
        enqueue, function, stream = launch
        parameters = kept.get(len(leading)) or kept.setdefault(len(leading), _Parameters(len(leading), values))
        parameters.set(leading)
        config.stream = stream().ptr
        # The driver copies what the pointers point at when it launches.
        if status := enqueue(config, function, parameters.place, None):
            raise _error(status)

    if cluster > PORTABLE_CLUSTER and (status := _driver().cuFuncSetAttribute(kernel.kernel.ptr, _MAY_BE_LARGE, 1)):
        raise _error(status)
    return start


class _Parameters:
    """A kernel's parameters where the driver reads them: leading ones that each launch sets, and values that stay.

    Parameters
    ----------
    n_leading : int
    values : list of ctypes value
        The parameters behind those.

    Attributes
    ----------
    place : int
        Address of a pointer to each parameter.
    """

    def __init__(self, n_leading: int, values: list[Any]) -> None:
        self._addresses = [ctypes.c_void_p() for _ in range(n_leading)]
        self._values = values
        parameters = [*self._addresses, *values]
        self._places = (ctypes.c_void_p * len(parameters))(*map(ctypes.addressof, parameters))
        self.place = ctypes.addressof(self._places)

    def set(self, leading: Sequence[int | ctypes.Array[Any]]) -> None:
        """Let the next launch take these addresses and, by value, arrays: a place has always the one or the other."""
        for place, (parameter, value) in enumerate(zip(self._addresses, leading, strict=True)):
            if isinstance(value, ctypes.Array):
                self._places[place] = ctypes.addressof(value)
            else:
                parameter.value = value


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``."""

    _fields_ = (("id", ctypes.c_uint64), ("value", ctypes.c_uint32 * 16))


class _Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        *((f"{of}_{axis}", ctypes.c_uint32) for of in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("n_attributes", ctypes.c_uint32),
    )


def _attributes(cluster: int, overlaps: bool) -> Iterator[_Attribute]:
    if cluster > 1:
        yield _Attribute(_CLUSTER_DIMENSION, (cluster, 1, 1))
    if overlaps:
        yield _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, (1,))


@cache
def _driver() -> Any:
    """The driver's library; a call of it takes half of what a binding's takes."""
    library = ctypes.CDLL("libcuda.so.1")
    library.cuLaunchKernelEx.argtypes = (ctypes.POINTER(_Config), *(ctypes.c_void_p,) * 3)
    library.cuFuncSetAttribute.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    return library


def _current_stream() -> Callable[[], Any]:
    import cupy

    return cupy.cuda.get_current_stream  # type: ignore[no-any-return]  # CuPy has no types


def _error(status: int) -> Exception:
    import cupy

    return cupy.cuda.driver.CUDADriverError(status)  # type: ignore[no-any-return]  # CuPy has no types
