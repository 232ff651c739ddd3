"""The one place where errors of CUDA and its libraries become ours, by type and status code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cupy.cuda import compiler, cufft, driver, memory, runtime
from cupy_backends.cuda.libs import cublas, nvrtc

from conv_advisor.data.errors import CompileFailed, LaunchFailed, NotSupported, OutOfMemory

_CUDA_OUT_OF_MEMORY = 2
_CUDA_NOT_SUPPORTED = 801
_CUBLAS_ALLOC_FAILED = 3
_CUBLAS_NOT_SUPPORTED = 15
_CUFFT_ALLOC_FAILED = 2
_CUFFT_NOT_SUPPORTED = 16


@contextmanager
def translated() -> Iterator[None]:
    """Turn what CUDA, cuBLAS, cuFFT and NVRTC raise inside into RunError.

    Raises
    ------
    OutOfMemory, NotSupported, CompileFailed
    LaunchFailed
        Any other error: most leave the context unusable, and no status tells which.
    """
    try:
        yield
    except memory.OutOfMemoryError as error:
        raise OutOfMemory(str(error)) from error
    except (runtime.CUDARuntimeError, driver.CUDADriverError) as error:
        raise _translation(error.status, _CUDA_OUT_OF_MEMORY, _CUDA_NOT_SUPPORTED)(str(error)) from error
    except cublas.CUBLASError as error:
        raise _translation(error.status, _CUBLAS_ALLOC_FAILED, _CUBLAS_NOT_SUPPORTED)(str(error)) from error
    except cufft.CuFFTError as error:
        raise _translation(error.result, _CUFFT_ALLOC_FAILED, _CUFFT_NOT_SUPPORTED)(str(error)) from error
    except (compiler.CompileException, nvrtc.NVRTCError) as error:
        raise CompileFailed(str(error)) from error


def _translation(
    status: int, out_of_memory: int, not_supported: int
) -> type[OutOfMemory] | type[NotSupported] | type[LaunchFailed]:
    if status == out_of_memory:
        return OutOfMemory
    return NotSupported if status == not_supported else LaunchFailed


def device_count() -> int:
    """CUDA devices that this process can use; 0 where there is no driver."""
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError:
        return 0
