"""Tensor maps as the driver encodes them, in memory with the alignment that it requires."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any, Final

from conv_advisor.data.problem import DType
from conv_advisor.kernels.cuda.implicit_gemm_tma.maps import Map, TiledMap

MAP_BYTES: Final = 128
_ALIGNMENT: Final = 64
_TYPES: Final = {DType.FLOAT16: 6, DType.FLOAT32: 7, DType.BFLOAT16: 9, DType.TF32: 11}
_SWIZZLES: Final = {32: 1, 64: 2, 128: 3}
_NO_INTERLEAVE, _ZEROS, _PROMOTE_128 = 0, 0, 2
_SMALL_BYTES: Final = 128 * 1024
_DRIVER_THAT_KNOWS_SMALL: Final = 13010


def encoded(described: Map, dtype: DType, address: int) -> ctypes.Array[ctypes.c_uint64]:
    """The 128 bytes of a map that a kernel takes by value, for a tensor at this device address.

    With dtype tf32, float32 elements are rounded to the nearest tf32 when they are loaded.

    Raises
    ------
    cupy.cuda.driver.CUDADriverError
    """
    target = _aligned()
    rank = len(described.sizes)
    sizes = _array(ctypes.c_uint64, described.sizes)
    strides = _array(ctypes.c_uint64, described.strides_bytes)
    tail = (_NO_INTERLEAVE, _SWIZZLES[described.row_bytes], _PROMOTE_128, _ZEROS)
    head = (ctypes.byref(target), _TYPES[dtype], rank, ctypes.c_void_p(address), sizes, strides)
    if isinstance(described, TiledMap):
        box = _array(ctypes.c_uint32, described.box)
        status = _driver().cuTensorMapEncodeTiled(*head, box, _array(ctypes.c_uint32, (1,) * rank), *tail)
    else:
        status = _driver().cuTensorMapEncodeIm2col(
            *head,
            _array(ctypes.c_int, described.lower),
            _array(ctypes.c_int, described.upper),
            ctypes.c_uint32(described.channels),
            ctypes.c_uint32(described.pixels),
            _array(ctypes.c_uint32, (1, *described.steps, 1)),
            *tail,
        )
    _check(status)
    if prod(described.sizes) * dtype.itemsize_bytes < _SMALL_BYTES and _version() <= _DRIVER_THAT_KNOWS_SMALL:
        # Older drivers set a bit that only larger tensors may have (CUTLASS clears it too).
        target[1] &= ~(1 << 21)
    return target


def _aligned() -> ctypes.Array[ctypes.c_uint64]:
    room = (ctypes.c_uint8 * (MAP_BYTES + _ALIGNMENT))()
    skipped = -ctypes.addressof(room) % _ALIGNMENT
    return (ctypes.c_uint64 * (MAP_BYTES // 8)).from_buffer(room, skipped)


def _array(kind: Any, values: Sequence[int]) -> Any:
    return (kind * len(values))(*values)


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _version() -> int:
    version = ctypes.c_int()
    _check(_driver().cuDriverGetVersion(ctypes.byref(version)))
    return version.value


def _check(status: int) -> None:
    if status != 0:
        import cupy

        raise cupy.cuda.driver.CUDADriverError(status)
