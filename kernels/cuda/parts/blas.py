"""Batched GEMM by cuBLAS, called so that it can be captured in a graph.

CuPy's own wrappers set the stream before every call, which resets the workspace given to cuBLAS; inside a capture
cuBLAS would then allocate. So this module calls the library itself.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from conv_advisor.data.problem import DType
from conv_advisor.kernels.addresses import current_stream
from conv_advisor.kernels.cuda.parts.chunks import BLAS_WORKSPACE_BYTES
from conv_advisor.kernels.scratch import Scratch

MOST_BATCHES: Final = 2**15
"""GEMMs of one call: a grid has at most 65,535 blocks in z."""

_R_32F, _R_16F, _R_16BF = 0, 2, 14
_COMPUTE_32F, _COMPUTE_32F_FAST_TF32 = 68, 77
_GEMM_DEFAULT: Final = -1
_DATA_TYPE: Final = {DType.FLOAT32: _R_32F, DType.TF32: _R_32F, DType.FLOAT16: _R_16F, DType.BFLOAT16: _R_16BF}
_POINTER, _INT, _STRIDE = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_OPERAND: Final = (_POINTER, _INT, _INT, _STRIDE)
_ARGUMENTS: Final = (_POINTER, *[_INT] * 5, _POINTER, *_OPERAND, *_OPERAND, _POINTER, *_OPERAND, *[_INT] * 3)
_ONE, _ZERO = ctypes.c_float(1.0), ctypes.c_float(0.0)


@dataclass(frozen=True)
class Gemm:
    """C = op(A) · B, ``batch`` times, in cuBLAS's column-major order: C is (m,n), op(A) (m,k), B (k,n).

    Parameters
    ----------
    dtype : DType
        The type of A, B and C; ``tf32`` allows float32 products to be rounded, ``float32`` does not.
    m, n, k : int
    lda, ldb, ldc : int
        Elements from one column to the next.
    stride_a, stride_b, stride_c : int
        Elements from one matrix of the batch to the next.
    batch : int
    is_a_transposed : bool
    """

    dtype: DType
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    stride_a: int = 0
    stride_b: int = 0
    stride_c: int = 0
    batch: int = 1
    is_a_transposed: bool = False


def new_workspace() -> Scratch:
    """Scratch memory for the calls of one launch; also opens the library, which must not happen during a capture."""
    _handle()
    return Scratch(BLAS_WORKSPACE_BYTES)


def enqueue(gemm: Gemm, a: int, b: int, c: int, workspace: Scratch) -> None:
    """Enqueue on the current stream; a, b and c are device addresses of the first matrices."""
    library, handle = _library(), _handle()
    _check(library.cublasSetStream_v2(handle, current_stream()))
    _check(library.cublasSetWorkspace_v2(handle, workspace.ptr, BLAS_WORKSPACE_BYTES))
    for first in range(0, gemm.batch, MOST_BATCHES):
        _enqueue_part(gemm, a, b, c, first)


def _enqueue_part(gemm: Gemm, a: int, b: int, c: int, first: int) -> None:
    data_type, itemsize = _DATA_TYPE[gemm.dtype], gemm.dtype.itemsize_bytes
    status = _library().cublasGemmStridedBatchedEx(
        _handle(),
        int(gemm.is_a_transposed),
        0,
        *(gemm.m, gemm.n, gemm.k),
        ctypes.addressof(_ONE),
        *(a + first * gemm.stride_a * itemsize, data_type, gemm.lda, gemm.stride_a),
        *(b + first * gemm.stride_b * itemsize, data_type, gemm.ldb, gemm.stride_b),
        ctypes.addressof(_ZERO),
        *(c + first * gemm.stride_c * itemsize, data_type, gemm.ldc, gemm.stride_c),
        min(MOST_BATCHES, gemm.batch - first),
        _COMPUTE_32F_FAST_TF32 if gemm.dtype is DType.TF32 else _COMPUTE_32F,
        _GEMM_DEFAULT,
    )
    _check(status)


@cache
def _library() -> Any:
    from cuda import pathfinder

    library: Any = ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("cublas").abs_path)
    library.cublasCreate_v2.argtypes = (ctypes.POINTER(ctypes.c_void_p),)
    library.cublasSetStream_v2.argtypes = (_POINTER, _POINTER)
    library.cublasSetWorkspace_v2.argtypes = (_POINTER, _POINTER, ctypes.c_size_t)
    library.cublasGemmStridedBatchedEx.argtypes = _ARGUMENTS
    return library


@cache
def _handle() -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _check(_library().cublasCreate_v2(ctypes.byref(handle)))
    return handle


def _check(status: int) -> None:
    if status:
        from cupy_backends.cuda.libs import cublas

        raise cublas.CUBLASError(status)
