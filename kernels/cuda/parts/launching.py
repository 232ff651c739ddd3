"""Launches through the driver: with clusters, with overlap of the kernel before, and at little cost to the host."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final

from conv_advisor.data.epilogue import Epilogue
from conv_advisor.kernels.addresses import current_stream
from conv_advisor.kernels.cuda.parts.arithmetic import SHARED_BYTES
from conv_advisor.kernels.cuda.parts.epilogue import addresses
from conv_advisor.kernels.cuda.parts.overlap import as_now
from conv_advisor.kernels.variant import Launch

Start = Callable[..., None]
"""Takes the kernel's leading parameters, device addresses or arrays by value, and enqueues it on the current stream.

A parameter of a kernel is always an address or always an array.
"""

PORTABLE_CLUSTER: Final = 8
"""Blocks that a cluster may have unless the kernel is allowed a larger, non-portable cluster."""

_MAY_BE_LARGE: Final = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_CLUSTER_DIMENSION: Final = 4  # CU_LAUNCH_ATTRIBUTE_...
_PROGRAMMATIC_STREAM_SERIALIZATION: Final = 6
_INVALID_CONTEXT: Final = 201

_allowing: Final = threading.Lock()
"""Held while a kernel's shared memory limit is raised: layers with the same tile are prepared concurrently."""


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
    """Prepare all of a launch except its leading parameters.

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
        The kernel's parameters after the leading ones, each of 32 bits.
    cluster : int
        Blocks in x that can access each other's shared memory.
    overlaps : bool
        Whether it may begin while the kernel before it in the stream still runs; it then waits for that kernel itself.
    is_structure : bool
        Whether the sizes are the fields of one parameter.

    Returns
    -------
    start : callable (*leading) -> None
    """
    if shared_bytes > SHARED_BYTES:
        # Kernels are shared: another problem with the same tile may need more.
        with _allowing:
            kernel.max_dynamic_shared_size_bytes = max(shared_bytes, kernel.max_dynamic_shared_size_bytes)
    words = [int(size) & 0xFFFFFFFF for size in sizes]
    values = [(ctypes.c_uint32 * len(words))(*words)] if is_structure else [*map(ctypes.c_uint32, words)]
    config = _Config(*grid, threads, 1, 1, shared_bytes)
    config.attributes = (_Attribute * 2)(*_attributes(cluster, overlaps))
    config.n_attributes = (cluster > 1) + overlaps
    return _start(kernel, config, values, cluster)


def launch_of(start: Start, epilogue: Epilogue) -> Launch:
    """The launch of one kernel that takes x, weight, y and the operands of the epilogue."""

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        start(x.data.ptr, weight.data.ptr, y.data.ptr, *addresses(epilogue, ends))

    return Launch(run, by_address=True)


def launch_behind(start: Start, epilogue: Epilogue) -> Callable[..., None]:
    """The ``run`` of one kernel that takes x, weight, y, the prologue and the operands of the epilogue."""

    def run(x: Any, weight: Any, y: Any, prologue: Any, *ends: Any) -> None:
        start(x.data.ptr, weight.data.ptr, y.data.ptr, *addresses(epilogue, ends), prologue.data.ptr)

    return run


def with_within(into: Callable[[int], Launch], filters: int) -> Launch:
    """The launch into a y of its own, which can also write into some of more channels (`Launch.within`).

    Parameters
    ----------
    into : callable (channels) -> Launch
        Without scratch memory. It is called again when a graph runs, where it must load nothing.
    filters : int
    """
    launch = into(filters)
    launch.within = as_now(lambda channels: into(channels).run)
    return launch


def _start(kernel: Any, config: _Config, values: list[Any], cluster: int) -> Start:
    parameters_by_count: dict[int, _Parameters] = {}
    launch: list[Any] = []
    place = ctypes.addressof(config)

    def start(*leading: int | ctypes.Array[Any]) -> None:
        if not launch:  # here, since launches are also prepared without a GPU
            launch.extend((_driver().cuLaunchKernelEx, kernel.kernel.ptr))
        enqueue, function = launch
        parameters = parameters_by_count.get(len(leading)) or parameters_by_count.setdefault(
            len(leading), _Parameters(leading, values)
        )
        parameters.set(leading)
        config.stream = current_stream()
        # The driver copies the parameters when it launches.
        status = enqueue(place, function, parameters.place, None)
        if status == _INVALID_CONTEXT:  # nothing on this thread has used the device yet
            _use_device()
            status = enqueue(place, function, parameters.place, None)
        if status:
            raise _error(status)

    if cluster > PORTABLE_CLUSTER and (status := _driver().cuFuncSetAttribute(kernel.kernel.ptr, _MAY_BE_LARGE, 1)):
        raise _error(status)
    return start


class _Parameters:
    """A kernel's parameters in memory that the driver reads: leading ones that each launch sets, and fixed values.

    Parameters
    ----------
    leading : sequence of int or array
        The leading parameters of one launch; later launches have arrays in the same positions.
    values : list of ctypes value
        The parameters after the leading ones.

    Attributes
    ----------
    place : int
        Address of the array of pointers to the parameters.
    """

    def __init__(self, leading: Sequence[int | ctypes.Array[Any]], values: list[Any]) -> None:
        self._values = values
        self._addresses = (ctypes.c_uint64 * len(leading))()
        first = ctypes.addressof(self._addresses)
        places = [first + 8 * place for place in range(len(leading))] + [*map(ctypes.addressof, values)]
        self._places = (ctypes.c_void_p * len(places))(*places)
        self._by_value = [isinstance(value, ctypes.Array) for value in leading]
        self._has_values = any(self._by_value)
        self.place = ctypes.addressof(self._places)

    def set(self, leading: Sequence[int | ctypes.Array[Any]]) -> None:
        """Set the leading parameters of the next launch: addresses, and arrays by value."""
        if not self._has_values:
            self._addresses[:] = leading  # type: ignore[call-overload]  # all of them are numbers
            return
        for place, (is_array, value) in enumerate(zip(self._by_value, leading, strict=True)):
            if is_array:
                self._places[place] = ctypes.addressof(value)  # type: ignore[arg-type]  # it is an array
            else:
                self._addresses[place] = value  # type: ignore[assignment]  # it is a number


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``."""

    _fields_ = (("id", ctypes.c_uint64), ("value", ctypes.c_uint32 * 16))


class _Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        *((f"{unit}_{axis}", ctypes.c_uint32) for unit in ("grid", "block") for axis in "xyz"),
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
    """The driver's library; a direct call takes half the time of one through a Python binding."""
    library = ctypes.CDLL("libcuda.so.1")
    library.cuLaunchKernelEx.argtypes = (ctypes.c_void_p,) * 4
    library.cuFuncSetAttribute.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    return library


def _use_device() -> None:
    """Initialise the current device on this thread: direct calls of the driver need that once per thread."""
    from cupy.cuda import runtime

    runtime.setDevice(runtime.getDevice())


def _error(status: int) -> Exception:
    import cupy

    return cupy.cuda.driver.CUDADriverError(status)  # type: ignore[no-any-return]  # CuPy has no types
