"""Launcher of winograd_large.cu or winograd_large_nhwc.cu, and winograd_gemm.cu."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any, Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.cuda.compile import load_kernel, shape_arguments
from conv_advisor.kernels.cuda.parts.epilogue import addresses, defines_of
from conv_advisor.kernels.cuda.parts.launching import Start, prepare_start
from conv_advisor.kernels.cuda.parts.overlap import MACRO, overlaps
from conv_advisor.kernels.cuda.winograd_large import plan as plans
from conv_advisor.kernels.scratch import Scratch
from conv_advisor.kernels.variant import Launch

_THREADS: Final = 256
_Y_THREADS: Final = 128
_WAITING: Final = {MACRO: 1}
"""A definition of all kernels: those of one launch overlap each other, whether alone or in a network."""


def prepare(problem: ConvProblem, device: Device, workspace_limit_bytes: int) -> Launch:
    """Find the largest magnitudes of images and filters; then transform, multiply and transform back each chunk."""
    return launch(problem, device, plans.plan_cut(problem, device, workspace_limit_bytes))


def launch(problem: ConvProblem, device: Device, cut: plans.Cut) -> Launch:
    """The launches of this cut: each kernel begins while the one before it ends, and waits for it."""
    u, v, m, maxima, exponents = map(Scratch, plans.scratch_bytes(problem, cut.tile, cut.images))
    parts = plans.image_parts(problem, device)
    find_maxima = prepare_start(
        _transform(problem, "maxima"),
        (problem.n * parts + problem.k, 1, 1),
        _THREADS,
        0,
        (parts, *_shape(problem, problem.n)),
        overlaps=overlaps(plans.TRANSFORM_SOURCES[problem.layout]),
    )
    left, right = (v, u) if plans.has_tiles_left(problem) else (u, v)
    bytes_of_x = 4 * problem.c * problem.h * problem.w

    def into(channels: int) -> Callable[..., None]:
        chunks = [
            (begin, _chunk(problem, device, cut, min(cut.images, problem.n - begin), channels, has_filters=begin == 0))
            for begin in range(0, problem.n, cut.images)
        ]
        bytes_of_y = 4 * channels * problem.p * problem.q

        def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
            x_begin, weight_begin = x.data.ptr, weight.data.ptr
            filter_maxima, filter_exponents = maxima.ptr + 4 * problem.n * parts, exponents.ptr + 4 * problem.n
            find_maxima(x_begin, weight_begin, maxima.ptr)
            for begin, (transform, multiply, transform_back) in chunks:
                image_maxima, image_exponents = maxima.ptr + 4 * begin * parts, exponents.ptr + 4 * begin
                images, outputs = x_begin + begin * bytes_of_x, begin * bytes_of_y
                scales = (image_exponents, filter_exponents)
                transform(images, weight_begin, image_maxima, filter_maxima, u.ptr, v.ptr, *scales)
                multiply(left.ptr, right.ptr, m.ptr)
                transform_back(m.ptr, *scales, y.data.ptr + outputs, *addresses(problem.epilogue, ends, outputs))

        return run

    is_within = problem.layout is Layout.NHWC and not problem.epilogue.residual
    return Launch(
        into(problem.k),
        plans.workspace_bytes(problem, cut),
        scratch=(u, v, m, maxima, exponents),
        by_address=True,
        within=into if is_within else None,
    )


def _chunk(
    problem: ConvProblem, device: Device, cut: plans.Cut, images: int, channels: int, *, has_filters: bool
) -> tuple[Start, Start, Start]:
    """The kernels of a chunk of ``images`` images: transform, of the filters too if asked, multiply, transform back.

    In nhwc y is some of so many channels.
    """
    tiles, slices, parts = (
        images * plans.tiles_of(problem),
        plans.slices_of(problem),
        plans.image_parts(problem, device),
    )
    shape = _shape(problem, images)
    rows_u, rows_v = plans.rows_u(problem, cut.tile), plans.rows_v(problem, cut.tile, images)
    rows_left, rows_right = (tiles, rows_u) if plans.has_tiles_left(problem) else (problem.k, rows_v)
    transforms = (ceil(tiles / plans.BLOCK_TILES) + has_filters * ceil(rows_u / plans.BLOCK_TILES)) * slices
    behind = partial(prepare_start, overlaps=True)
    warps, sizes = _warps_back(problem, device, images, channels)
    multiply = load_kernel(plans.GEMM_SOURCE, "winograd_gemm", problem.dtype, **cut.tile.defines, **_WAITING)
    return (
        behind(
            _transform(problem, "transform"),
            (transforms, 1, 1),
            _THREADS,
            plans.staged_bytes(problem),
            (parts, *shape),
        ),
        behind(
            multiply,
            (plans.gemm_blocks(problem, cut, images), 1, 1),
            cut.tile.threads,
            cut.tile.shared_bytes,
            (rows_left, slices, plans.positions_of(problem), rows_right),
        ),
        behind(
            _transform(problem, "transform_y"),
            (ceil(warps / (_Y_THREADS // 32)), 1, 1),
            _Y_THREADS,
            0,
            (*sizes, *shape),
        ),
    )


def _shape(problem: ConvProblem, images: int) -> tuple[int, ...]:
    return tuple(map(int, shape_arguments(problem, images)))


def _transform(problem: ConvProblem, step: str) -> Any:
    source = plans.TRANSFORM_SOURCES[problem.layout]
    defines = {"TILE": plans.tile_of(problem), **defines_of(problem.epilogue), **_WAITING}
    return load_kernel(source, f"winograd_{step}", problem.dtype, **defines)


def _warps_back(problem: ConvProblem, device: Device, images: int, channels: int) -> tuple[int, tuple[int, ...]]:
    """Warps that transform back, and their arguments before the shape: for nchw, the filters of a run of tiles."""
    tiles = images * plans.tiles_of(problem)
    if problem.layout is Layout.NHWC:
        return tiles * ceil(problem.k / 32), (channels,)
    filters = plans.filters_of_run(problem, device, images)
    return ceil(tiles / plans.run_tiles(problem)) * ceil(problem.k / filters), (filters,)
