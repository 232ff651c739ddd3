"""Launcher of implicit_gemm_tma_transposed.cu, and of nhwc_pack.cu before it where x is not read as it lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.compile import load_kernel
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import packing
from conv_advisor.kernels.cuda.implicit_gemm_nhwc.launch import start_packing
from conv_advisor.kernels.cuda.implicit_gemm_tma import maps
from conv_advisor.kernels.cuda.implicit_gemm_tma.launch import kept_maps, sizes_of_layer
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import row_bytes_of, stages_of
from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed import forms
from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed import plan as plans
from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed.forms import BOX_PIXELS
from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed.menu import Tile
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.division import divider
from conv_advisor.kernels.cuda.parts.epilogue import addresses, defines_of
from conv_advisor.kernels.cuda.parts.launching import Start, prepare_start
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.overlap import overlaps
from conv_advisor.kernels.scratch import Scratch
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Launch

_PLANE_ROW_BYTES: Final = 128
"""Bytes of the pixels of a channel in a box of planes."""


def prepare(problem: ConvProblem, device: Device, workspace_limit_bytes: int) -> Launch:
    """One kernel where x is read as it lies; else one that packs images and one that multiplies."""
    images = forms.images_at_a_time(problem, workspace_limit_bytes)
    return launch(problem, device, plans.plan_cut(problem, device, images), images)


def launch(problem: ConvProblem, device: Device, cut: Cut[Tile], images: int | None = None) -> Launch:
    """The launches with this tile and cluster, for ``images`` at a time, by default as many as the limit allows."""
    if forms.is_planar(problem):
        return _launch_planar(problem, device, cut)
    images = images or forms.images_at_a_time(problem, DEFAULT_WORKSPACE_LIMIT_BYTES)
    bytes_of_weight, itemsize = packing.weight_bytes(problem), problem.dtype.itemsize_bytes
    workspace = Scratch(bytes_of_weight + images * packing.image_bytes(problem))
    packs_weight = bool(forms.packs_weight(problem))
    counts = [(begin, min(images, problem.n - begin)) for begin in range(0, problem.n, images)]
    steps = [
        (
            begin * problem.c * problem.h * problem.w * itemsize,
            begin * problem.k * problem.p * problem.q * itemsize,
            start_packing(problem, count, has_weight=packs_weight and begin == 0),
            _multiplication(problem, count, device, cut, is_behind_packing=True),
            kept_maps(_maps_of(forms.packed(replace(problem, n=count)), cut.tile)),
        )
        for begin, count in counts
    ]

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        packed_weight = workspace.ptr
        packed_x = packed_weight + bytes_of_weight
        read_weight = packed_weight if packs_weight else weight.data.ptr
        for x_offset, y_offset, pack, multiply, maps_at in steps:
            pack(x.data.ptr + x_offset, weight.data.ptr, packed_x, packed_weight)
            read = addresses(problem.epilogue, ends, y_offset)
            multiply(*maps_at(packed_x, read_weight), y.data.ptr + y_offset, *read)

    return Launch(run, workspace.nbytes, scratch=(workspace,), by_address=True)


def _launch_planar(problem: ConvProblem, device: Device, cut: Cut[Tile]) -> Launch:
    row_bytes = int(row_bytes_of(forms.packed(problem)))
    maps_at = kept_maps(((planes_map(problem, row_bytes), problem.dtype), _maps_of(forms.packed(problem), cut.tile)[1]))
    start = _multiplication(problem, problem.n, device, cut)

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        start(*maps_at(x.data.ptr, weight.data.ptr), y.data.ptr, *addresses(problem.epilogue, ends))

    return Launch(run, by_address=True)


def _maps_of(packed: ConvProblem, tile: Tile) -> tuple[tuple[maps.Map, Any], tuple[maps.Map, Any]]:
    """The maps of x and weight as they are packed."""
    return (maps.x_map(packed, tile.bp), packed.dtype), (maps.weight_map(packed, tile.bf), packed.dtype)


def planes_map(problem: ConvProblem, row_bytes: int) -> maps.TiledMap:
    """The map of x as it lies, in boxes of 64 pixels of one image by the channels of a stage."""
    plane, itemsize = problem.h * problem.w, problem.dtype.itemsize_bytes
    return maps.TiledMap(
        sizes=(plane, problem.c, problem.n),
        strides_bytes=(plane * itemsize, problem.c * plane * itemsize),
        box=(BOX_PIXELS, row_bytes // itemsize, 1),
        row_bytes=_PLANE_ROW_BYTES,
    )


def _multiplication(
    problem: ConvProblem, images: int, device: Device, cut: Cut[Tile], *, is_behind_packing: bool = False
) -> Start:
    defines = plans.defines_of_cut(cut, problem) | defines_of(problem.epilogue)
    kernel = load_kernel(plans.SOURCE, plans.SOURCE.name, problem.dtype, **defines)
    multiplied = forms.packed(replace(problem, n=images))
    processors, has_residual = device.processors or 1, problem.epilogue.residual
    pixels = plans.pixels_of(problem, images)
    arrangement = plans.arranged(cut.tile, cut.cluster, multiplied, pixels, processors, has_residual=has_residual)
    plane = problem.p * problem.q
    columns = ceil_div(plane, BOX_PIXELS) if forms.is_planar(problem) else plane
    c, k, r, s, _, plane, q, _, *windows = sizes_of_layer(multiplied, multiplied.k)
    sizes = (
        *(c, k, r, s, pixels, plane, q, *windows),
        *(arrangement.across, arrangement.tiles),
        *divmod(int(stages_of(multiplied)), cut.cluster),
        arrangement.slots,
        *(columns, *divider(int(columns))),
    )
    return prepare_start(
        kernel,
        (int(arrangement.blocks), 1, 1),
        cut.tile.threads,
        int(arrangement.shared_bytes),
        sizes,
        cluster=cut.cluster,
        overlaps=is_behind_packing or overlaps(plans.SOURCE),
        is_structure=True,
    )
