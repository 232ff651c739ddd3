"""How the implicit GEMM fed by the tensor memory accelerator cuts a problem: its tile, and how many blocks share it."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.implicit_gemm_tma import menu, small
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import (
    BOX,
    BOX_ROW_BYTES,
    CLUSTERS,
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
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.shapes import is_dense
from conv_advisor.kernels.cuda.parts.source import Defines, Source

_BYTES_OF_CYCLE: Final = 4096
"""Operand bytes, pixels times filters times bytes of a row, that the tensor cores of a multiprocessor multiply."""
_PROCESSORS: Final = 132
"""Multiprocessors of the device that `CLUSTERS` is of."""
_CYCLES_OF_US: Final = 1755
"""The clock under load."""


AnyTile = Tile | SmallTile


def tiles_of(tile: AnyTile, problem: ConvProblem) -> tuple[int, int]:
    """Tiles of pixels and of filters."""
    return ceil_div(problem.n * problem.p * problem.q, tile.bp), ceil_div(problem.k, tile.bf)


def blocks_of(cut: Cut[AnyTile], problem: ConvProblem, device: Device) -> int:
    """A cluster for every tile; of blocks alone one for every multiprocessor, or tile where these are fewer."""
    if isinstance(cut.tile, SmallTile):
        of = small.arranged(cut.tile, problem, device.processors or 1)
        return of.columns * of.rows
    across, down = tiles_of(cut.tile, problem)
    if cut.cluster > 1:
        return across * down * cut.cluster
    return min(across * down, device.processors or 1)


def received_bytes(cut: Cut[Tile], dtype: DType) -> int:
    """What other blocks push to one: their sums of its boxes, where its stages were."""
    sums_of_box = SPLIT_BOX * BOX_ROW_BYTES // dtype.itemsize_bytes
    own: int = ceil_div(cut.tile.boxes(dtype, SPLIT_BOX), cut.cluster)
    return own * (cut.cluster - 1) * sums_of_box * 4


def cuts_of(problem: ConvProblem, device: Device) -> tuple[Cut[AnyTile], ...]:
    """Every tile alone, and large ones shared by as many blocks as have a stage and room for what they receive."""
    shared_by = [size for size in CLUSTERS if size <= stages_of(problem) and row_bytes_of(problem) == SPLIT_ROW_BYTES]
    cuts = (Cut(tile, cluster) for tile in tiles_for(problem.dtype) for cluster in (1, *shared_by))
    large = (cut for cut in cuts if received_bytes(cut, problem.dtype) <= cut.tile.ring_bytes)
    return (*large, *(Cut(tile, 1) for tile in small.tiles_for(problem, device.processors or 1)))


def turns_of(cut: Cut[Tile], problem: ConvProblem, device: Device) -> int:
    """Tiles that come to a block, or to the multiprocessors of a cluster, one after the other."""
    across, down = tiles_of(cut.tile, problem)
    processors = device.processors or 1
    room = processors if cut.cluster == 1 else CLUSTERS[cut.cluster] * processors // _PROCESSORS
    turns: int = ceil_div(across * down, max(1, room))
    return turns


def expected_us(cut: Cut[AnyTile], problem: ConvProblem, device: Device) -> float:
    """Time of the multiprocessor that has most to do."""
    if isinstance(cut.tile, SmallTile):
        return small.expected_cycles(cut.tile, problem, device.processors or 1) / _CYCLES_OF_US
    return _expected_cycles(cut, problem, device) / _CYCLES_OF_US


def _expected_cycles(cut: Cut[Tile], problem: ConvProblem, device: Device) -> float:
    tile, costs, row_bytes = cut.tile, menu.COSTS[problem.dtype], row_bytes_of(problem)
    multiplied = tile.bp * tile.bf * row_bytes * tile.products / _BYTES_OF_CYCLE
    loaded = (tile.bp + tile.bf) * row_bytes / costs.loaded_bytes
    summed = ceil_div(stages_of(problem), cut.cluster) * (max(multiplied, loaded) + costs.stage)
    stored = tile.boxes(problem.dtype, BOX) / cut.cluster / GROUPS * costs.box
    turns = turns_of(cut, problem, device)
    if cut.cluster == 1:
        return float(costs.start + turns * (summed + stored))
    pushed = costs.meeting + tile.bp * tile.bf * (1 - 1 / cut.cluster) / 1024 * costs.push
    return float(turns * (costs.start + summed + pushed + stored))


def expected(problem: ConvProblem, device: Device) -> dict[Cut[AnyTile], float]:
    """The cuts of a problem, and the time in us that each is expected to take."""
    return {cut: expected_us(cut, problem, device) for cut in cuts_of(problem, device)}


def plan_cut(problem: ConvProblem, device: Device) -> Cut[AnyTile]:
    """The cut that is expected to be fastest."""
    times_us = expected(problem, device)
    return min(times_us, key=times_us.__getitem__)


def build_of(cut: Cut[AnyTile], problem: ConvProblem) -> tuple[Source, Defines]:
    """The source of a cut's kernel, which has its name, and what it is compiled with."""
    row_bytes, dense = row_bytes_of(problem), bool(is_dense(problem))
    if isinstance(cut.tile, SmallTile):
        return small.SOURCE, cut.tile.defines(row_bytes, is_dense=dense)
    return SOURCE, cut.tile.defines(row_bytes, is_dense=dense, is_split=cut.cluster > 1)


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """What implicit_gemm_tma.cu is compiled with for this precision."""
    rows = ROW_BYTES if dtype is not DType.FLOAT32 else (SPLIT_ROW_BYTES,)
    return tuple(
        tile.defines(row_bytes, is_dense=is_dense, is_split=is_split)
        for tile in tiles_for(dtype)
        for row_bytes, is_split in (*((row_bytes, False) for row_bytes in rows), (SPLIT_ROW_BYTES, True))
        for is_dense in (False, True)
    )


SOURCE: Final = Source("implicit_gemm_tma", definitions, architecture="sm_90a")
