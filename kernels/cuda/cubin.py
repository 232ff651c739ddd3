"""Modules of our sources, for one exact architecture: CuPy's own compile call cannot name sm_90a, which has wgmma.

Cubins are stored in CuPy's cache folder, and the next process loads them from there. That is faster than CuPy's own
lookup, which compiles an empty source for every set of options to compute the name to look for.
"""

from __future__ import annotations

import os
import uuid
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def load_cubin(source: str, name: str, options: tuple[str, ...], arch: str | None) -> Any:
    """Compile with NVRTC, unless the cache has the cubin, and load on the current device: a ``cupy.RawModule``.

    Parameters
    ----------
    source : str
    name : str
        Name of the source in messages.
    options : tuple of str
    arch : str or None
        E.g. ``sm_90a``; None: that of the current device.

    Raises
    ------
    cupy.cuda.compiler.CompileException
    """
    import cupy

    arch = arch or _own_architecture(int(cupy.cuda.Device().compute_capability))
    if arch is None:
        return cupy.RawModule(code=source, options=options)
    # CuPy opens the file again on every device.
    return cupy.RawModule(path=str(compiled(source, name, (*options, f"--gpu-architecture={arch}", "-ftz=true"))))


@cache
def _own_architecture(capability: int) -> str | None:
    """The architecture of a device; None where this compiler does not know it yet: CuPy then compiles to PTX."""
    from cuda.bindings import nvrtc

    _, supported = nvrtc.nvrtcGetSupportedArchs()
    return f"sm_{capability}" if capability in supported else None


def compiled(source: str, name: str, options: tuple[str, ...]) -> Path:
    """Path in the cache of the cubin of a source, compiled with these options where it is not there yet.

    Raises
    ------
    cupy.cuda.compiler.CompileException
    """
    from cuda.bindings import nvrtc

    _, *version = nvrtc.nvrtcVersion()
    made_of = "\0".join([*map(str, version), *options, source])
    path = _folder() / f"{name}-{sha256(made_of.encode()).hexdigest()}.cubin"
    if not path.exists():
        unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            unfinished.write_bytes(_compile(source, name, options))
            unfinished.replace(path)  # whole or not at all: other processes look for it
        finally:
            unfinished.unlink(missing_ok=True)
    return path


def _folder() -> Path:
    """Our folder in CuPy's cache; where that cannot be written to, a folder that lasts as long as the process."""
    cupys = os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache"
    folder = Path(cupys) / "conv-advisor"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return Path(_passing_folder().name)
    return folder if os.access(folder, os.W_OK | os.X_OK) else Path(_passing_folder().name)


@cache
def _passing_folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="conv-advisor-")


def _compile(source: str, name: str, options: tuple[str, ...]) -> bytes:
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], [])
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            from cupy.cuda.compiler import CompileException

            log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
            nvrtc.nvrtcGetProgramLog(program, log)
            raise CompileException(log.decode(), source, name, options, "nvrtc")
        cubin: bytes = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)
