"""The GPUs that CUDA would open here as ``cuda:0``, ``cuda:1`` and so on, from the driver's own library.

The order is CUDA's: the fastest first unless CUDA_DEVICE_ORDER says otherwise, of those that CUDA_VISIBLE_DEVICES
allows; a slice of a GPU (MIG) has its own name. A separate process asks the driver, since a process that has started
CUDA cannot fork, and keeps memory on each GPU.
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
"""Long, since a driver that nothing keeps loaded takes seconds to start each GPU."""


@cache
def visible_gpus() -> tuple[str, ...]:
    """The name of each GPU, in order; empty where there is no driver, or it does not answer."""
    try:
        completed = subprocess.run(  # noqa: S603 - this file
            [sys.executable, "-I", "-S", __file__], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(completed.stdout.splitlines())


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
