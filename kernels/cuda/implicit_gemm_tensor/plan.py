"""Which kernel, tile and cluster an implicit GEMM takes: a model of the time, fitted on an H200."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.implicit_gemm_tensor.cut import (
    MOST_IMAGES,
    Cut,
    Loading,
    Tile,
    grid_for,
    is_gathered,
    is_possible,
    loading_for,
    loadings,
    run_pitch,
    shared_bytes,
    shared_bytes_with,
    stage_channels,
    stage_k,
    stage_k_with,
    stages_of,
    tile_defines,
    window_of,
)
from conv_advisor.kernels.cuda.implicit_gemm_tensor.windows import Windows, windows_of
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.multiprocessor import RESERVED_BYTES, has_clusters, shared_memory_of
from conv_advisor.kernels.cuda.parts.offers import Offer, cheapest, possible
from conv_advisor.kernels.cuda.parts.shapes import Array, Shapes
from conv_advisor.kernels.cuda.parts.source import Defines, Source

LARGEST_CLUSTER: Final = 16
"""Blocks of a cluster; above 8 a kernel has to be allowed it."""
CLUSTER_PROCESSORS: Final = 18
"""A cluster lies within a group of so many multiprocessors (Hopper's GPC), some of which are smaller."""


@dataclass(frozen=True)
class Menu:
    """The tiles of one precision, and what takes how long; microseconds, fitted on an H200.

    Parameters
    ----------
    tiles : tuple of Tile
    launch, window : float
        Of a launch, and what one with windows takes more.
    wave, output : float
        Of each generation of blocks on a multiprocessor, and of 1024 outputs of a block.
    stage, fragment, step : float
        Latency of a stage, of 8 products of fragments of a warp one after the other, and of a step.
    busy_fragment, busy_step, weight, copy, gather, row : float
        What a block's stage keeps its multiprocessor busy: 64 products of fragments, 64 steps of a warp, 512 vectors of
        weight, 512 copies of x, 512 elements that pass through registers, and 64 fragments of rows that start anywhere.
    cluster, rank, push : float
        Of a cluster, of each of its blocks, and of 1024 outputs of a block that are pushed.
    """

    tiles: tuple[Tile, ...]
    launch: float
    window: float
    wave: float
    output: float
    stage: float
    fragment: float
    step: float
    busy_fragment: float
    busy_step: float
    weight: float
    copy: float
    gather: float
    row: float
    cluster: float
    rank: float
    push: float


SPLIT: Final = Menu(
    tiles=(
        Tile(32, 32, 64, 8, 1, 1, 4, 3, 3, 0.80, 1.01),
        Tile(16, 32, 64, 8, 1, 1, 4, 3, 5, 0.90, 1.10),
        Tile(16, 64, 32, 8, 1, 2, 2, 3, 5, 1.03, 0.94),
        Tile(32, 64, 64, 8, 1, 2, 4, 2, 2, 1.16, 0.99),
        Tile(64, 64, 32, 8, 2, 2, 1, 3, 3, 0.72, 0.86),
        Tile(64, 64, 32, 8, 2, 2, 2, 3, 2, 1.11, 0.89),
    ),
    launch=1.061,
    window=0.731,
    wave=0.656,
    output=0.162,
    stage=0.239,
    fragment=0.234,
    step=0.004,
    busy_fragment=0.242,
    busy_step=0.47,
    weight=0.056,
    copy=0.096,
    gather=0.1,
    row=0.102,
    cluster=0.609,
    rank=0.0,
    push=0.0,
)
TF32: Final = Menu(
    tiles=(
        Tile(32, 32, 64, 8, 1, 1, 4, 3, 3, 0.83, 1.17),
        Tile(16, 32, 64, 8, 1, 1, 4, 3, 5, 0.92, 1.06),
        Tile(16, 64, 64, 8, 1, 2, 4, 2, 2, 1.23, 0.91),
        Tile(32, 64, 64, 8, 1, 2, 4, 2, 2, 1.11, 1.02),
        Tile(64, 64, 32, 8, 2, 2, 1, 3, 3, 0.70, 0.99),
        Tile(64, 64, 32, 8, 2, 2, 2, 3, 2, 1.16, 0.91),
    ),
    launch=0.97,
    window=0.805,
    wave=0.82,
    output=0.117,
    stage=0.156,
    fragment=0.075,
    step=0.08,
    busy_fragment=0.068,
    busy_step=1.043,
    weight=0.0,
    copy=0.099,
    gather=0.1,
    row=0.158,
    cluster=0.594,
    rank=0.0,
    push=0.0,
)
HALF: Final = Menu(
    tiles=(
        Tile(32, 32, 64, 16, 1, 1, 4, 3, 4, 1.25, 0.86),
        Tile(16, 16, 128, 16, 1, 1, 8, 2, 3, 0.88, 1.52),
        Tile(16, 64, 64, 16, 1, 2, 2, 3, 4, 0.56, 0.94),
        Tile(32, 64, 64, 16, 1, 2, 4, 2, 2, 1.19, 0.86),
        Tile(64, 64, 64, 16, 2, 1, 2, 3, 3, 1.17, 0.70),
        Tile(64, 64, 64, 16, 2, 2, 2, 2, 2, 1.08, 0.70),
    ),
    launch=0.981,
    window=0.865,
    wave=1.008,
    output=0.097,
    stage=0.0,
    fragment=0.044,
    step=0.207,
    busy_fragment=0.273,
    busy_step=0.083,
    weight=0.124,
    copy=0.069,
    gather=0.134,
    row=0.233,
    cluster=0.426,
    rank=0.0,
    push=0.032,
)


def menu_for(dtype: DType) -> Menu:
    """The tiles that multiply this precision."""
    return {DType.FLOAT32: SPLIT, DType.TF32: TF32}.get(dtype, HALF)


@dataclass(frozen=True)
class Work:
    """What a cut makes of one problem, or of arrays of them.

    Parameters
    ----------
    dtype : DType
    loading : Loading
    is_gathered : bool or bool array
        Whether x is too narrow for asynchronous copies.
    stage_k : int or int array
        gemm_k of a stage.
    stages : int or int array
        Of all blocks of a cluster.
    positions : int or int array
        Copies of a channel's window, where x comes in WINDOWS.
    blocks : int or int array
        The grid.
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


def work_of(cut: Cut, problem: ConvProblem, device: Device) -> Work:
    """What a cut makes of one problem."""
    loading, (in_x, in_y, in_z) = loading_for(problem), grid_for(cut, problem)
    window = window_of(problem, cut.tile.bn) if loading is Loading.WINDOWS else None
    return Work(
        problem.dtype,
        loading,
        is_gathered(problem),
        stage_k(cut.tile, problem),
        stages_of(cut.tile, problem),
        window.positions if window else 0,
        in_x * in_y * in_z,
        resident_blocks(cut.tile, shared_bytes(cut, problem), device),
    )


def _stage_us(tile: Tile, work: Work) -> tuple[Any, Any]:
    """Latency of a stage, and for how long it keeps the multiprocessor busy."""
    menu, item = menu_for(work.dtype), work.dtype.itemsize_bytes
    k, vector, warps = work.stage_k, 16 // item, tile.warps_m * tile.warps_n
    steps = k // (32 // item)
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


def expected_us(cut: Cut, problem: ConvProblem, device: Device) -> float:
    """A model of the time of a launch, good for choosing among cuts; see `expect`."""
    return float(expect(cut.tile, cut.cluster, work_of(cut, problem, device), device))


def expect(tile: Tile, cluster: Any, work: Work, device: Device) -> Any:
    """Time of a launch in us, with clusters of so many blocks, one number or an array.

    Blocks come to a multiprocessor in waves of as many as fit. A stage of a wave takes its latency, or the time for
    which the stages of all its blocks keep the multiprocessor busy, whichever is longer.
    """
    menu, has_cluster = menu_for(work.dtype), np.greater(cluster, 1)
    latency, busy = _stage_us(tile, work)
    stages, outputs = ceil_div(work.stages, cluster), tile.bm * tile.bn / 1024

    def wave_us(blocks: Any) -> Any:
        return menu.wave + stages * np.maximum(latency, blocks * busy) + blocks * outputs * menu.output

    whole_groups, rest_of_group = divmod(device.processors, CLUSTER_PROCESSORS)
    fitting = whole_groups * (CLUSTER_PROCESSORS * work.resident // cluster * cluster)
    fitting = np.maximum(cluster, fitting + rest_of_group * work.resident // cluster * cluster)
    places = np.where(has_cluster, fitting, work.resident * device.processors)
    waves, rest = np.divmod(work.blocks, places)
    fixed: Any = menu.launch + menu.window * (work.loading is Loading.WINDOWS)
    fixed += np.where(has_cluster, menu.cluster + menu.rank * cluster + menu.push * outputs, 0.0)
    last = np.where(rest, wave_us(ceil_div(rest * work.resident, places)), 0.0)
    return fixed + waves * wave_us(work.resident) + last


def offers(problems: Shapes, device: Device) -> Iterator[Offer]:
    """Every cut that the kernel can be compiled and run with; none without clusters, which only some devices have.

    Parameters
    ----------
    problems : Shapes
        Of layers that ``cuda.implicit_gemm`` computes.
    device : Device
    """
    if not has_clusters(device):
        return
    loading = loadings(problems)
    windows = {
        tile.bn: windows_of(problems, tile.bn, loading == Loading.WINDOWS) for tile in menu_for(problems.dtype).tiles
    }
    has_vectors = problems.c * problems.r * problems.s % (16 // problems.dtype.itemsize_bytes) == 0
    clusters = tuple(range(1, LARGEST_CLUSTER + 1))
    for place, tile in enumerate(menu_for(problems.dtype).tiles):
        is_runnable = (problems.n <= MOST_IMAGES) & (has_vectors | (place == 0)) & windows[tile.bn].is_found
        us, blocks = np.full((len(clusters), len(problems)), np.inf), np.zeros((len(clusters), len(problems)), np.int64)
        for way in Loading:
            rows = np.flatnonzero(is_runnable & (loading == way))
            if len(rows):
                us[:, rows], blocks[:, rows] = _of_way(
                    tile, way, problems.take(rows), windows[tile.bn].take(rows), device
                )
        yield Offer(tuple(Cut(tile, cluster) for cluster in clusters), tile.bm * tile.bn, us, blocks)


def _of_way(tile: Tile, loading: Loading, problems: Shapes, windows: Windows, device: Device) -> tuple[Array, Array]:
    """Times and grids with each size of a cluster, of problems whose x comes to shared memory in one way."""
    dtype, taps, gathers = problems.dtype, problems.r * problems.s, is_gathered(problems)
    is_window = loading is Loading.WINDOWS
    pitch = windows.pitch if is_window else run_pitch(tile, dtype)
    tiles = windows.tiles if is_window else ceil_div(problems.p * problems.q, tile.bn)
    cluster = np.arange(1, LARGEST_CLUSTER + 1)[:, None]
    blocks = cluster * tiles * problems.n * ceil_div(problems.k, tile.bm)
    needed_bytes = shared_bytes_with(tile, cluster, dtype, loading, taps, problems.c, pitch)
    work = Work(
        dtype,
        loading,
        gathers,
        stage_k_with(tile, dtype, loading, taps),
        ceil_div(problems.c, stage_channels(tile, loading)),
        windows.positions,
        blocks,
        resident_blocks(tile, needed_bytes, device),
    )
    possible = is_possible(tile, cluster, dtype, loading, problems.r, problems.s, problems.c, gathers, pitch)
    return np.where(possible, expect(tile, cluster, work, device), np.inf), blocks


def cuts_for(problem: ConvProblem, device: Device) -> list[Cut]:
    """Those that `offers` has for one problem; none where the kernel cannot run."""
    return possible(offers(Shapes.of(problem), device))


def plan_cut(problem: ConvProblem, device: Device) -> Cut | None:
    """The cut that the model expects to be fastest; None where the kernel cannot run."""
    cut: Cut | None = cheapest(offers(Shapes.of(problem), device))
    return cut


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """What `defines_for` may give: for each tile every loading, with and without clusters and whole rows of weight."""
    units = (1, 2, 4) if dtype.itemsize_bytes == 4 else (1, 2, 4, 8)
    loadings = ((Loading.RUNS, 1), (Loading.ROWS, 1), *((Loading.WINDOWS, unit) for unit in units))
    return tuple(
        {
            **tile_defines(tile, loading, unit, is_split=dtype is DType.FLOAT32),
            "CLUSTERED": clustered,
            "WIDE_WEIGHT": wide,
        }
        for tile in menu_for(dtype).tiles
        for loading, unit in loadings
        for clustered in (0, 1)
        for wide in ((0, 1) if tile is menu_for(dtype).tiles[0] else (1,))
    )


SOURCE: Final = Source("implicit_gemm_tensor", definitions)


def resident_blocks(tile: Tile, needed_bytes: Any, device: Device) -> Any:
    """Blocks that a multiprocessor holds, of so much shared memory each: one number or an array."""
    fitting = shared_memory_of(device) // (needed_bytes + RESERVED_BYTES)
    return np.maximum(1, np.minimum(tile.blocks, fitting))
