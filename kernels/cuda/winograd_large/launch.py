"""Launcher of winograd_large.cu or winograd_large_nhwc.cu, and winograd_gemm.cu."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.cuda.compile import load_kernel, shape_arguments
from conv_advisor.kernels.cuda.parts.arithmetic import SHARED_BYTES
from conv_advisor.kernels.cuda.parts.epilogue import addresses, defines_of
from conv_advisor.kernels.cuda.winograd_large import plan as plans
from conv_advisor.kernels.scratch import Scratch
from conv_advisor.kernels.variant import Launch

_THREADS: Final = 256
_Y_THREADS: Final = 128


def prepare(problem: ConvProblem, device: Device, workspace_limit_bytes: int) -> Launch:
    """Largest magnitudes of images and filters; then images by the chunk: transform, multiply, transform back."""
    return launch(problem, device, plans.plan_cut(problem, device, workspace_limit_bytes))


def launch(problem: ConvProblem, device: Device, cut: plans.Cut) -> Launch:
    """The launches of this cut."""
    defines = {"TILE": plans.tile_of(problem), **defines_of(problem.epilogue)}
    find_maxima, transform, transform_back = (
        load_kernel(plans.TRANSFORM_SOURCES[problem.layout], f"winograd_{step}", problem.dtype, **defines)
        for step in ("maxima", "transform", "transform_y")
    )
    multiply = load_kernel(plans.GEMM_SOURCE, "winograd_gemm", problem.dtype, **cut.tile.defines)
    staged_bytes, ring_bytes = plans.staged_bytes(problem), cut.tile.shared_bytes
    for kernel, shared_bytes in ((transform, staged_bytes), (multiply, ring_bytes)):
        if shared_bytes > SHARED_BYTES:
            # Kernels are shared: another problem with the same tile may have asked for more.
            kernel.max_dynamic_shared_size_bytes = max(shared_bytes, kernel.max_dynamic_shared_size_bytes)
    u, v, m, maxima, exponents = map(Scratch, plans.scratch_bytes(problem, cut.tile, cut.images))
    parts, slices, rows_u = (
        plans.image_parts(problem, device),
        plans.slices_of(problem),
        plans.rows_u(problem, cut.tile),
    )
    filter_blocks = ceil(rows_u / plans.BLOCK_TILES) * slices

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        filter_maxima, filter_exponents = maxima.ptr + 4 * problem.n * parts, exponents.ptr + 4 * problem.n
        _start(
            find_maxima,
            problem.n * parts + problem.k,
            _THREADS,
            0,
            (x, weight, maxima.ptr, np.int32(parts), *shape_arguments(problem)),
        )
        for begin in range(0, problem.n, cut.images):
            images = min(cut.images, problem.n - begin)
            tiles, rows_v = images * plans.tiles_of(problem), plans.rows_v(problem, cut.tile, images)
            operands, rows_left, rows_right = (u.ptr, v.ptr), problem.k, rows_v
            if plans.has_tiles_left(problem):
                operands, rows_left, rows_right = (v.ptr, u.ptr), tiles, rows_u
            shape = shape_arguments(problem, images)
            x_begin = x.data.ptr + begin * problem.c * problem.h * problem.w * 4
            y_offset = begin * problem.k * problem.p * problem.q * 4
            outputs = (y.data.ptr + y_offset, *addresses(problem.epilogue, ends, y_offset))
            image_maxima, image_exponents = maxima.ptr + 4 * begin * parts, exponents.ptr + 4 * begin
            _start(
                transform,
                ceil(tiles / plans.BLOCK_TILES) * slices + (0 if begin else filter_blocks),
                _THREADS,
                staged_bytes,
                (
                    *(x_begin, weight, image_maxima, filter_maxima, u.ptr, v.ptr),
                    *(image_exponents, filter_exponents),
                    np.int32(parts),
                    *shape,
                ),
            )
            _start(
                multiply,
                plans.gemm_blocks(problem, cut, images),
                cut.tile.threads,
                ring_bytes,
                (*operands, m.ptr, *map(np.int32, (rows_left, slices, plans.positions_of(problem), rows_right))),
            )
            warps, sizes = _warps_back(problem, device, images)
            _start(
                transform_back,
                ceil(warps / (_Y_THREADS // 32)),
                _Y_THREADS,
                0,
                (m.ptr, image_exponents, filter_exponents, *outputs, *sizes, *shape),
            )

    return Launch(run, plans.workspace_bytes(problem, cut), scratch=(u, v, m, maxima, exponents))


def _warps_back(problem: ConvProblem, device: Device, images: int) -> tuple[int, tuple[np.int32, ...]]:
    """Warps that transform back, and what they take before the shape: the filters of a run of tiles."""
    tiles = images * plans.tiles_of(problem)
    if problem.layout is Layout.NHWC:
        return tiles * ceil(problem.k / 32), ()
    filters = plans.filters_of_run(problem, device, images)
    return ceil(tiles / plans.run_tiles(problem)) * ceil(problem.k / filters), (np.int32(filters),)


def _start(kernel: Any, blocks: int, threads: int, shared_bytes: int, arguments: tuple[Any, ...]) -> None:
    kernel((blocks,), (threads,), arguments, shared_mem=shared_bytes)
