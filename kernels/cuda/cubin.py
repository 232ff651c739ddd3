"""Modules of our sources, for one exact architecture: CuPy's own compile call cannot name sm_90a, which has wgmma.

They are kept in the user's cache (`kernels.builds`), and the next process loads them from there. That is faster than
CuPy's own lookup, which compiles an empty source for every set of options to compute the name to look for.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

from conv_advisor.data.errors import CompileFailed
from conv_advisor.kernels.builds import kept_build

_WHEELS: Final = ("nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl")
"""What brings the compiler and its headers."""


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
    CompileFailed
    cupy.cuda.compiler.CompileException
        Where CuPy compiles.
    """
    import cupy

    arch = arch or _own_architecture(int(cupy.cuda.Device().compute_capability))
    if arch is None:
        return cupy.RawModule(code=source, options=options)
    # CuPy opens the file again on every device.
    return cupy.RawModule(path=str(compiled(source, name, options, arch) / "cubin"))


@cache
def _own_architecture(capability: int) -> str | None:
    """The architecture of a device; None where this compiler does not know it yet: CuPy then compiles to PTX."""
    from cuda.bindings import nvrtc

    _, supported = nvrtc.nvrtcGetSupportedArchs()
    return f"sm_{capability}" if capability in supported else None


def compiled(source: str, name: str, options: tuple[str, ...], arch: str) -> Path:
    """Folder in the cache with the ``cubin`` of a source and the compiler's ``log``: of ptxas too, with its resources.

    Raises
    ------
    CompileFailed
    """
    options = (*options, f"--gpu-architecture={arch}", "--ptxas-options=-v")

    def build(folder: Path) -> None:
        cubin, log = _compile(source, name, options)
        (folder / "cubin").write_bytes(cubin)
        (folder / "log").write_text(log)

    return kept_build("nvrtc", [*_toolkit(), *options, source], build)


@cache
def _toolkit() -> tuple[str, ...]:
    """The versions of the compiler and of its headers, patch releases included: one may mend wrong code."""
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    wheels = sorted(f"{name} {wheel.version}" for name in _WHEELS for wheel in distributions(name=name))
    return f"nvrtc {major}.{minor}", *wheels


def _compile(source: str, name: str, options: tuple[str, ...]) -> tuple[bytes, str]:
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], [])
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        said = _room(nvrtc.nvrtcGetProgramLogSize(program)[1])
        nvrtc.nvrtcGetProgramLog(program, said)
        log = said.rstrip(b"\0").decode()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileFailed(f"{name}.cu with {' '.join(options)}:\n{log}")
        size = nvrtc.nvrtcGetCUBINSize(program)[1]
        cubin = _room(size)
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin[:size], log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _room(size: int) -> bytes:
    """Bytes for the compiler to write over: never one of those of length 0 or 1, which Python has once a process.

    An empty log is a single zero. Written over ``b" "``, it turned the spaces that the process printed into zeros, and
    those of format strings that it compiled after that into nothing.
    """
    return bytes(max(size, 2))
