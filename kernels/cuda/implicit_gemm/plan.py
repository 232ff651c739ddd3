"""How the implicit GEMM cuts a problem: its tile, how x is loaded, and the blocks of a cluster that share gemm_k."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.multiprocessor import RESERVED_BYTES, has_clusters, shared_memory_of
from conv_advisor.kernels.cuda.parts.offers import Offer, cheapest, possible
from conv_advisor.kernels.cuda.parts.shapes import Array, Problems, Shapes, is_dense, is_pointwise
from conv_advisor.kernels.cuda.parts.source import Defines, Source

MOST_TAPS: Final = 1024
"""Taps of a filter: their table lies in shared memory."""
MOST_GATHERED_TAPS: Final = 57
"""Where two-byte elements are gathered one by one, the guards of 8 rows of any phase are bits of one 64-bit word."""
LARGEST_CLUSTER: Final = 8
"""Blocks that a cluster may have on every device that has clusters."""


class Loading(IntEnum):
    """How a stage of x comes to shared memory; the numbers are those of the .cu."""

    RUNS = 0
    POINTS = 1
    TAPS = 2


@dataclass(frozen=True)
class Tile:
    """What a block computes: `bm` filters of `bn` pixels, `bk` of gemm_k at a stage.

    Parameters
    ----------
    bm, bn, bk : int
    is_tensor : bool
        Whether warps multiply on tensor cores, each so many rows and columns of the tile; else threads do.
    rows, columns : int
        Warps of the tile (tensor cores), or outputs of a thread.
    parts : int
        Groups of the block's threads, each with a part of every stage.
    stages : int
        In shared memory at a time.
    blocks : int
        That a multiprocessor's registers must have room for.
    latency_us, busy_us : float
        Time of a stage of RUNS when a block is alone on its multiprocessor, and when that is busy: fitted on an H200.
    """

    bm: int
    bn: int
    bk: int
    is_tensor: bool
    rows: int
    columns: int
    parts: int
    stages: int
    blocks: int
    latency_us: float
    busy_us: float

    @property
    def threads(self) -> int:
        """Of a block."""
        if self.is_tensor:
            return 32 * self.rows * self.columns * self.parts
        return self.bm // self.rows * (self.bn // self.columns) * self.parts

    @property
    def defines(self) -> dict[str, int]:
        """What the source is compiled with, beside the loading."""
        inner = ("WARPS_M", "WARPS_N") if self.is_tensor else ("TM", "TN")
        shape = {"BM": self.bm, "BN": self.bn, "BK": self.bk, inner[0]: self.rows, inner[1]: self.columns}
        return {
            "TENSOR": int(self.is_tensor),
            **shape,
            "WARPS_K": self.parts,
            "STAGES": self.stages,
            "BLOCKS": self.blocks,
        }


@dataclass(frozen=True)
class Menu:
    """The tiles of one precision, and what a launch costs beside their stages; times fitted on an H200.

    Parameters
    ----------
    tiles : tuple of Tile
    latency_factors, busy_factors : tuple of float
        What POINTS and TAPS multiply a stage's times by.
    launch_us : float
    wave_us : float
        Of each generation of blocks on a multiprocessor.
    output_us : float
        Of 1024 outputs.
    cluster_us, rank_us : float
        Of a cluster, and of each of its blocks.
    """

    tiles: tuple[Tile, ...]
    latency_factors: tuple[float, float]
    busy_factors: tuple[float, float]
    launch_us: float
    wave_us: float
    output_us: float
    cluster_us: float
    rank_us: float


FMA: Final = Menu(
    tiles=(
        Tile(32, 32, 32, False, 4, 4, 2, 4, 5, 0.503, 0.338),
        Tile(32, 64, 32, False, 8, 8, 4, 3, 3, 0.688, 0.568),
        Tile(32, 64, 32, False, 4, 8, 2, 3, 4, 0.759, 0.581),
        Tile(128, 64, 16, False, 8, 8, 1, 3, 2, 1.103, 0.876),
        Tile(64, 128, 16, False, 8, 8, 1, 3, 3, 1.043, 0.867),
    ),
    latency_factors=(1.14, 1.19),
    busy_factors=(1.08, 1.11),
    launch_us=0.975,
    wave_us=0.852,
    output_us=0.223,
    cluster_us=0.765,
    rank_us=0.022,
)
TF32: Final = Menu(
    tiles=(
        Tile(32, 32, 32, True, 2, 1, 2, 4, 5, 0.341, 0.214),
        Tile(64, 32, 32, True, 2, 1, 2, 3, 5, 0.483, 0.292),
        Tile(32, 64, 32, True, 1, 2, 2, 3, 3, 0.451, 0.312),
        Tile(128, 64, 16, True, 2, 2, 1, 3, 3, 0.549, 0.375),
        Tile(64, 128, 16, True, 2, 2, 1, 3, 3, 0.556, 0.374),
    ),
    latency_factors=(1.13, 1.42),
    busy_factors=(1.2, 1.3),
    launch_us=0.487,
    wave_us=1.624,
    output_us=0.17,
    cluster_us=0.77,
    rank_us=0.01,
)
HALF: Final = Menu(
    tiles=(
        Tile(32, 32, 64, True, 2, 1, 2, 3, 5, 0.188, 0.182),
        Tile(64, 32, 64, True, 2, 1, 2, 3, 4, 0.229, 0.214),
        Tile(32, 64, 64, True, 1, 2, 2, 3, 4, 0.267, 0.269),
        Tile(64, 64, 64, True, 2, 2, 1, 3, 4, 0.322, 0.309),
        Tile(128, 64, 32, True, 2, 2, 1, 3, 3, 0.265, 0.238),
        Tile(64, 128, 32, True, 2, 2, 1, 3, 3, 0.311, 0.276),
    ),
    latency_factors=(1.63, 4.01),
    busy_factors=(1.14, 1.74),
    launch_us=0.0,
    wave_us=2.334,
    output_us=0.186,
    cluster_us=0.686,
    rank_us=0.014,
)


@dataclass(frozen=True)
class Cut:
    """A tile, and the blocks of a cluster that share its gemm_k.

    Parameters
    ----------
    tile : Tile
    cluster : int
    """

    tile: Tile
    cluster: int


def menu_for(dtype: DType) -> Menu:
    """The tiles that multiply this precision."""
    return {DType.FLOAT32: FMA, DType.TF32: TF32}.get(dtype, HALF)


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """What a launcher may define for this precision."""
    return tuple({**tile.defines, "LOADING": int(loading)} for tile in menu_for(dtype).tiles for loading in Loading)


SOURCE: Final = Source("implicit_gemm", definitions)


def loadings(problems: Problems) -> Any:
    """The widest copies, by the numbers of `Loading`, that the alignment of the pixels allows."""
    item, plane = problems.dtype.itemsize_bytes, problems.p * problems.q
    has_runs = is_dense(problems) & (plane * item % 16 == 0)
    has_points = (is_pointwise(problems) & (item == 4)) | (is_dense(problems) & (plane % 2 == 0))
    return np.where(has_runs, int(Loading.RUNS), np.where(has_points, int(Loading.POINTS), int(Loading.TAPS)))


def loading_for(problem: ConvProblem) -> Loading:
    """`loadings` of one problem."""
    return Loading(int(loadings(problem)))


def most_taps(problems: Problems) -> int:
    """Taps that a filter may have."""
    return MOST_TAPS if problems.dtype.itemsize_bytes == 4 else MOST_GATHERED_TAPS


def shared_bytes(tile: Tile, cluster: Any, problems: Problems) -> Any:
    """Shared memory of a block: stages or sums, received slices, table of taps, as the .cu lays them out."""
    item, loading = problems.dtype.itemsize_bytes, loadings(problems)
    vector = 16 // item
    has_table = loading == Loading.TAPS
    is_gather = has_table & (item == 2)
    pad = 8 if tile.is_tensor else 0
    x_elements = np.where(is_gather, tile.bn * (tile.bk + vector), tile.bk * (tile.bn + pad))
    stage = (tile.bm * (tile.bk + vector) + x_elements) * item
    sums = 4 * tile.parts * tile.bm * (tile.bn + pad)
    received = np.where(np.greater(cluster, 1), 4 * cluster * ceil_div(tile.bm, cluster) * tile.bn, 0)
    table = np.where(has_table, np.where(is_gather, 4, 16) * (problems.r * problems.s + tile.bk), 0)
    return np.maximum(tile.stages * stage, sums) + received + table


def blocks_for(cut: Cut, problem: ConvProblem) -> int:
    """The grid."""
    return int(_tiles(cut.tile, problem) * cut.cluster)


def _tiles(tile: Tile, problems: Problems) -> Any:
    return ceil_div(problems.k, tile.bm) * ceil_div(problems.n * problems.p * problems.q, tile.bn)


def expected_us(cut: Cut, problem: ConvProblem, device: Device) -> float:
    """A model of the time of a launch, good for choosing among cuts; see `expect`."""
    return float(expect(cut.tile, cut.cluster, problem, device))


def expect(tile: Tile, cluster: Any, problems: Problems, device: Device) -> Any:
    """Time of a launch in us, with clusters of so many blocks, one number or an array.

    Blocks come to a multiprocessor in waves of as many as fit. A stage of a wave takes its latency, or the time in
    which the multiprocessor multiplies the stages of all its blocks, whichever is longer.
    """
    menu, loading = menu_for(problems.dtype), loadings(problems)
    fitting = shared_memory_of(device) // (shared_bytes(tile, cluster, problems) + RESERVED_BYTES)
    resident = np.maximum(1, np.minimum(tile.blocks, fitting))
    stages = ceil_div(stages_of(tile, problems), cluster)
    latency = tile.latency_us * np.array((1.0, *menu.latency_factors))[loading]
    busy = tile.busy_us * np.array((1.0, *menu.busy_factors))[loading]

    def wave_us(blocks: Any) -> Any:
        outputs = blocks * tile.bm * tile.bn / 1024
        return stages * np.maximum(latency, blocks * busy) + menu.wave_us + outputs * menu.output_us

    waves, rest = np.divmod(ceil_div(_tiles(tile, problems) * cluster, device.processors), resident)
    cluster_us = np.where(np.greater(cluster, 1), menu.cluster_us + menu.rank_us * cluster, 0.0)
    return menu.launch_us + waves * wave_us(resident) + np.where(rest, wave_us(rest), 0.0) + cluster_us


def stages_of(tile: Tile, problems: Problems) -> Any:
    """Stages of all gemm_k, of layers of one group."""
    return ceil_div(problems.c * problems.r * problems.s, tile.bk)


def offers(problems: Shapes, device: Device) -> Iterator[Offer]:
    """Every cut that the device can run; no block of a cluster is left without a stage.

    Parameters
    ----------
    problems : Shapes
        Of layers that ``cuda.implicit_gemm`` computes.
    device : Device
    """
    clusters = np.arange(1, LARGEST_CLUSTER + 1 if has_clusters(device) else 2)[:, None]
    for tile in menu_for(problems.dtype).tiles:
        us = np.where(clusters <= stages_of(tile, problems), expect(tile, clusters, problems, device), np.inf)
        cuts = tuple(Cut(tile, cluster) for cluster in clusters[:, 0].tolist())
        yield Offer(cuts, tile.bm * tile.bn, us, _tiles(tile, problems) * clusters)


def computes(problems: Shapes, _device: Device) -> Array:
    """For which of many problems the rule of ``cuda.implicit_gemm`` says nothing."""
    taps = problems.r * problems.s
    computed: Array = (problems.groups == 1) & (taps <= most_taps(problems)) & (problems.layout is Layout.NCHW)
    return computed


def cuts_for(problem: ConvProblem, device: Device) -> list[Cut]:
    """Those that `offers` has for one problem."""
    return possible(offers(Shapes.of(problem), device))


def plan_cut(problem: ConvProblem, device: Device) -> Cut:
    """The cut that the model expects to be fastest."""
    cut: Cut = cheapest(offers(Shapes.of(problem), device))
    return cut
