"""Launcher of implicit_gemm_nhwc.cu, and of nhwc_pack.cu before it where x and weight have to be packed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.cuda.compile import load_kernel, shape_arguments
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import packing
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import plan as plans
from conv_advisor.kernels.cuda.implicit_gemm_nhwc.menu import Tile
from conv_advisor.kernels.cuda.parts.division import division
from conv_advisor.kernels.cuda.parts.epilogue import addresses, defines_of
from conv_advisor.kernels.cuda.parts.launching import Start, launch_behind, launch_of, prepare_start, with_within
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.overlap import as_now, overlaps
from conv_advisor.kernels.cuda.parts.shapes import is_pointwise
from conv_advisor.kernels.scratch import Scratch
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Launch

_CHANNELS: Final = 1
"""Index of the channels among the shape's arguments."""


def prepare(problem: ConvProblem, device: Device, workspace_limit_bytes: int) -> Launch:
    """One kernel where x and weight can be read as they are; else one that packs images and one that multiplies."""
    problem = packing.by_patches(problem)
    images = packing.images_at_a_time(problem, workspace_limit_bytes)
    return launch(problem, device, plans.plan_cut(problem, device, images), images)


def launch(problem: ConvProblem, _device: Device, cut: Cut[Tile], images: int | None = None) -> Launch:
    """The launches with this tile and cluster, for ``images`` at a time, by default as many as the limit allows."""
    takes_prologue = is_pointwise(problem)
    problem = packing.by_patches(problem)
    images = images or packing.images_at_a_time(problem, DEFAULT_WORKSPACE_LIMIT_BYTES)
    kernel = _load(problem, cut)
    if not packing.is_packed(problem):

        def into(channels: int) -> Launch:
            return launch_of(_multiplication(kernel, problem, problem.n, cut, channels), problem.epilogue)

        @cache
        def kernel_of_prologue() -> Any:  # few are asked for it, and compiling it takes as long as the other
            return _load(problem, cut, has_prologue=True)

        def behind(channels: int) -> Callable[..., None]:
            start = _multiplication(kernel_of_prologue(), problem, problem.n, cut, x_channels=channels)
            return launch_behind(start, problem.epilogue)

        whole = into(problem.k) if problem.epilogue.residual else with_within(into, problem.k)
        whole.behind_prologue = as_now(behind) if takes_prologue else None
        return whole
    bytes_of_weight, itemsize = packing.weight_bytes(problem), problem.dtype.itemsize_bytes
    workspace = Scratch(bytes_of_weight + images * packing.image_bytes(problem))
    chunks = [(begin, min(images, problem.n - begin)) for begin in range(0, problem.n, images)]
    steps = [
        (
            begin * problem.c * problem.h * problem.w * itemsize,
            begin * problem.k * problem.p * problem.q * itemsize,
            start_packing(problem, count, has_weight=begin == 0),
            # Only the kernel that writes nchw waits for the packing by itself.
            _multiplication(kernel, problem, count, cut, is_behind_packing=problem.layout is Layout.NCHW),
        )
        for begin, count in chunks
    ]

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        packed_weight = workspace.ptr
        packed_x = packed_weight + bytes_of_weight
        for x_offset, y_offset, pack, multiply in steps:
            pack(x.data.ptr + x_offset, weight.data.ptr, packed_x, packed_weight)
            read = addresses(problem.epilogue, ends, y_offset)
            multiply(packed_x, packed_weight, y.data.ptr + y_offset, *read)

    return Launch(run, workspace.nbytes, scratch=(workspace,), by_address=True)


def start_packing(problem: ConvProblem, images: int, *, has_weight: bool) -> Start:
    """The packing of ``images`` images, and of weight: it takes x, weight, and where they are packed to."""
    kernel = load_kernel(packing.PACK_SOURCE, "nhwc_pack", problem.dtype, **packing.pack_defines(problem))
    blocks, sizes = packing.pack_arguments(problem, images, has_weight=has_weight)
    begins_early = overlaps(packing.PACK_SOURCE)
    return prepare_start(
        kernel, (blocks, 1, 1), packing.PACK_THREADS, 0, sizes, overlaps=begins_early, is_structure=True
    )


def _load(problem: ConvProblem, cut: Cut[Tile], *, has_prologue: bool = False) -> Any:
    """The kernel that multiplies."""
    defines = cut.tile.defines(problem.layout, is_pointwise=bool(is_pointwise(problem)), has_prologue=has_prologue)
    return load_kernel(plans.SOURCE, "implicit_gemm_nhwc", problem.dtype, **defines, **defines_of(problem.epilogue))


def _multiplication(
    kernel: Any,
    problem: ConvProblem,
    images: int,
    cut: Cut[Tile],
    channels: int | None = None,
    *,
    x_channels: int = 0,
    is_behind_packing: bool = False,
) -> Start:
    """The multiplication of ``images`` images, into so many channels, by default the problem's filters alone.

    With a prologue, for which the kernel is made, where x is the first of ``x_channels``.
    """
    shared_bytes = int(cut.tile.shared_bytes(problem.layout, cut.cluster))
    shape = [int(size) for size in shape_arguments(problem, images)]
    shape[_CHANNELS] = packing.packed_channels(problem)
    shape += [*division(problem.p * problem.q), *division(problem.q), channels or problem.k]
    shape += [x_channels] if x_channels else []
    grid = (plans.blocks_for(cut, problem, images), 1, 1)
    begins_early = is_behind_packing or overlaps(plans.SOURCE)
    return prepare_start(
        kernel, grid, cut.tile.threads, shared_bytes, shape, cluster=cut.cluster, overlaps=begins_early
    )
