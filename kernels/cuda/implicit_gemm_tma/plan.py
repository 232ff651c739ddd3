"""How the implicit GEMM fed by the tensor memory accelerator cuts a problem: its tile, and how many blocks share it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.implicit_gemm_tma import menu, small, split, straight
from conv_advisor.kernels.cuda.implicit_gemm_tma.cycles import memory_cycles, row_cycles, side_by_side
from conv_advisor.kernels.cuda.implicit_gemm_tma.limits import by_patches
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import (
    BOX,
    BOX_ROW_BYTES,
    BYTES_OF_CYCLE,
    CLUSTERS,
    CYCLES_OF_US,
    GROUPS,
    ROW_BYTES,
    SPLIT_BOX,
    SPLIT_ROW_BYTES,
    Tile,
    row_bytes_of,
    stages_of,
    tiles_for,
)
from conv_advisor.kernels.cuda.implicit_gemm_tma.small import SmallTile
from conv_advisor.kernels.cuda.implicit_gemm_tma.split import SplitTile
from conv_advisor.kernels.cuda.implicit_gemm_tma.straight import StraightTile
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.offers import (
    Choice,
    Cut,
    Offer,
    cheapest,
    choice_of,
    expected_of,
    offered,
)
from conv_advisor.kernels.cuda.parts.shapes import Problems, Shapes, is_dense
from conv_advisor.kernels.cuda.parts.source import Defines, Source

_PROCESSORS: Final = 132
"""Multiprocessors of the device that `CLUSTERS` was measured on."""
_AT_A_TIME: Final = np.array([0, _PROCESSORS, *CLUSTERS.values()])
"""Clusters that run at a time on that device, indexed by blocks of a cluster; 1 is a block alone."""
_CHOICES: Final[Mapping[DType, Choice[Tile]]] = {dtype: choice_of(tiles_for(dtype), max(CLUSTERS)) for dtype in DType}

AnyTile = Tile | SmallTile | SplitTile | StraightTile


def tiles_of(tile: AnyTile, problems: Problems) -> tuple[Any, Any]:
    """Tiles of pixels and of filters."""
    return ceil_div(problems.n * problems.p * problems.q, tile.bp), ceil_div(problems.k, tile.bf)


def blocks_of(cut: Cut[Any], problem: ConvProblem, device: Device) -> int:
    """Blocks of the grid."""
    if isinstance(cut.tile, SmallTile):
        arrangement = small.arranged(cut.tile, problem, device.processors or 1)
        return int(arrangement.columns * arrangement.rows)
    if isinstance(cut.tile, SplitTile | StraightTile):
        across, down = tiles_of(cut.tile, problem)
        return int(across * down) * cut.cluster
    return int(_grid(cut.tile, cut.cluster, problem, device))


def _grid(tile: Tile, cluster: Any, problems: Problems, device: Device) -> Any:
    """Blocks of the grid: a cluster for every tile; without clusters, one per multiprocessor, at most one per tile."""
    across, down = tiles_of(tile, problems)
    count = across * down
    return np.where(np.greater(cluster, 1), count * cluster, np.minimum(count, device.processors or 1))


def received_bytes(tile: Tile, cluster: Any, dtype: DType) -> Any:
    """Bytes that other blocks push to a block: their sums of its boxes, which replace its stages."""
    sums_of_box = SPLIT_BOX * BOX_ROW_BYTES // dtype.itemsize_bytes
    return ceil_div(tile.boxes(dtype, SPLIT_BOX), cluster) * (cluster - 1) * sums_of_box * 4


def turns_of(tile: Tile, cluster: Any, problems: Problems, device: Device) -> Any:
    """Tiles that a block, or the multiprocessors of a cluster, computes one after the other."""
    across, down = tiles_of(tile, problems)
    room = _AT_A_TIME[cluster] * (device.processors or 1) // _PROCESSORS
    return ceil_div(across * down, np.maximum(1, room))


def expect(tile: Tile, cluster: Any, problems: Problems, device: Device) -> Any:
    """Time in us of the busiest multiprocessor.

    Parameters
    ----------
    tile : Tile
        One tile, or several `stacked`.
    cluster : int or int array
        Blocks that share a tile's gemm_k.
    problems : ConvProblem or Shapes
    device : Device
    """
    costs, row_bytes = menu.costs_of(tile, problems.dtype), row_bytes_of(problems)
    x_bytes = menu.multiplied_bytes(problems)
    multiplied = tile.bp * tile.bf * x_bytes * tile.products / np.where(tile.of_halves, 2, 1) / BYTES_OF_CYCLE
    shared = (tile.bp * x_bytes + tile.bf * row_bytes) / costs.loaded_bytes
    of_pixel, of_filter = row_cycles(problems, costs.pixel)
    walked = tile.bp * of_pixel + np.minimum(tile.bf, problems.k) * of_filter
    in_turn = side_by_side(multiplied, shared, walked) + costs.stage
    summed = ceil_div(stages_of(problems), cluster) * in_turn
    stored = tile.boxes(problems.dtype, BOX) / cluster / np.where(tile.by_turns, 1, GROUPS) * costs.box
    turns = turns_of(tile, cluster, problems, device)
    by_turns = np.maximum(turns * (summed + costs.turn), turns / GROUPS * (summed + stored)) + stored
    pushed = costs.meeting + tile.bp * tile.bf * (1 - 1 / cluster) / 1024 * costs.push
    alone = costs.start + np.where(tile.by_turns, by_turns, turns * (summed + stored))
    together = turns * (costs.start + summed + pushed + stored)
    of_tiles = np.where(np.greater(cluster, 1), together, alone)
    memory = memory_cycles(problems, device.processors or 1)
    return np.hypot(of_tiles, memory) / CYCLES_OF_US


def offers(problems: Shapes, device: Device) -> tuple[Offer[Any], ...]:
    """Every large tile, alone or shared by blocks that each have a stage and room to receive sums; and small tiles.

    Parameters
    ----------
    problems : Shapes
        Layers that the kernel computes.
    device : Device
    """
    choice = _CHOICES[problems.dtype]
    tile, cluster = choice.tile, choice.cluster
    has_room = received_bytes(tile, cluster, problems.dtype) <= tile.ring_bytes
    is_shared = (
        (cluster <= stages_of(problems)) & (row_bytes_of(problems) == SPLIT_ROW_BYTES) & has_room & tile.is_shareable
    )
    us = np.where(is_shared | (cluster == 1), expect(tile, cluster, problems, device), np.inf)
    large = offered(choice, tile.bp * tile.bf, us, _grid(tile, cluster, problems, device))
    return large, *small.offers(problems, device), *split.offers(problems, device), *straight.offers(problems, device)


def expected(problem: ConvProblem, device: Device) -> dict[Cut[AnyTile], float]:
    """The cuts of one problem, and the expected time of each in us."""
    return expected_of(offers(Shapes.of(by_patches(problem)), device))


def plan_cut(problem: ConvProblem, device: Device) -> Cut[AnyTile]:
    """The cut that is expected to be fastest."""
    cut: Cut[AnyTile] = cheapest(offers(Shapes.of(problem), device))
    return cut


def build_of(cut: Cut[AnyTile], problem: ConvProblem) -> tuple[Source, Defines]:
    """The source of a cut's kernel, which has the kernel's name, and its definitions."""
    row_bytes, dense = row_bytes_of(problem), bool(is_dense(problem))
    if isinstance(cut.tile, SmallTile):
        return small.SOURCE, cut.tile.defines(row_bytes, is_dense=dense)
    if isinstance(cut.tile, SplitTile):
        return split.SOURCE, cut.tile.defines(problem.dtype, is_dense=dense)
    if isinstance(cut.tile, StraightTile):
        return straight.SOURCE, cut.tile.defines(is_dense=dense, is_whole=bool(straight.is_whole(problem)))
    return SOURCE, cut.tile.defines(row_bytes, is_dense=dense, is_split=cut.cluster > 1)


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions of implicit_gemm_tma.cu for this precision."""
    rows = ROW_BYTES if dtype is not DType.FLOAT32 else (SPLIT_ROW_BYTES,)
    return tuple(
        tile.defines(row_bytes, is_dense=is_dense, is_split=is_split)
        for tile in tiles_for(dtype)
        for row_bytes, is_split in (*((row_bytes, False) for row_bytes in rows), (SPLIT_ROW_BYTES, True))
        if tile.is_shareable or not is_split
        for is_dense in (False, True)
    )


SOURCE: Final = Source("implicit_gemm_tma", definitions, architecture="sm_90a")
