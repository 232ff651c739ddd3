"""Compiling our CUDA sources by NVRTC, alike where there is a GPU to load them on and where there is none."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import numpy as np

from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.parts.epilogue import MACROS
from conv_advisor.kernels.cuda.parts.overlap import MACRO as OVERLAPS
from conv_advisor.kernels.cuda.parts.overlap import overlaps
from conv_advisor.kernels.cuda.parts.source import STORAGE_OF, Source, definitions_of

_compiling: Final[dict[tuple[Any, ...], threading.Lock]] = {}
"""A lock per module: layers of one network share most modules, and threads must not compile the same one twice."""


def compile_cubin(source: Source, storage: str, defines: dict[str, int], arch: str) -> tuple[bytes, str]:
    """Compile as `load_kernel` does, without a GPU or a driver, or take an earlier build from the cache.

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

    Raises
    ------
    CompileFailed
    """
    from conv_advisor.kernels.cuda.cubin import compiled

    folder = compiled(source.text(), source.name, _options(storage, defines.items()), arch)
    return (folder / "cubin").read_bytes(), (folder / "log").read_text()


def _options(storage: str, defines: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """What NVRTC is told, but for the architecture; CuPy tells it too to flush denormals, in all that it compiles."""
    return (
        "-std=c++17",
        "-ftz=true",
        *(f"-I{path}" for path in _include_path()),
        f"-DSTORAGE_{storage}",
        *(f"-D{macro}={value}" for macro, value in defines),
    )


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

    return load_cubin(source.text(), source.name, _options(storage, defines), source.architecture)


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
