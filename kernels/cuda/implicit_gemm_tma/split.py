"""Small tiles of four-byte elements, whose gemm_k warps and blocks share: how they are launched, and their time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import DType
from conv_advisor.kernels.cuda.implicit_gemm_tma import menu
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import ALIGNMENT, CYCLES_OF_US, row_bytes_of, stages_of
from conv_advisor.kernels.cuda.implicit_gemm_tma.small import memory_cycles, side_by_side
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.multiprocessor import HOPPER_SHARED_BYTES, RESERVED_BYTES
from conv_advisor.kernels.cuda.parts.offers import Offer, choice_of, offered
from conv_advisor.kernels.cuda.parts.shapes import Problems, Shapes, is_dense
from conv_advisor.kernels.cuda.parts.source import Defines, Source

ROW_BYTES: Final = 128
"""Of a stage: layers with shorter rows have none of these tiles."""
MOST_SLOTS: Final = 32
"""For which the source has barriers."""
_BARRIER_BYTES: Final = (2 * MOST_SLOTS + 1) * 8
_FILTERS_UNIT: Final = 8
"""Rows of the swizzle."""
_LEAST_SLOTS: Final = 3
"""Stages in shared memory at a time, or all."""
_LARGEST_CLUSTER: Final = 16
_MOST_COLUMNS: Final = 65_535
"""Of the grid."""
_GROUP_PROCESSORS: Final = 16
"""Multiprocessors that a cluster lies within."""


@dataclass(frozen=True)
class SplitTile:
    """What a block computes: `bf` filters of `bp` pixels, of four bytes an element.

    Parameters
    ----------
    bp, bf : int
    rows, columns, parts : int
        Warps along the pixels, along the filters, and along a stage.
    blocks : int
        That a multiprocessor's registers have room for.
    """

    bp: int
    bf: int
    rows: int
    columns: int
    parts: int
    blocks: int

    @property
    def threads(self) -> int:
        """Warps that multiply, and one that loads."""
        return 32 * (self.rows * self.columns * self.parts + 1)

    def defines(self, dtype: DType, *, is_dense: bool) -> Defines:
        """What the source is compiled with."""
        return {
            "BP": self.bp,
            "BF": self.bf,
            "WARPS_M": self.rows,
            "WARPS_N": self.columns,
            "WARPS_K": self.parts,
            "BLOCKS": self.blocks,
            "IS_DENSE": int(is_dense),
            "SPLIT": int(dtype is DType.FLOAT32),
        }

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage."""
        return (self.bp + self.bf) * ROW_BYTES

    @property
    def sums_bytes(self) -> int:
        """Shared memory of the sums of all warps, where stages were."""
        return self.parts * self.bp * (self.bf + 8) * 4


TILES: Final = (
    SplitTile(32, 16, 1, 1, 4, blocks=4),
    SplitTile(32, 32, 1, 1, 4, blocks=4),
    SplitTile(32, 64, 1, 2, 4, blocks=2),
    SplitTile(32, 128, 1, 4, 2, blocks=2),
    SplitTile(64, 16, 2, 1, 4, blocks=2),
    SplitTile(64, 32, 2, 1, 2, blocks=4),
    SplitTile(64, 32, 2, 1, 4, blocks=2),
    SplitTile(64, 64, 2, 2, 2, blocks=2),
    SplitTile(64, 128, 2, 4, 1, blocks=2),
    SplitTile(128, 32, 4, 1, 2, blocks=2),
    SplitTile(128, 64, 4, 2, 1, blocks=2),
)

_CHOICE: Final = choice_of(TILES, _LARGEST_CLUSTER)


@dataclass(frozen=True)
class Arrangement:
    """How a launch shares a problem out among blocks, and what it gives each: of one problem and cut, or of many.

    Parameters
    ----------
    down, columns : int
        Tiles of pixels and of filters.
    pixels, filters : int
        Of a tile: of all the same.
    owned : int
        Pixels of a tile that a block of a cluster adds up and stores.
    resident : int
        Blocks of a multiprocessor.
    slots : int
        Stages in shared memory at a time.
    body_bytes, shared_bytes : int
        Of a block: of its stages or sums, and of all.
    """

    down: Any
    columns: Any
    pixels: Any
    filters: Any
    owned: Any
    resident: Any
    slots: Any
    body_bytes: Any
    shared_bytes: Any

    @property
    def fits(self) -> Any:
        """Whether there is shared memory for the sums, and for stages enough to load ahead."""
        return self.slots > 0


def arranged(tile: SplitTile, cluster: Any, problems: Problems, processors: int) -> Arrangement:
    """As many blocks of a multiprocessor as come to it and it holds; the shared memory that is left goes to stages."""
    all_pixels = problems.n * problems.p * problems.q
    down, columns = ceil_div(all_pixels, tile.bp), ceil_div(problems.k, tile.bf)
    pixels = ceil_div(all_pixels, down)
    filters = ceil_div(problems.k, columns * _FILTERS_UNIT) * _FILTERS_UNIT
    owned = ceil_div(pixels, cluster)
    resident = np.clip(ceil_div(down * columns * cluster, processors), 1, tile.blocks)
    received = np.where(np.greater(cluster, 1), cluster * owned * tile.bf * 4, 0)
    beside = _BARRIER_BYTES + ALIGNMENT + received
    room = HOPPER_SHARED_BYTES // resident - RESERVED_BYTES - beside
    of_block = ceil_div(stages_of(problems), cluster)
    fitting = np.minimum(room // tile.stage_bytes, MOST_SLOTS)
    is_enough = (fitting >= np.minimum(of_block, _LEAST_SLOTS)) & (tile.sums_bytes <= room)
    slots = np.where(is_enough, np.minimum(fitting, of_block), 0)
    body = np.maximum(slots * tile.stage_bytes, tile.sums_bytes)
    return Arrangement(down, columns, pixels, filters, owned, resident, slots, body, beside + body)


def blocks_at_a_time(cluster: Any, resident: Any, processors: int) -> Any:
    """Blocks that run at a time, so many a multiprocessor: a cluster lies within one group of multiprocessors."""
    groups = processors // _GROUP_PROCESSORS
    clusters = np.maximum(1, groups * (_GROUP_PROCESSORS * resident // cluster))
    return np.where(np.greater(cluster, 1), clusters * cluster, processors * resident)


def expected_cycles(tile: SplitTile, cluster: Any, problems: Problems, of: Arrangement, processors: int) -> Any:
    """Of the multiprocessor that has most to do: of what passes side by side most of all the longest."""
    costs, products = menu.SPLIT_COSTS[problems.dtype], 3 if problems.dtype is DType.FLOAT32 else 1
    blocks = of.down * of.columns * cluster
    waves = ceil_div(blocks, blocks_at_a_time(cluster, of.resident, processors))
    stages, tiles = ceil_div(stages_of(problems), cluster), waves * of.resident
    of_pixel = np.where(is_dense(problems), ROW_BYTES / costs.loaded_bytes, costs.pixel)
    of_rows = of.pixels * of_pixel + of.filters * ROW_BYTES / costs.loaded_bytes
    warps = tile.rows * tile.columns * tile.parts
    step = tile.bp * tile.bf * products / costs.products
    aside = (
        tiles * stages * of_rows,
        blocks * stages * (of.pixels + of.filters) * ROW_BYTES / processors / costs.shared_bytes,
        memory_cycles(problems, processors),
        tiles * stages * np.maximum(step, 1) * (1 + costs.lone / (warps * of.resident)),
        waves * stages * costs.stage,
    )
    summed = tiles * tile.bp * tile.bf / 1024 * (costs.outputs * tile.parts / np.minimum(cluster, 2) + costs.outputs)
    shared = costs.meeting + costs.rank * cluster + tiles * tile.bp * tile.bf / 1024 * costs.push
    cycles = costs.start + waves * costs.wave + of.resident * costs.block + side_by_side(*aside) + summed
    return cycles + np.where(np.greater(cluster, 1), waves * shared, 0.0)


def offers(problems: Shapes, device: Device) -> tuple[Offer[SplitTile], ...]:
    """Every tile of four-byte elements that has slots enough, with clusters whose blocks all have a stage.

    Parameters
    ----------
    problems : Shapes
        Layers that the kernel computes.
    device : Device
    """
    if problems.dtype.itemsize_bytes != 4:
        return ()
    tile, cluster, processors = _CHOICE.tile, _CHOICE.cluster, device.processors or 1
    of = arranged(tile, cluster, problems, processors)
    is_possible = of.fits & (cluster <= stages_of(problems)) & (row_bytes_of(problems) == ROW_BYTES)
    is_possible &= of.columns <= _MOST_COLUMNS
    us = np.where(is_possible, expected_cycles(tile, cluster, problems, of, processors) / CYCLES_OF_US, np.inf)
    return (offered(_CHOICE, tile.bp * tile.bf, us, of.down * of.columns * cluster),)


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """What implicit_gemm_tma_split.cu is compiled with for this precision."""
    if dtype.itemsize_bytes != 4:
        return ()
    return tuple(tile.defines(dtype, is_dense=is_dense) for tile in TILES for is_dense in (False, True))


SOURCE: Final = Source("implicit_gemm_tma_split", definitions, architecture="sm_90a")
