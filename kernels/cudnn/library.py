"""libcudnn: located, loaded and typed; only this module turns its statuses into this project's errors."""

from __future__ import annotations

import ctypes
import importlib.util
from ctypes import POINTER, c_double, c_float, c_int, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Final

from conv_advisor.data.errors import CompileFailed, LaunchFailed, NotSupported, OutOfMemory, RunError

SONAME: Final = "libcudnn.so.9"

_told: Final[dict[int, int]] = {}
"""The stream of each handle: setting the stream that a handle already has would cost a call."""

_SUCCESS: Final = 0
_DEPRECATED: Final = 1004
_BAD_PARAM: Final = 2000
_NOT_SUPPORTED: Final = 3000
_COMPILATION_FAILED: Final = 4001
_HOST_ALLOCATION_FAILED: Final = 4003
_DEVICE_ALLOCATION_FAILED: Final = 4004


class ForwardPerformance(ctypes.Structure):
    """cudnnConvolutionFwdAlgoPerf_t: one entry of the heuristic's result."""

    _fields_ = [
        ("algorithm", c_int),
        ("status", c_int),
        ("time", c_float),
        ("memory", c_size_t),
        ("determinism", c_int),
        ("math_type", c_int),
        ("reserved", c_int * 3),
    ]


_ARGUMENTS: Final[dict[str, tuple[type, ...]]] = {
    "cudnnCreate": (POINTER(c_void_p),),
    "cudnnSetStream": (c_void_p, c_void_p),
    "cudnnCreateTensorDescriptor": (POINTER(c_void_p),),
    "cudnnDestroyTensorDescriptor": (c_void_p,),
    "cudnnSetTensor4dDescriptor": (c_void_p, *[c_int] * 6),
    "cudnnCreateFilterDescriptor": (POINTER(c_void_p),),
    "cudnnDestroyFilterDescriptor": (c_void_p,),
    "cudnnSetFilter4dDescriptor": (c_void_p, *[c_int] * 6),
    "cudnnCreateConvolutionDescriptor": (POINTER(c_void_p),),
    "cudnnDestroyConvolutionDescriptor": (c_void_p,),
    "cudnnSetConvolution2dDescriptor": (c_void_p, *[c_int] * 8),
    "cudnnSetConvolutionGroupCount": (c_void_p, c_int),
    "cudnnSetConvolutionMathType": (c_void_p, c_int),
    "cudnnGetConvolutionForwardWorkspaceSize": (*[c_void_p] * 5, c_int, POINTER(c_size_t)),
    "cudnnGetConvolutionForwardAlgorithm_v7": (*[c_void_p] * 5, c_int, POINTER(c_int), POINTER(ForwardPerformance)),
    "cudnnConvolutionForward": (*[c_void_p] * 7, c_int, c_void_p, c_size_t, *[c_void_p] * 3),
    "cudnnCreateActivationDescriptor": (POINTER(c_void_p),),
    "cudnnDestroyActivationDescriptor": (c_void_p,),
    "cudnnSetActivationDescriptor": (c_void_p, c_int, c_int, c_double),
    "cudnnConvolutionBiasActivationForward": (*[c_void_p] * 7, c_int, c_void_p, c_size_t, *[c_void_p] * 8),
}


@cache
def load() -> ctypes.CDLL:
    """The library, from the wheel ``nvidia-cudnn-cu13`` where that is installed, else from the system.

    Raises
    ------
    NotSupported
        Neither has it.
    """
    try:
        library = ctypes.CDLL(_path())
    except OSError as error:
        raise NotSupported(f"cuDNN cannot be loaded: {error}") from error
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = c_int
    library.cudnnGetVersion.restype = c_size_t
    library.cudnnGetErrorString.argtypes = (c_int,)
    library.cudnnGetErrorString.restype = ctypes.c_char_p
    return library


def version() -> str:
    """The version of the library, such as ``9.19.1``."""
    number = load().cudnnGetVersion()
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


@cache
def handle() -> int:
    """The handle of this process, on the device that is current at the first call."""
    created = c_void_p()
    call("cudnnCreate", ctypes.byref(created))
    return created.value or 0


def handle_on(stream: int) -> int:
    """The handle, set to enqueue on this stream from now on; one thread at a time may use it."""
    if _told.get(handle()) != stream:
        call("cudnnSetStream", handle(), stream)
        _told[handle()] = stream
    return handle()


def call(function: str, *arguments: object) -> None:
    """Call a function of the library that returns a status.

    Raises
    ------
    RunError
        As `error_of` says.
    """
    library = load()
    status = getattr(library, function)(*arguments)
    if status != _SUCCESS:
        name = library.cudnnGetErrorString(status).decode()
        raise error_of(status)(f"{function}: {name} ({status})")


def error_of(status: int) -> type[RunError]:
    """The error that a status other than success means.

    Statuses are grouped by thousands: 1000 the library itself, 2000 a bad parameter, 3000 not supported, 4000 an
    internal error, 5000 a failed execution. A bad parameter means that cuDNN does not take the problem, since the
    problem was checked before.
    """
    if status in (_HOST_ALLOCATION_FAILED, _DEVICE_ALLOCATION_FAILED):
        return OutOfMemory
    if status == _COMPILATION_FAILED:
        return CompileFailed
    if status == _DEPRECATED or status // 1000 * 1000 in (_BAD_PARAM, _NOT_SUPPORTED):
        return NotSupported
    return LaunchFailed


def _path() -> str:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "cudnn" / "lib" / SONAME
        if path.exists():
            return str(path)
    return SONAME
