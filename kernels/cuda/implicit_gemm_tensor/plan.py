"""Which tile and cluster the tensor cores' implicit GEMM takes: a model of the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.implicit_gemm_tensor import menu as menus
from conv_advisor.kernels.cuda.implicit_gemm_tensor.cut import (
    MOST_IMAGES,
    Loading,
    has_divisors,
    is_gathered,
    loadings,
    run_pitch,
    shared_bytes_with,
    stage_channels,
    stage_k_with,
    tile_defines,
)
from conv_advisor.kernels.cuda.implicit_gemm_tensor.menu import Menu, Tile
from conv_advisor.kernels.cuda.implicit_gemm_tensor.windows import windows_of
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.fitted import fitted_on, tiles_of_every_device
from conv_advisor.kernels.cuda.parts.multiprocessor import (
    HOPPER_BLOCK_BYTES,
    RESERVED_BYTES,
    has_clusters,
    shared_memory_of,
)
from conv_advisor.kernels.cuda.parts.offers import Choice, Cut, Offer, cheapest, expected_of, offered
from conv_advisor.kernels.cuda.parts.shapes import Array, Shapes
from conv_advisor.kernels.cuda.parts.source import BorneSpill, Defines, Source
from conv_advisor.kernels.cuda.parts.waves import in_waves, stages_us

CLUSTER_PROCESSORS: Final = 18
"""Multiprocessors of a group (Hopper's GPC), within which a cluster lies; some groups are smaller."""


@dataclass(frozen=True)
class Work:
    """The work of cuts on problems: arrays over both.

    Parameters
    ----------
    dtype : DType
    loading : Loading
    is_gathered : bool or bool array
        Whether x is too narrow for asynchronous copies.
    stage_k : int or int array
        gemm_k of a stage.
    stages : int or int array
        Stages of all blocks of a cluster.
    positions : int or int array
        Copies of a channel's window, where x is loaded in WINDOWS.
    blocks : int or int array
        Blocks of the grid.
    resident : int or int array
        Blocks that a multiprocessor holds.
    """

    dtype: DType
    loading: Loading
    is_gathered: Any
    stage_k: Any
    stages: Any
    positions: Any
    blocks: Any
    resident: Any


def _stage_us(tile: Tile, work: Work, menu: Menu) -> tuple[Any, Any]:
    """Latency of a stage, and the time for which it keeps the multiprocessor busy."""
    itemsize = work.dtype.itemsize_bytes
    k, vector, warps = work.stage_k, 16 // itemsize, tile.warps_m * tile.warps_n
    steps = k // (32 // itemsize)
    rows, columns = tile.bm // tile.warps_m // 16, tile.bn // tile.warps_n // 8
    steps_of_a_warp = ceil_div(steps, tile.warps_k)
    latency = menu.stage + menu.step * steps_of_a_warp + menu.fragment * steps_of_a_warp * rows * columns / 8
    multiplied = (menu.busy_fragment * rows * columns + menu.busy_step) * steps * warps / 64
    fetched = menu.weight * tile.bm * k / vector / 512
    if work.loading is Loading.WINDOWS:
        fetched += np.where(work.is_gathered, menu.gather, menu.copy) * (work.positions * tile.channels) / 512
    else:
        is_anywhere = work.loading is Loading.ROWS
        fetched += menu.copy * tile.bk * (tile.bn // vector + is_anywhere) / 512
        multiplied += menu.row * is_anywhere * steps * warps * columns / 64
    return tile.latency * latency, tile.busy * (multiplied + fetched)


def expect(tile: Tile, cluster: Any, work: Work, device: Device) -> Any:
    """Time of a launch in us, with clusters of ``cluster`` blocks.

    Blocks run on a multiprocessor in waves of as many as fit. A stage of a wave takes its latency, or the time for
    which the stages of all its blocks keep the multiprocessor busy, whichever is longer.
    """
    menu, has_cluster = fitted_on(device, menus.MENUS)[work.dtype], np.greater(cluster, 1)
    latency, busy = _stage_us(tile, work, menu)
    stages, outputs = ceil_div(work.stages, cluster), tile.bm * tile.bn / 1024

    def wave_us(blocks: Any) -> Any:
        return menu.wave + stages_us(stages, latency, busy, blocks) + blocks * outputs * menu.output

    whole_groups, rest_of_group = divmod(device.processors, CLUSTER_PROCESSORS)
    fitting = whole_groups * (CLUSTER_PROCESSORS * work.resident // cluster * cluster)
    fitting = np.maximum(cluster, fitting + rest_of_group * work.resident // cluster * cluster)
    places = np.where(has_cluster, fitting, work.resident * device.processors)
    waves, remaining = np.divmod(work.blocks, places)
    fixed: Any = menu.launch + menu.window * (work.loading is Loading.WINDOWS)
    fixed = fixed + np.where(has_cluster, menu.cluster + menu.rank * cluster + menu.push * outputs, 0.0)
    return in_waves(fixed, waves, ceil_div(remaining * work.resident, places), work.resident, wave_us)


def offers(problems: Shapes, device: Device) -> tuple[Offer[Tile], ...]:
    """Every cut that the kernel can be compiled and run with; none on devices without clusters.

    Parameters
    ----------
    problems : Shapes
        Layers that ``cuda.implicit_gemm`` computes.
    device : Device
    """
    if not has_clusters(device):
        return ()
    choice, loading = fitted_on(device, menus.MENUS)[problems.dtype].choice, loadings(problems)
    has_vectors = problems.c * problems.r * problems.s % (16 // problems.dtype.itemsize_bytes) == 0
    is_first = np.arange(np.size(choice.tile.bn))[:, None, None] == 0
    is_runnable = (problems.n <= MOST_IMAGES) & (has_vectors | is_first)
    shape = (*np.broadcast_shapes(is_first.shape, choice.cluster.shape)[:-1], len(problems))
    us, blocks = np.full(shape, np.inf), np.zeros(shape, np.int64)
    for way in Loading:
        rows = np.flatnonzero(loading == way)
        if len(rows):
            us[..., rows], blocks[..., rows] = _of_way(choice, way, problems.take(rows), device)
    return (offered(choice, choice.tile.bm * choice.tile.bn, np.where(is_runnable, us, np.inf), blocks),)


def _of_way(choice: Choice[Tile], loading: Loading, problems: Shapes, device: Device) -> tuple[Array, Array]:
    """Times and grids of every cut, for problems whose x is loaded in one way."""
    tile, cluster, dtype = choice.tile, choice.cluster, problems.dtype
    taps, is_window = problems.r * problems.s, loading is Loading.WINDOWS
    sizes: tuple[Any, Any, Any] = (ceil_div(problems.p * problems.q, tile.bn), 0, run_pitch(tile, dtype))
    tiles, positions, pitch = _windows(problems, np.ravel(tile.bn)) if is_window else sizes
    blocks = cluster * tiles * problems.n * ceil_div(problems.k, tile.bm)
    needed_bytes = shared_bytes_with(tile, cluster, dtype, loading, taps, problems.c, pitch)
    k, stages = stage_k_with(tile, dtype, loading, taps), ceil_div(problems.c, stage_channels(tile, loading))
    resident = resident_blocks(tile, needed_bytes, device)
    work = Work(dtype, loading, is_gathered(problems), k, stages, positions, blocks, resident)
    is_possible = (tiles > 0) & (cluster <= stages) & (needed_bytes <= HOPPER_BLOCK_BYTES)
    if is_window:
        is_possible = is_possible & has_divisors(tile, problems, k, stages)
    return np.where(is_possible, expect(tile, cluster, work, device), np.inf), blocks


def _windows(problems: Shapes, bn: Array) -> tuple[Array, Array, Array]:
    """Tiles of an image, copies of a channel, and elements from one channel to the next; zeros without a window."""
    widths, place = np.unique(bn, return_inverse=True)
    window = windows_of(problems, widths)
    values = (window.tiles * window.strips, window.positions, window.channel_pitch)
    tiles, positions, pitch = (of_width[place.ravel()][:, None] for of_width in values)
    return tiles, positions, pitch


def expected(problem: ConvProblem, device: Device) -> dict[Cut[Tile], float]:
    """The cuts of one problem, and the expected time of each in us; empty where the kernel cannot run."""
    return expected_of(offers(Shapes.of(problem), device))


def plan_cut(problem: ConvProblem, device: Device) -> Cut[Tile] | None:
    """The cut that the model expects to be fastest; None where the kernel cannot run."""
    cut: Cut[Tile] | None = cheapest(offers(Shapes.of(problem), device))
    return cut


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """All results of `defines_for`: for each tile every loading, with and without clusters and whole rows of weight."""
    units = (1, 2, 4) if dtype.itemsize_bytes == 4 else (1, 2, 4, 8)
    loadings = ((Loading.RUNS, 1), (Loading.ROWS, 1), *((Loading.WINDOWS, unit) for unit in units))
    return tuple(
        {
            **tile_defines(tile, loading, unit, is_split=dtype is DType.FLOAT32),
            "CLUSTERED": clustered,
            "WIDE_WEIGHT": wide,
        }
        for place, tile in enumerate(tiles_of_every_device(menus.MENUS, dtype))
        for loading, unit in loadings
        for clustered in (0, 1)
        for wide in ((0, 1) if place == 0 else (1,))
    )


SOURCE: Final = Source(
    "implicit_gemm_tensor",
    definitions,
    spills=(
        BorneSpill(
            "implicit_gemm_tensor",
            "sm_100",
            8,
            "two registers of float32's 1x1, for which tiles are sized on Hopper",
            storage="FLOAT32",
            defines=(("BN", 64), ("SPLIT", 1)),
        ),
    ),
)


def resident_blocks(tile: Tile, needed_bytes: Any, device: Device) -> Any:
    """Blocks of ``needed_bytes`` shared memory that a multiprocessor holds: one number or an array."""
    fitting = shared_memory_of(device) // (needed_bytes + RESERVED_BYTES)
    return np.maximum(1, np.minimum(tile.blocks, fitting))
