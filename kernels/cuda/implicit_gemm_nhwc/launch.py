"""Launcher of implicit_gemm_nhwc.cu, and of nhwc_pack.cu before it where x and weight have to be packed."""

from __future__ import annotations

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
from conv_advisor.kernels.cuda.parts.overlap import overlaps
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
    if not packing.is_packed(problem):

        def into(channels: int) -> Launch:
            return launch_of(_multiplication(problem, problem.n, cut, channels), problem.epilogue)

        whole = into(problem.k) if problem.epilogue.residual else with_within(into, problem.k)
        if takes_prologue:
            whole.behind_prologue = lambda channels: launch_behind(
                _multiplication(problem, problem.n, cut, x_channels=channels), problem.epilogue
            )
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
            _multiplication(problem, count, cut, is_behind_packing=problem.layout is Layout.NCHW),
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


def _multiplication(
    problem: ConvProblem,
    images: int,
    cut: Cut[Tile],
    channels: int | None = None,
    *,
    x_channels: int = 0,
    is_behind_packing: bool = False,
) -> Start:
    """The multiplication of ``images`` images, into so many channels, by default the problem's filters alone.

    With a prologue where x is the first of ``x_channels``.
    """
    defines = cut.tile.defines(problem.layout, is_pointwise=bool(is_pointwise(problem)), has_prologue=x_channels > 0)
    defines |= defines_of(problem.epilogue)
    kernel = load_kernel(plans.SOURCE, "implicit_gemm_nhwc", problem.dtype, **defines)
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
