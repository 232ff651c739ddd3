"""Launcher of implicit_gemm_tma.cu."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.compile import load_kernel
from conv_advisor.kernels.cuda.implicit_gemm_tma import maps
from conv_advisor.kernels.cuda.implicit_gemm_tma import plan as plans
from conv_advisor.kernels.cuda.implicit_gemm_tma.encoding import encoded
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import THREADS, Tile, row_bytes_of
from conv_advisor.kernels.cuda.parts.epilogue import addresses, defines_of
from conv_advisor.kernels.cuda.parts.launching import prepare_start
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.overlap import overlaps
from conv_advisor.kernels.cuda.parts.shapes import is_dense
from conv_advisor.kernels.variant import Launch

_KEPT: Final = 256
"""Sets of maps that a launch keeps: one for each set of operands that take turns, as do layers of one shape. With one
too few, every launch would make its maps anew."""


def prepare(problem: ConvProblem, device: Device, _workspace_limit_bytes: int) -> Launch:
    """One launch, with the cut of the kernel's own rule."""
    return launch(problem, device, plans.plan_cut(problem, device))


def launch(problem: ConvProblem, device: Device, cut: Cut[Tile]) -> Launch:
    """One launch with this cut."""
    tile, is_split = cut.tile, cut.cluster > 1
    defines = tile.defines(row_bytes_of(problem), is_dense=bool(is_dense(problem)), is_split=is_split)
    kernel = load_kernel(plans.SOURCE, "implicit_gemm_tma", problem.dtype, **defines, **defines_of(problem.epilogue))
    sizes = (
        *(problem.c, problem.k, problem.r, problem.s),
        *(maps.pixels_of(problem), problem.p * problem.q, problem.q),
        *(problem.stride_h, problem.stride_w, problem.pad_h, problem.pad_w, problem.dilation_h, problem.dilation_w),
        *plans.tiles_of(tile, problem),
    )
    start = prepare_start(
        kernel,
        (plans.blocks_of(cut, problem, device), 1, 1),
        THREADS,
        tile.shared_bytes,
        sizes,
        cluster=cut.cluster,
        overlaps=overlaps(plans.SOURCE),
        is_structure=True,
    )
    of_outputs = (
        maps.y_map(problem, is_split=is_split),
        DType.FLOAT32 if problem.dtype is DType.TF32 else problem.dtype,
    )
    described: tuple[tuple[maps.Map, DType], ...] = (
        (maps.x_map(problem, tile), problem.dtype),
        (maps.weight_map(problem, tile), problem.dtype),
        *([of_outputs] * (1 + problem.epilogue.residual)),
    )

    # Operands stay where they are while a network runs: their maps are made once.
    @lru_cache(_KEPT)
    def maps_at(*places: int) -> tuple[Any, ...]:
        return tuple(encoded(*each, place) for each, place in zip(described, places, strict=True))

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        of_ends = addresses(problem.epilogue, ends)
        residual = of_ends[-1:] if problem.epilogue.residual else ()
        start(*maps_at(x.data.ptr, weight.data.ptr, y.data.ptr, *residual), *of_ends)

    return Launch(run, by_address=True)
