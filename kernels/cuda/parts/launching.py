"""Launches that CuPy's own call cannot express: clusters, and a kernel that begins before the one ahead of it ends."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from conv_advisor.data.epilogue import Epilogue
from conv_advisor.kernels.cuda.parts.arithmetic import SHARED_BYTES
from conv_advisor.kernels.cuda.parts.epilogue import addresses
from conv_advisor.kernels.variant import Launch

Start = Callable[..., None]
"""Takes the kernel's leading parameters, device addresses or arrays by value, and enqueues it on the current stream."""

PORTABLE_CLUSTER: Final = 8
"""Blocks that a cluster may have without being allowed more."""

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
    if cluster == 1 and not overlaps and not is_structure:
        arguments = tuple(np.array(sizes, np.int64).astype(np.int32))
        blocks = grid if grid[1:] != (1, 1) else grid[:1]

        def start_plain(*addresses: int) -> None:
            kernel(blocks, (threads,), (*addresses, *arguments), shared_mem=shared_bytes)

        return start_plain
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared_bytes
    attributes = _attributes(cluster, overlaps)
    config.attrs, config.numAttrs = attributes, len(attributes)
    words = [int(size) & 0xFFFFFFFF for size in sizes]
    fields = (ctypes.c_uint32 * len(words))(*words)
    return _with_attributes(kernel, config, [fields] if is_structure else list(map(ctypes.c_uint32, words)), cluster)


def launch_of(start: Start, epilogue: Epilogue) -> Launch:
    """The launch of one kernel that takes x, weight, y and what the epilogue reads."""

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        start(x.data.ptr, weight.data.ptr, y.data.ptr, *addresses(epilogue, ends))

    return Launch(run)


def _with_attributes(kernel: Any, config: Any, values: list[Any], cluster: int) -> Start:
    import cupy
    from cuda.bindings import driver

    function = driver.CUfunction(kernel.kernel.ptr)
    if cluster > PORTABLE_CLUSTER:
        allowed = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        _check(driver.cuFuncSetAttribute(function, allowed, 1))

    kept: dict[int, _Parameters] = {}

    def start(*leading: int | ctypes.Array[Any]) -> None:
        parameters = kept.get(len(leading)) or kept.setdefault(len(leading), _Parameters(len(leading), values))
        parameters.set(leading)
        config.hStream = driver.CUstream(cupy.cuda.get_current_stream().ptr)
        # The driver copies what the pointers point at when it launches.
        _check(driver.cuLaunchKernelEx(config, function, parameters.place, 0))

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


def _attributes(cluster: int, overlaps: bool) -> list[Any]:
    from cuda.bindings import driver

    found = []
    if cluster > 1:
        size = driver.CUlaunchAttribute()
        size.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size.value.clusterDim.x = cluster
        size.value.clusterDim.y = size.value.clusterDim.z = 1
        found.append(size)
    if overlaps:
        overlap = driver.CUlaunchAttribute()
        overlap.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        overlap.value.programmaticStreamSerializationAllowed = 1
        found.append(overlap)
    return found


def _check(result: tuple[Any, ...]) -> None:
    import cupy

    if int(result[0]) != 0:
        raise cupy.cuda.driver.CUDADriverError(int(result[0]))
