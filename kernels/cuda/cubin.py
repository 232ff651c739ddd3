"""Modules for one exact architecture, which CuPy's own compile call cannot name: sm_90a has wgmma."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cupy


def load_cubin(source: str, name: str, options: tuple[str, ...], arch: str) -> Any:
    """Compile by NVRTC and load on the current device: a ``cupy.RawModule``.

    Parameters
    ----------
    source : str
    name : str
        Of the source, for messages.
    options : tuple of str
    arch : str
        E.g. ``sm_90a``.

    Raises
    ------
    cupy.cuda.compiler.CompileException
    """
    cubin = _compile(source, name, (*options, f"--gpu-architecture={arch}", "-ftz=true"))
    path = Path(_folder().name) / f"{sha256(cubin).hexdigest()}.cubin"
    path.write_bytes(cubin)
    return cupy.RawModule(path=str(path))


@cache
def _folder() -> TemporaryDirectory[str]:
    # CuPy opens the file again on every device: it lives as long as the process.
    return TemporaryDirectory(prefix="conv-advisor-")


def _compile(source: str, name: str, options: tuple[str, ...]) -> bytes:
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], [])
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
            nvrtc.nvrtcGetProgramLog(program, log)
            raise cupy.cuda.compiler.CompileException(log.decode(), source, name, options, "nvrtc")
        cubin: bytes = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)
