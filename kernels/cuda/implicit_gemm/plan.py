"""How the implicit GEMM cuts a problem: its tile, how x is loaded, and the blocks of a cluster that share gemm_k."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.implicit_gemm import menu as menus
from conv_advisor.kernels.cuda.implicit_gemm.menu import Tile
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.fitted import fitted_on, tiles_of_every_device
from conv_advisor.kernels.cuda.parts.multiprocessor import RESERVED_BYTES, has_clusters, shared_memory_of
from conv_advisor.kernels.cuda.parts.offers import Cut, Offer, cheapest, expected_of, offered
from conv_advisor.kernels.cuda.parts.shapes import Problems, Shapes, is_dense, is_pointwise
from conv_advisor.kernels.cuda.parts.source import Defines, Source
from conv_advisor.kernels.cuda.parts.waves import in_waves, stages_us


class Loading(IntEnum):
    """How a stage of x is copied to shared memory; the numbers are those of the .cu."""

    RUNS = 0
    POINTS = 1
    TAPS = 2


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions that a launcher may use for this precision."""
    return tuple(
        {**tile.defines, "LOADING": int(loading)}
        for tile in tiles_of_every_device(menus.MENUS, dtype)
        for loading in Loading
    )


SOURCE: Final = Source("implicit_gemm", definitions)


def loadings(problems: Problems) -> Any:
    """The widest copies, by the numbers of `Loading`, that the alignment of the pixels allows."""
    itemsize, plane = problems.dtype.itemsize_bytes, problems.p * problems.q
    has_runs = is_dense(problems) & (plane * itemsize % 16 == 0)
    has_points = (is_pointwise(problems) & (itemsize == 4)) | (is_dense(problems) & (plane % 2 == 0))
    return np.where(has_runs, int(Loading.RUNS), np.where(has_points, int(Loading.POINTS), int(Loading.TAPS)))


def loading_for(problem: ConvProblem) -> Loading:
    """`loadings` for one problem."""
    return Loading(int(loadings(problem)))


def shared_bytes(tile: Tile, cluster: Any, problems: Problems) -> Any:
    """Shared memory of a block: stages or sums, received slices, table of taps, in the layout of the .cu."""
    itemsize, loading = problems.dtype.itemsize_bytes, loadings(problems)
    vector = 16 // itemsize
    has_table = loading == Loading.TAPS
    is_gather = has_table & (itemsize == 2)
    pad = np.where(tile.is_tensor, 8, 0)
    x_elements = np.where(is_gather, tile.bn * (tile.bk + vector), tile.bk * (tile.bn + pad))
    stage = (tile.bm * (tile.bk + vector) + x_elements) * itemsize
    sums = 4 * tile.parts * tile.bm * (tile.bn + pad)
    received = np.where(np.greater(cluster, 1), 4 * cluster * ceil_div(tile.bm, cluster) * tile.bn, 0)
    table = np.where(has_table, np.where(is_gather, 4, 16) * (problems.r * problems.s + tile.bk), 0)
    return np.maximum(tile.stages * stage, sums) + received + table


def blocks_for(cut: Cut[Tile], problem: ConvProblem) -> int:
    """Blocks of the grid."""
    return int(_tiles(cut.tile, problem) * cut.cluster)


def _tiles(tile: Tile, problems: Problems) -> Any:
    return ceil_div(problems.k, tile.bm) * ceil_div(problems.n * problems.p * problems.q, tile.bn)


def expect(tile: Tile, cluster: Any, problems: Problems, device: Device) -> Any:
    """Time of a launch in us, with clusters of ``cluster`` blocks, one number or an array.

    Blocks run on a multiprocessor in waves of as many as fit. A stage of a wave takes its latency, or the time in which
    the multiprocessor multiplies the stages of all its blocks, whichever is longer.
    """
    menu, loading = fitted_on(device, menus.MENUS)[problems.dtype], loadings(problems)
    fitting = shared_memory_of(device) // (shared_bytes(tile, cluster, problems) + RESERVED_BYTES)
    resident = np.maximum(1, np.minimum(tile.blocks, fitting))
    stages = ceil_div(stages_of(tile, problems), cluster)
    latency = tile.latency_us * np.array((1.0, *menu.latency_factors))[loading]
    busy = tile.busy_us * np.array((1.0, *menu.busy_factors))[loading]

    def wave_us(blocks: Any) -> Any:
        outputs = blocks * tile.bm * tile.bn / 1024
        return stages_us(stages, latency, busy, blocks) + menu.wave_us + outputs * menu.output_us

    waves, remaining = np.divmod(ceil_div(_tiles(tile, problems) * cluster, device.processors), resident)
    cluster_us = np.where(np.greater(cluster, 1), menu.cluster_us + menu.rank_us * cluster, 0.0)
    return in_waves(menu.launch_us, waves, remaining, resident, wave_us) + cluster_us


def stages_of(tile: Tile, problems: Problems) -> Any:
    """Stages of the whole gemm_k, for layers with one group."""
    return ceil_div(problems.c * problems.r * problems.s, tile.bk)


def offers(problems: Shapes, device: Device) -> tuple[Offer[Tile], ...]:
    """Every cut that the device can run and in which every block of a cluster has a stage.

    Parameters
    ----------
    problems : Shapes
        Layers that ``cuda.implicit_gemm`` computes.
    device : Device
    """
    menu = fitted_on(device, menus.MENUS)[problems.dtype]
    choice = menu.choice if has_clusters(device) else menu.choice_without_clusters
    tile, cluster = choice.tile, choice.cluster
    us = np.where(cluster <= stages_of(tile, problems), expect(tile, cluster, problems, device), np.inf)
    return (offered(choice, tile.bm * tile.bn, us, _tiles(tile, problems) * cluster),)


def expected(problem: ConvProblem, device: Device) -> dict[Cut[Tile], float]:
    """The cuts of one problem, and the expected time of each in us."""
    return expected_of(offers(Shapes.of(problem), device))


def plan_cut(problem: ConvProblem, device: Device) -> Cut[Tile]:
    """The cut that the model expects to be fastest."""
    cut: Cut[Tile] = cheapest(offers(Shapes.of(problem), device))
    return cut
