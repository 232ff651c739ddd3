"""Compiling our CUDA sources: through CuPy where there is a GPU, to a cubin where there is none."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

import numpy as np

from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.builds import kept_build
from conv_advisor.kernels.cuda.parts.epilogue import MACROS
from conv_advisor.kernels.cuda.parts.overlap import MACRO as OVERLAPS
from conv_advisor.kernels.cuda.parts.overlap import overlaps
from conv_advisor.kernels.cuda.parts.source import STORAGE_OF, Source, definitions_of

_compiling: Final[dict[tuple[Any, ...], threading.Lock]] = {}
"""A lock per module: layers of one network share most modules, and threads must not compile the same one twice."""

_NVRTC_OPTIONS: Final[dict[str, Any]] = {"std": "c++17", "ptxas_options": ["-v"]}


def compile_cubin(source: Source, storage: str, defines: dict[str, int], arch: str) -> tuple[bytes, str]:
    """Compile without a GPU or a driver, or take an earlier build from `kernels.builds`.

    Parameters
    ----------
    source : Source
    storage : str
        One of STORAGES.
    defines : dict
    arch : str
        E.g. ``sm_90``.

    Returns
    -------
    cubin : bytes
    log : str
        Warnings, and for each kernel its registers, stack and spills.
    """
    text = source.text()
    macros = [f"STORAGE_{storage}", *(f"{macro}={value}" for macro, value in defines.items())]

    def build(folder: Path) -> None:
        cubin, log = _compile(text, macros, arch)
        (folder / "cubin").write_bytes(cubin)
        (folder / "log").write_text(log)

    folder = kept_build("nvrtc", [text, *macros, arch, repr(_NVRTC_OPTIONS), *_toolkit()], build)
    return (folder / "cubin").read_bytes(), (folder / "log").read_text()


def _compile(text: str, macros: Sequence[str], arch: str) -> tuple[bytes, str]:
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(arch=arch, include_path=_include_path(), define_macro=list(macros), **_NVRTC_OPTIONS)
    log = io.StringIO()
    compiled = Program(text, "c++", options).compile("cubin", logs=log)
    return bytes(compiled.code), log.getvalue()


@cache
def _toolkit() -> list[str]:
    """The versions of the compiler and of its headers."""
    installed = ((distribution.name, distribution.version) for distribution in distributions())
    return sorted(f"{name} {version}" for name, version in installed if name.startswith(("cuda-", "nvidia-cuda-")))


def load_kernel(source: Source, kernel: str, dtype: DType, **defines: int) -> Any:
    """Compile a kernel for the current device and load it now, so that a later graph capture loads nothing.

    Parameters
    ----------
    source : Source
    kernel : str
        Name of the ``extern "C"`` function.
    dtype : DType
        x, weight and y have its storage type.
    **defines : int
        One of the source's sets of definitions, and those of an epilogue where the source takes one. Where the source
        overlaps with the kernel before it (`parts.overlap`), the kernel is compiled for that too.

    Returns
    -------
    kernel : cupy.RawKernel
    """
    if overlaps(source):
        defines[OVERLAPS] = 1
    module = (source.name, STORAGE_OF[dtype], tuple(defines.items()))
    with _compiling.setdefault(module, threading.Lock()):
        loaded = load_module(source, dtype, **defines).get_function(kernel)
        _ = loaded.kernel
    return loaded


def load_module(source: Source, dtype: DType, **defines: int) -> Any:
    """The module that `load_kernel` takes kernels from: a ``cupy.RawModule``, compiled once a process."""
    allowed = definitions_of(source, dtype)
    shared = (*(MACROS if source.takes_epilogue else ()), *((OVERLAPS,) if source.waits else ()))
    definitions = {macro: value for macro, value in defines.items() if macro not in shared}
    if definitions not in allowed:
        raise ValueError(f"{source.name}.cu is compiled with {allowed} for {dtype}, not {defines}")
    return _load_module(source, STORAGE_OF[dtype], tuple(defines.items()))


@cache
def _load_module(source: Source, storage: str, defines: tuple[tuple[str, int], ...]) -> Any:
    from conv_advisor.kernels.cuda.cubin import load_cubin

    options = (
        "-std=c++17",
        *(f"-I{path}" for path in _include_path()),
        f"-DSTORAGE_{storage}",
        *(f"-D{macro}={value}" for macro, value in defines),
    )
    return load_cubin(source.text(), source.name, options, source.architecture)


@cache
def _include_path() -> list[str]:
    from cuda import pathfinder

    folder = pathfinder.find_nvidia_header_directory("cudart")
    return [str(folder)] if folder else []


def shape_arguments(problem: ConvProblem, images: int | None = None) -> tuple[np.int32, ...]:
    """The arguments for a kernel's SHAPE parameters, for ``images`` images or the whole batch."""
    sizes = (
        *(images or problem.n, problem.c, problem.h, problem.w, problem.k, problem.r, problem.s, problem.p, problem.q),
        *(problem.stride_h, problem.stride_w, problem.pad_h, problem.pad_w),
        *(problem.dilation_h, problem.dilation_w, problem.groups),
    )
    return tuple(np.int32(size) for size in sizes)
