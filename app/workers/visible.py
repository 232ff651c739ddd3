"""The GPUs that CUDA would open here as ``cuda:0``, ``cuda:1`` and so on, asked of the driver's own library.

Its order is CUDA's, the fastest first unless CUDA_DEVICE_ORDER says else, of those that CUDA_VISIBLE_DEVICES leaves;
a slice of a GPU (MIG) has a name of its own. The driver is asked in a process of its own, since one that has begun with
CUDA cannot fork, and keeps memory of each GPU.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from functools import cache
from typing import Final

_LIBRARY: Final = "libcuda.so.1"
_LONGEST_NAME: Final = 256
_TIMEOUT_S: Final = 60.0
"""A driver that nothing keeps loaded takes seconds to begin with each GPU."""


@cache
def visible_gpus() -> tuple[str, ...]:
    """The name of each, in order; empty where there is no driver, or it does not answer."""
    try:
        done = subprocess.run(  # noqa: S603 - this file
            [sys.executable, "-I", "-S", __file__], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(done.stdout.splitlines())


def _ask_driver() -> list[str]:
    cuda, count, names = ctypes.CDLL(_LIBRARY), ctypes.c_int(), []
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    for ordinal in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(_LONGEST_NAME)
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) or cuda.cuDeviceGetName(name, _LONGEST_NAME, device):
            return []
        names.append(name.value.decode(errors="replace"))
    return names


if __name__ == "__main__":
    sys.stdout.write("".join(f"{name}\n" for name in _ask_driver()))
