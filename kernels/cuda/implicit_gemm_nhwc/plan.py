"""How the channels-innermost implicit GEMM cuts a problem: its tile, and the blocks of a cluster that share gemm_k."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import menu as menus
from conv_advisor.kernels.cuda.implicit_gemm_nhwc.menu import ROW_BYTES, Tile
from conv_advisor.kernels.cuda.implicit_gemm_nhwc.packing import images_of, packed_channels
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.fitted import fitted_on, tiles_of_every_device
from conv_advisor.kernels.cuda.parts.multiprocessor import HOPPER_BLOCK_BYTES, HOPPER_SHARED_BYTES, RESERVED_BYTES
from conv_advisor.kernels.cuda.parts.offers import Cut, Offer, cheapest, expected_of, offered
from conv_advisor.kernels.cuda.parts.shapes import Array, Problems, Shapes, is_pointwise
from conv_advisor.kernels.cuda.parts.source import Defines, Source
from conv_advisor.kernels.cuda.parts.waves import in_waves, stages_us

GROUP_PROCESSORS: Final = 16
"""Multiprocessors of a group (GPC); some groups have two more: by its total, two of the eight groups of an H200."""


def stages_of(problems: Problems) -> Any:
    """Stages of the whole gemm_k."""
    return ceil_div(problems.r * problems.s * packed_channels(problems) * problems.dtype.itemsize_bytes, ROW_BYTES)


def blocks_for(cut: Cut[Tile], problem: ConvProblem, images: int) -> int:
    """Blocks of the grid."""
    return int(_tiles(cut.tile, problem, images) * cut.cluster)


def _tiles(tile: Tile, problems: Problems, images: Any) -> Any:
    return ceil_div(problems.k, tile.bf) * ceil_div(images * problems.p * problems.q, tile.bp)


def room_for(cluster: Any, resident: Any, processors: int) -> Any:
    """Blocks that run at a time, ``resident`` per multiprocessor; a cluster lies within one group of these."""
    groups, leftover = divmod(processors, GROUP_PROCESSORS)
    larger = min(groups, leftover // 2)
    clusters = (groups - larger) * (GROUP_PROCESSORS * resident // cluster)
    clusters += larger * ((GROUP_PROCESSORS + 2) * resident // cluster)
    return np.where(np.greater(cluster, 1), np.maximum(1, clusters) * cluster, processors * resident)


def expect(tile: Tile, cluster: Any, problems: Problems, images: Any, device: Device) -> Any:
    """Time in us to multiply ``images`` images, with clusters of ``cluster`` blocks, one number or an array.

    Blocks run on a multiprocessor in waves of as many as fit. A stage of a wave takes its latency, or the time in which
    the multiprocessor multiplies the stages of all its blocks, whichever is longer.
    """
    menu = fitted_on(device, menus.MENUS)[problems.dtype]
    layout, has_one_tap = problems.layout, is_pointwise(problems)
    fitting = HOPPER_SHARED_BYTES // (tile.shared_bytes(layout, cluster) + RESERVED_BYTES)
    resident = np.maximum(1, np.minimum(tile.blocks, fitting))
    stages = ceil_div(stages_of(problems), cluster)
    latency = tile.latency_us * np.where(has_one_tap, menu.pointwise[0], 1.0)
    busy = tile.busy_us * np.where(has_one_tap, menu.pointwise[1], 1.0)
    thousands = tile.bf * tile.bp / 1024

    def wave_us(blocks: Any) -> Any:
        return menu.wave_us + stages_us(stages, latency, busy, blocks) + blocks * thousands * menu.output_us[layout]

    processors = device.processors or 1
    waves, remaining = np.divmod(_tiles(tile, problems, images) * cluster, room_for(cluster, resident, processors))
    remaining = np.minimum(resident, ceil_div(remaining, processors))
    sharing_us = menu.cluster_us + menu.rank_us * cluster + menu.push_us * thousands
    cluster_us = np.where(np.greater(cluster, 1), sharing_us, 0.0)
    return in_waves(menu.launch_us, waves, remaining, resident, wave_us) + cluster_us


def offers(problems: Shapes, device: Device, images: Any = None) -> tuple[Offer[Tile], ...]:
    """Every cut that fits and in which every block of a cluster has a stage, where at least one image fits.

    Parameters
    ----------
    problems : Shapes
        Layers that the kernel computes.
    device : Device
    images : int or int array, optional
        Images that are multiplied at a time; by default as many as the default limit allows.
    """
    images = images_of(problems) if images is None else images
    choice = fitted_on(device, menus.MENUS)[problems.dtype].choice
    tile, cluster = choice.tile, choice.cluster
    fits = tile.shared_bytes(problems.layout, cluster) <= HOPPER_BLOCK_BYTES
    is_possible = fits & (cluster <= stages_of(problems)) & np.greater(images, 0)
    us = np.where(is_possible, expect(tile, cluster, problems, images, device), np.inf)
    return (offered(choice, tile.bf * tile.bp, us, _tiles(tile, problems, images) * cluster),)


def launches_of(problems: Shapes) -> Array:
    """Number of multiplications, each of as many images as the default limit allows."""
    launches: Array = ceil_div(problems.n, images_of(problems))
    return launches


def expected(problem: ConvProblem, device: Device) -> dict[Cut[Tile], float]:
    """The cuts of one problem, and the expected time of each in us."""
    return expected_of(offers(Shapes.of(problem), device))


def plan_cut(problem: ConvProblem, device: Device, images: int) -> Cut[Tile]:
    """The cut that the model expects to be fastest for ``images`` images at a time."""
    cut: Cut[Tile] = cheapest(offers(Shapes.of(problem), device, images))
    return cut


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions of implicit_gemm_nhwc.cu for this precision."""
    return tuple(
        tile.defines(layout, is_pointwise=is_pointwise, has_prologue=has_prologue)
        for tile in tiles_of_every_device(menus.MENUS, dtype)
        for layout in Layout
        for is_pointwise in (False, True)
        for has_prologue in ((False, True) if is_pointwise and layout is Layout.NHWC else (False,))
    )


SOURCE: Final = Source("implicit_gemm_nhwc", definitions, architecture="sm_90a")
