"""Compiling our CUDA sources: through CuPy where there is a GPU, to a cubin where there is none."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

import numpy as np

from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.builds import kept_build
from conv_advisor.kernels.cuda.cuconv import plan as cuconv_plan
from conv_advisor.kernels.cuda.depthwise import plan as depthwise_choice
from conv_advisor.kernels.cuda.direct import plan as direct_plan
from conv_advisor.kernels.cuda.fft import plan as fft_plan
from conv_advisor.kernels.cuda.grouped import cut as grouped_plan
from conv_advisor.kernels.cuda.implicit_gemm import plan as implicit_gemm_plan
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import plan as implicit_gemm_nhwc_plan
from conv_advisor.kernels.cuda.implicit_gemm_tensor import plan as implicit_gemm_choice
from conv_advisor.kernels.cuda.pointwise import plan as pointwise_plan
from conv_advisor.kernels.cuda.winograd_large import plan as winograd_large_plan

FOLDER: Final = Path(__file__).parent
PARTS: Final = FOLDER / "parts"
"""What sources of several families include."""
STORAGES: Final = ("FLOAT32", "FLOAT16", "BFLOAT16")

_FILTERS_OF_CUCONV: Final = tuple({"FILTERS": filters} for filters in cuconv_plan.FILTERS)
_TILES_OF_FFT: Final = tuple({"TILE_N": tile_n, "TILE_K": tile_k} for tile_n, tile_k in fft_plan.FFT_TILES)
_CUTS_OF_IMPLICIT_GEMM: Final = tuple(
    {**tile.defines, "LOADING": int(loading)}
    for menu in (implicit_gemm_plan.FMA, implicit_gemm_plan.TF32, implicit_gemm_plan.HALF)
    for tile in menu.tiles
    for loading in implicit_gemm_plan.Loading
)

ARCHITECTURES: Final = ("sm_80", "sm_90", "sm_100")
"""What every source is compiled for where there is no GPU, unless it is for one architecture alone."""
ARCHITECTURE: Final = {"implicit_gemm_nhwc": "sm_90a", "pointwise": "sm_90a", "winograd_gemm": "sm_90a"}
"""Sources for one exact architecture; the others are for any."""

_FLOAT32_ALONE: Final = ("winograd_large", "winograd_gemm")

INSTANTIATIONS: Final[dict[str, tuple[dict[str, int], ...]]] = {
    "direct": direct_plan.DEFINES,
    "cuconv": _FILTERS_OF_CUCONV,
    "depthwise": depthwise_choice.DEFINES,
    "depthwise_any": ({},),
    "depthwise_channels": depthwise_choice.DEFINES_CHANNELS,
    "depthwise_nhwc": depthwise_choice.DEFINES_NHWC,
    "im2col": ({},),
    "implicit_gemm": _CUTS_OF_IMPLICIT_GEMM,
    "implicit_gemm_nhwc": implicit_gemm_nhwc_plan.DEFINES,
    "implicit_gemm_tensor": tuple(
        defines
        for dtype in DType
        if dtype is not DType.BFLOAT16
        for defines in implicit_gemm_choice.every_define(dtype)
    ),
    "nhwc_pack": implicit_gemm_nhwc_plan.PACK_DEFINES,
    "fft": _TILES_OF_FFT,
    "pointwise": pointwise_plan.DEFINES,
    "grouped": grouped_plan.DEFINES,
    "winograd": ({},),
    "winograd_large": winograd_large_plan.TRANSFORM_DEFINES,
    "winograd_gemm": winograd_large_plan.GEMM_DEFINES,
}
"""Every source, and the definitions beside the storage type that a launcher may compile it with."""

_BY_STORAGE: Final[dict[str, Callable[[str], tuple[dict[str, int], ...]]]] = {
    "depthwise_channels": lambda storage: depthwise_choice.channels_defines(4 if storage == "FLOAT32" else 2),
    "depthwise_nhwc": lambda storage: depthwise_choice.staged_defines(4 if storage == "FLOAT32" else 2),
    "grouped": grouped_plan.defines_of,
    "implicit_gemm_nhwc": implicit_gemm_nhwc_plan.defines_for,
}

_NVRTC_OPTIONS: Final[dict[str, Any]] = {"std": "c++17", "ptxas_options": ["-v"]}

_INCLUDE: Final = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)

STORAGE_OF: Final = {
    DType.FLOAT32: "FLOAT32",
    DType.TF32: "FLOAT32",
    DType.FLOAT16: "FLOAT16",
    DType.BFLOAT16: "BFLOAT16",
}


def instantiations(name: str, storage: str) -> tuple[dict[str, int], ...]:
    """What a launcher may define for a source with this storage type."""
    if name in _FLOAT32_ALONE and storage != "FLOAT32":
        return ()
    if name == "pointwise":
        return pointwise_plan.instantiations_for(dtype for dtype in DType if STORAGE_OF[dtype] == storage)
    if name in _BY_STORAGE:
        return _BY_STORAGE[name](storage)
    dtypes = [dtype for dtype, its_storage in STORAGE_OF.items() if its_storage == storage]
    if name == "implicit_gemm_tensor":
        return tuple(defines for dtype in dtypes for defines in implicit_gemm_choice.every_define(dtype))
    if name != "implicit_gemm":
        return INSTANTIATIONS[name]
    tiles = [tile.defines for dtype in dtypes for tile in implicit_gemm_plan.menu_for(dtype).tiles]
    return tuple(d for d in INSTANTIATIONS[name] if {k: v for k, v in d.items() if k != "LOADING"} in tiles)


def architectures(name: str) -> tuple[str, ...]:
    """The architectures that a source is for, among those we name."""
    return (ARCHITECTURE[name],) if name in ARCHITECTURE else ARCHITECTURES


@cache
def source_path(name: str) -> Path:
    """Where ``<name>.cu`` is: in the folder of its family."""
    (path,) = FOLDER.glob(f"*/{name}.cu")
    return path


def read_source(name: str) -> str:
    """One translation unit: the shared head, ``<name>.cu`` and its headers; line numbers are those of the files.

    A header lies beside its source, or in ``parts/``.
    """
    source = source_path(name)
    head, body = (PARTS / "storage.cuh").read_text(), source.read_text()

    def included(match: re.Match[str]) -> str:
        line = body.count("\n", 0, match.end()) + 2
        own = source.with_name(match[1])
        header = own if own.exists() else PARTS / match[1]
        return f'#line 1 "{match[1]}"\n{header.read_text()}\n#line {line} "{name}.cu"'

    return f'{head}\n#line 1 "{name}.cu"\n{_INCLUDE.sub(included, body)}'


def compile_cubin(name: str, storage: str, defines: dict[str, int], arch: str) -> tuple[bytes, str]:
    """Compile without a GPU or a driver, or take from `kernels.builds` what was compiled before.

    Parameters
    ----------
    name : str
        Of the source.
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
    source = read_source(name)
    macros = [f"STORAGE_{storage}", *(f"{macro}={value}" for macro, value in defines.items())]

    def build(folder: Path) -> None:
        cubin, log = _compile(source, macros, arch)
        (folder / "cubin").write_bytes(cubin)
        (folder / "log").write_text(log)

    kept = kept_build("nvrtc", [source, *macros, arch, repr(_NVRTC_OPTIONS), *_toolkit()], build)
    return (kept / "cubin").read_bytes(), (kept / "log").read_text()


def _compile(source: str, macros: Sequence[str], arch: str) -> tuple[bytes, str]:
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(arch=arch, include_path=_include_path(), define_macro=list(macros), **_NVRTC_OPTIONS)
    log = io.StringIO()
    compiled = Program(source, "c++", options).compile("cubin", logs=log)
    return bytes(compiled.code), log.getvalue()


@cache
def _toolkit() -> list[str]:
    """The versions of the compiler and of its headers."""
    found = ((each.name, each.version) for each in distributions())
    return sorted(f"{name} {version}" for name, version in found if name.startswith(("cuda-", "nvidia-cuda-")))


def load_kernel(name: str, kernel: str, dtype: DType, **defines: int) -> Any:
    """Compile a kernel for the current device and load it, so that a graph capture that uses it loads nothing.

    Parameters
    ----------
    name : str
        Of the source.
    kernel : str
        Of the ``extern "C"`` function.
    dtype : DType
        Whose storage type x, weight and y have.
    **defines : int
        One of INSTANTIATIONS.

    Returns
    -------
    kernel : cupy.RawKernel
    """
    loaded = load_module(name, dtype, **defines).get_function(kernel)
    _ = loaded.kernel
    return loaded


def load_module(name: str, dtype: DType, **defines: int) -> Any:
    """The module that `load_kernel` takes kernels from: a ``cupy.RawModule``, compiled once a process."""
    if defines not in INSTANTIATIONS[name]:
        raise ValueError(f"{name}.cu is compiled with {INSTANTIATIONS[name]}, not {defines}")
    return _load_module(name, STORAGE_OF[dtype], tuple(defines.items()))


@cache
def _load_module(name: str, storage: str, defines: tuple[tuple[str, int], ...]) -> Any:
    import cupy

    options = (
        "-std=c++17",
        *(f"-I{path}" for path in _include_path()),
        f"-DSTORAGE_{storage}",
        *(f"-D{macro}={value}" for macro, value in defines),
    )
    if name in ARCHITECTURE:
        from conv_advisor.kernels.cuda.cubin import load_cubin

        return load_cubin(read_source(name), name, options, ARCHITECTURE[name])
    return cupy.RawModule(code=read_source(name), options=options)


@cache
def _include_path() -> list[str]:
    from cuda import pathfinder

    folder = pathfinder.find_nvidia_header_directory("cudart")
    return [str(folder)] if folder else []


def shape_arguments(problem: ConvProblem, images: int | None = None) -> tuple[np.int32, ...]:
    """What a kernel's SHAPE parameters take, for so many images or the whole batch."""
    sizes = (
        *(images or problem.n, problem.c, problem.h, problem.w, problem.k, problem.r, problem.s, problem.p, problem.q),
        *(problem.stride_h, problem.stride_w, problem.pad_h, problem.pad_w),
        *(problem.dilation_h, problem.dilation_w, problem.groups),
    )
    return tuple(np.int32(size) for size in sizes)
