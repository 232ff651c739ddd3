"""Small tiles whose gemm_k warps and blocks share: their launches and expected times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import DType
from conv_advisor.kernels.cuda.implicit_gemm_tma import menu
from conv_advisor.kernels.cuda.implicit_gemm_tma.costs import ClusterCosts
from conv_advisor.kernels.cuda.implicit_gemm_tma.cycles import memory_cycles, side_by_side
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import (
    ALIGNMENT,
    BYTES_OF_CYCLE,
    CYCLES_OF_US,
    row_bytes_of,
    stages_of,
)
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.multiprocessor import HOPPER_SHARED_BYTES, RESERVED_BYTES
from conv_advisor.kernels.cuda.parts.offers import Choice, Offer, choice_of, offered
from conv_advisor.kernels.cuda.parts.shapes import Problems, Shapes, is_dense
from conv_advisor.kernels.cuda.parts.source import Defines, Source

ROW_BYTES: Final = 128
"""Bytes of a row of a stage: layers with shorter rows have none of these tiles."""
MOST_SLOTS: Final = 32
"""Slots for which the source has barriers."""
_BARRIER_BYTES: Final = (3 * MOST_SLOTS + 1) * 8
_FILTERS_UNIT: Final = 8
"""Rows of the swizzle; a tile's filters are a multiple of it."""
_LEAST_SLOTS: Final = 3
"""Stages in shared memory at a time, at least, unless a block has fewer."""
_LARGEST_CLUSTER: Final = 16
_MOST_RESIDENT: Final = 4
"""Blocks of a multiprocessor, at most, for any tile."""
MOST_COLUMNS: Final = 65_535
"""Blocks in y that a grid may have."""
_GROUP_ROWS: Final = 64
"""Rows of a product that four warps make together."""
_GROUPS: Final = (18, 18, 16, 16, 16, 16, 16, 7)
"""Multiprocessors of each group of an H200 within which a cluster of more than two blocks lies, inferred from times of
cuts. A cluster has no more blocks than its group has multiprocessors, however many blocks share a multiprocessor."""
_PROCESSORS: Final = 132
"""Multiprocessors of that device."""


@dataclass(frozen=True)
class SplitTile:
    """The outputs of a block: `bf` filters of `bp` pixels.

    Parameters
    ----------
    bp, bf : int
    rows, columns, parts : int
        Warps along the rows of the products, along their columns, and along a stage.
    blocks : int
        Blocks that a multiprocessor's registers have room for.
    is_wgmma : bool
        Whether four warps multiply together, filters by pixels; else each warp by mma.sync, pixels by filters.
    is_parted : bool
        Whether, with wgmma in float32, three more warps write the low parts of pixels.
    """

    bp: int
    bf: int
    rows: int
    columns: int
    parts: int
    blocks: int
    is_wgmma: bool = False
    is_parted: bool = False

    @property
    def threads(self) -> int:
        """Threads of the warps that multiply, of one that loads, and of those that split pixels into parts."""
        return 32 * (self.rows * self.columns * self.parts + 1 + 3 * self.is_parted)

    def defines(self, dtype: DType, *, is_dense: bool) -> Defines:
        """The source's definitions for this tile."""
        return {
            "BP": self.bp,
            "BF": self.bf,
            "WARPS_M": self.rows,
            "WARPS_N": self.columns,
            "WARPS_K": self.parts,
            "BLOCKS": self.blocks,
            "WGMMA": int(self.is_wgmma),
            "IS_DENSE": int(is_dense),
            "SPLIT": int(dtype is DType.FLOAT32),
        }

    @property
    def stage_bytes(self) -> Any:
        """Shared memory of a stage."""
        return (self.bp * (1 + self.is_parted) + self.bf) * ROW_BYTES

    @property
    def sums_bytes(self) -> Any:
        """Shared memory of the sums of all warps, which replace the stages."""
        return self.parts * self.bp * (self.bf + 8 - 4 * self.is_wgmma) * 4


_WARPS: Final = (SplitTile(32, 16, 1, 1, 4, blocks=4), SplitTile(32, 32, 1, 1, 4, blocks=4))
_LARGER: Final = (SplitTile(64, 32, 2, 1, 4, blocks=2), SplitTile(32, 128, 1, 4, 2, blocks=2))
_PARTED: Final = tuple(SplitTile(bp, 64, 4, 1, 1, blocks=2, is_wgmma=True, is_parted=True) for bp in (24, 40, 48, 56))
_GROUPS_OF_WARPS: Final = tuple(
    SplitTile(bp, bf, bf // 16, 1, 1, blocks=2, is_wgmma=True)
    for bp, bf in ((56, 64), (64, 64), (112, 64), (56, 128), (112, 128))
)
TILES: Final[Mapping[DType, tuple[SplitTile, ...]]] = {
    DType.FLOAT32: (*_WARPS, *_PARTED),
    DType.TF32: (*_WARPS, *_LARGER),
    **dict.fromkeys((DType.FLOAT16, DType.BFLOAT16), _GROUPS_OF_WARPS),
}
"""The tiles of each precision."""
_CHOICES: Final[Mapping[DType, Choice[SplitTile]]] = {
    dtype: choice_of(tiles, _LARGEST_CLUSTER) for dtype, tiles in TILES.items()
}


@dataclass(frozen=True)
class Tiling:
    """How a launch divides a problem among blocks: for one problem and cut, or many.

    Parameters
    ----------
    down, columns : int
        Tiles of pixels and of filters.
    pixels, filters : int
        Pixels and filters of a tile, the same for all tiles.
    owned : int
        Pixels of a tile that a block of a cluster adds up and stores.
    received_bytes : int
        Shared memory of a block for the sums of the other blocks of its cluster.
    """

    down: Any
    columns: Any
    pixels: Any
    filters: Any
    owned: Any
    received_bytes: Any

    @classmethod
    def of(cls, bp: Any, bf: Any, cluster: Any, problems: Problems) -> Tiling:
        """Tiles of equal size, of at most ``bp`` pixels and ``bf`` filters."""
        all_pixels = problems.n * problems.p * problems.q
        down, columns = ceil_div(all_pixels, bp), ceil_div(problems.k, bf)
        pixels = ceil_div(all_pixels, down)
        filters = ceil_div(problems.k, columns * _FILTERS_UNIT) * _FILTERS_UNIT
        owned = ceil_div(pixels, cluster)
        received = np.where(np.greater(cluster, 1), cluster * owned * bf * 4, 0)
        return cls(down, columns, pixels, filters, owned, received)


@dataclass(frozen=True)
class Arrangement(Tiling):
    """A tiling, and the resources of each block.

    Parameters
    ----------
    resident : int
        Blocks of a multiprocessor.
    slots : int
        Stages in shared memory at a time.
    body_bytes, shared_bytes : int
        Shared memory of a block: of its stages or sums, and in all.
    """

    resident: Any
    slots: Any
    body_bytes: Any
    shared_bytes: Any

    @property
    def fits(self) -> Any:
        """Whether shared memory has room for the sums, and for enough stages to load ahead."""
        return self.slots > 0


def arranged(tile: SplitTile, cluster: Any, problems: Problems, processors: int) -> Arrangement:
    """As many blocks per multiprocessor as run on it and fit it; stages take the remaining shared memory."""
    tiling = Tiling.of(tile.bp, tile.bf, cluster, problems)
    resident = sharing(tiling.down * tiling.columns * cluster, cluster, tile.blocks, processors)
    fixed_bytes = _BARRIER_BYTES + ALIGNMENT + tiling.received_bytes
    room = HOPPER_SHARED_BYTES // resident - RESERVED_BYTES - fixed_bytes
    of_block = ceil_div(stages_of(problems), cluster)
    fitting = np.minimum(room // tile.stage_bytes, MOST_SLOTS)
    is_enough = (fitting >= np.minimum(of_block, _LEAST_SLOTS)) & (tile.sums_bytes <= room)
    slots = np.where(is_enough, np.minimum(fitting, of_block), 0)
    body = np.maximum(slots * tile.stage_bytes, tile.sums_bytes)
    return Arrangement(**vars(tiling), resident=resident, slots=slots, body_bytes=body, shared_bytes=fixed_bytes + body)


def blocks_at_a_time(cluster: Any, resident: Any, processors: int) -> Any:
    """Blocks that run at a time, ``resident`` per multiprocessor; a cluster lies within one group of these."""
    groups = [group * processors // _PROCESSORS for group in _GROUPS]
    clusters = sum(np.where(np.less_equal(cluster, group), group * resident // cluster, 0) for group in groups)
    return np.where(np.greater(cluster, 2), np.maximum(1, clusters) * cluster, processors * resident)


def sharing(blocks: Any, cluster: Any, most: Any, processors: int) -> Any:
    """Blocks that share a multiprocessor, at most: the fewest with which all ``blocks`` run at a time."""
    shared = np.minimum(1, blocks)
    for resident in range(1, _MOST_RESIDENT):
        shared += (blocks > blocks_at_a_time(cluster, resident, processors)) & (resident < most)
    return shared


def expected_cycles(
    tile: SplitTile, cluster: Any, problems: Problems, arrangement: Arrangement, processors: int
) -> Any:
    """Cycles of the busiest multiprocessor, where of concurrent work the longest part counts most."""
    costs, products = menu.SPLIT_COSTS[problems.dtype], 3 if problems.dtype is DType.FLOAT32 else 1
    blocks = arrangement.down * arrangement.columns * cluster
    resident = np.minimum(tile.blocks, HOPPER_SHARED_BYTES // (arrangement.shared_bytes + RESERVED_BYTES))
    waves, remaining = np.divmod(blocks, blocks_at_a_time(cluster, resident, processors))
    tiles = waves * resident + sharing(remaining, cluster, resident, processors)
    waves, stages = waves + (remaining > 0), ceil_div(stages_of(problems), cluster)
    of_pixel = np.where(is_dense(problems), ROW_BYTES / costs.loaded_bytes, costs.pixel)
    of_rows = arrangement.pixels * of_pixel + arrangement.filters * ROW_BYTES / costs.loaded_bytes
    warps = tile.rows * tile.columns * tile.parts
    by_mma = products / costs.products * (1 + costs.lone / (warps * np.minimum(resident, tiles)))
    by_wgmma = np.where(tile.is_parted, 0.0, ROW_BYTES / BYTES_OF_CYCLE)
    concurrent = (
        tiles * stages * of_rows,
        blocks * stages * (arrangement.pixels + arrangement.filters) * ROW_BYTES / processors / costs.shared_bytes,
        memory_cycles(problems, processors),
        tiles * stages * tile.bp * tile.bf * np.where(tile.is_wgmma, by_wgmma, by_mma),
        tiles * stages * local_bytes(tile, arrangement) / costs.local_bytes,
        waves * stages * np.where(tile.is_wgmma, costs.group_stage, costs.stage),
    )
    summed = tiles * tile.bp * tile.bf / 1024 * costs.outputs * (1 + tile.parts / np.minimum(cluster, 2))
    cycles = costs.start + np.minimum(resident, tiles) * costs.block + side_by_side(*concurrent) + summed
    return cycles + waves * exchange_cycles(costs, cluster, tiles * tile.bp * tile.bf)


def exchange_cycles(costs: ClusterCosts, cluster: Any, sums: Any) -> Any:
    """Cycles of a cluster whose blocks push ``sums`` sums per multiprocessor to each other; 0 for a block alone."""
    return np.where(np.greater(cluster, 1), costs.meeting + costs.rank * cluster + sums / 1024 * costs.push, 0.0)


def local_bytes(tile: SplitTile, arrangement: Arrangement) -> Any:
    """Bytes of a stage to and from shared memory: by the accelerator, warps that split pixels, registers, wgmma."""
    by_wgmma = (
        tile.bf + (1 + 2 * tile.is_parted) * tile.bp * tile.bf / _GROUP_ROWS + 2 * arrangement.pixels * tile.is_parted
    )
    by_warps = tile.bp * tile.columns + tile.bf * tile.rows
    return ROW_BYTES * (arrangement.pixels + arrangement.filters + np.where(tile.is_wgmma, by_wgmma, by_warps))


def offers(problems: Shapes, device: Device) -> tuple[Offer[SplitTile], ...]:
    """Every tile with enough slots, with clusters whose blocks all have a stage.

    Parameters
    ----------
    problems : Shapes
        Layers that the kernel computes.
    device : Device
    """
    choice = _CHOICES[problems.dtype]
    tile, cluster, processors = choice.tile, choice.cluster, device.processors or 1
    arrangement = arranged(tile, cluster, problems, processors)
    is_possible = arrangement.fits & (cluster <= stages_of(problems)) & (row_bytes_of(problems) == ROW_BYTES)
    is_possible &= arrangement.columns <= MOST_COLUMNS
    us = np.where(is_possible, expected_cycles(tile, cluster, problems, arrangement, processors) / CYCLES_OF_US, np.inf)
    return (offered(choice, tile.bp * tile.bf, us, arrangement.down * arrangement.columns * cluster),)


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions of implicit_gemm_tma_split.cu for this precision."""
    return tuple(tile.defines(dtype, is_dense=is_dense) for tile in TILES[dtype] for is_dense in (False, True))


SOURCE: Final = Source("implicit_gemm_tma_split", definitions, architecture="sm_90a")
