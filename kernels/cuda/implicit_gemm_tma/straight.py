"""Tiles whose operands go from memory straight to registers: their launches and expected times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import DType
from conv_advisor.kernels.cuda.implicit_gemm_tma import menu
from conv_advisor.kernels.cuda.implicit_gemm_tma.cycles import memory_cycles, side_by_side
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import CYCLES_OF_US
from conv_advisor.kernels.cuda.implicit_gemm_tma.split import MOST_COLUMNS, Tiling, blocks_at_a_time, exchange_cycles
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.multiprocessor import HOPPER_BLOCK_BYTES, HOPPER_SHARED_BYTES, RESERVED_BYTES
from conv_advisor.kernels.cuda.parts.offers import Offer, choice_of, offered
from conv_advisor.kernels.cuda.parts.shapes import Problems, Shapes, is_dense
from conv_advisor.kernels.cuda.parts.source import Defines, Source

PIECE: Final = 8
"""Channels that a thread reads at a time."""
OF_STEP: Final = 4
"""Pieces of a step of gemm_k: two products."""
_COUNTER_BYTES: Final = 16
_LOAD_ROWS: Final = 8
"""Pixels, or filters, of which a warp reads one step with one load."""
_LARGEST_CLUSTER: Final = 16


@dataclass(frozen=True)
class StraightTile:
    """The outputs of a block: `bf` filters of `bp` pixels, in two-byte elements.

    Parameters
    ----------
    bp, bf : int
    rows, columns, parts : int
        Warps along the pixels, along the filters, and along gemm_k.
    ahead : int
        Steps that a warp loads before it multiplies the first of them.
    blocks : int
        Blocks that a multiprocessor's registers have room for.
    """

    bp: int
    bf: int
    rows: int
    columns: int
    parts: int
    ahead: int
    blocks: int

    @property
    def threads(self) -> Any:
        """Threads of a block, all of which multiply."""
        return 32 * self.rows * self.columns * self.parts

    def defines(self, *, is_dense: bool, is_whole: bool) -> Defines:
        """The source's definitions for this tile."""
        return {
            "BP": self.bp,
            "BF": self.bf,
            "WARPS_M": self.rows,
            "WARPS_N": self.columns,
            "WARPS_K": self.parts,
            "AHEAD": self.ahead,
            "BLOCKS": self.blocks,
            "IS_DENSE": int(is_dense),
            "IS_WHOLE": int(is_whole),
        }

    @property
    def sums_bytes(self) -> Any:
        """Shared memory of the sums of all warps, where several share gemm_k."""
        return (self.parts > 1) * self.parts * self.bp * (self.bf + 8 + self.bf % 16) * 4


TILES: Final = (
    StraightTile(16, 8, 1, 1, 8, ahead=4, blocks=2),
    StraightTile(16, 16, 1, 1, 8, ahead=4, blocks=2),
    StraightTile(16, 32, 1, 1, 8, ahead=3, blocks=2),
    StraightTile(32, 16, 1, 1, 8, ahead=3, blocks=2),
    StraightTile(32, 32, 1, 1, 8, ahead=4, blocks=1),
    StraightTile(64, 32, 2, 1, 4, ahead=3, blocks=1),
    StraightTile(64, 32, 4, 2, 1, ahead=2, blocks=2),
    StraightTile(64, 64, 2, 2, 1, ahead=2, blocks=2),
)
_CHOICE: Final = choice_of(TILES, _LARGEST_CLUSTER)


@dataclass(frozen=True)
class Arrangement(Tiling):
    """A tiling, and the steps and shared memory of a block.

    Parameters
    ----------
    steps : int
        Steps of gemm_k.
    shared_bytes : int
        Shared memory of a block.
    """

    steps: Any
    shared_bytes: Any


def pieces_of(problems: Problems) -> Any:
    """Pieces of gemm_k."""
    return problems.r * problems.s * ceil_div(problems.c, PIECE)


def is_whole(problems: Problems) -> Any:
    """Whether every pixel of x is one of y, and gemm_k has whole steps."""
    return is_dense(problems) & (problems.c % (OF_STEP * PIECE) == 0)


def arranged(tile: StraightTile, cluster: Any, problems: Problems) -> Arrangement:
    """The arrangement of a tile and cluster: tiles of equal size."""
    tiling = Tiling.of(tile.bp, tile.bf, cluster, problems)
    shared_bytes = _COUNTER_BYTES + tile.sums_bytes + tiling.received_bytes
    return Arrangement(**vars(tiling), steps=ceil_div(pieces_of(problems), OF_STEP), shared_bytes=shared_bytes)


def expected_cycles(
    tile: StraightTile, cluster: Any, problems: Problems, arrangement: Arrangement, processors: int
) -> Any:
    """Cycles of the busiest multiprocessor, where of concurrent work the longest part counts most."""
    costs = menu.STRAIGHT_COSTS
    blocks = arrangement.down * arrangement.columns * cluster
    resident = np.minimum(tile.blocks, HOPPER_SHARED_BYTES // (arrangement.shared_bytes + RESERVED_BYTES))
    room = blocks_at_a_time(cluster, resident, processors)
    waves = ceil_div(blocks, room)
    tiles = np.minimum(waves * resident, ceil_div(blocks, processors))
    steps = ceil_div(arrangement.steps, cluster)
    ratio = np.where(is_dense(problems), costs.pixel, costs.window)
    step_bytes = (arrangement.filters + arrangement.pixels * ratio) * OF_STEP * PIECE * 2
    loads = (tile.bp * tile.columns + tile.bf * tile.rows) / _LOAD_ROWS
    addressing = tile.bp * tile.columns / _LOAD_ROWS * np.where(is_dense(problems), 0.0, costs.address)
    turns = ceil_div(steps, tile.parts * tile.ahead)
    concurrent = (
        tiles * steps * step_bytes / costs.read_bytes,
        blocks * steps * step_bytes / processors / costs.shared_bytes,
        memory_cycles(problems, processors),
        tiles * steps * (loads * costs.load + addressing),
        waves * turns * costs.turn,
    )
    added = np.where(tile.parts > 1, 1 + tile.parts / np.minimum(cluster, 2), 0)
    summed = tiles * tile.bp * tile.bf / 1024 * costs.outputs * added
    issued = tile.ahead * (tile.bp / tile.rows + tile.bf / tile.columns) / _LOAD_ROWS * costs.ask
    cycles = costs.start + issued + tiles * costs.block + side_by_side(*concurrent) + summed
    return cycles + waves * exchange_cycles(costs, cluster, tiles * tile.bp * tile.bf)


def offers(problems: Shapes, device: Device) -> tuple[Offer[StraightTile], ...]:
    """Every tile of two-byte elements, with clusters whose blocks all have a step.

    Parameters
    ----------
    problems : Shapes
        Layers that the kernel computes.
    device : Device
    """
    if problems.dtype.itemsize_bytes != 2:
        return ()
    tile, cluster, processors = _CHOICE.tile, _CHOICE.cluster, device.processors or 1
    arrangement = arranged(tile, cluster, problems)
    is_possible = (cluster <= np.where(tile.parts > 1, arrangement.steps, 1)) & (arrangement.columns <= MOST_COLUMNS)
    is_possible &= arrangement.shared_bytes <= HOPPER_BLOCK_BYTES
    us = np.where(is_possible, expected_cycles(tile, cluster, problems, arrangement, processors) / CYCLES_OF_US, np.inf)
    return (offered(_CHOICE, tile.bp * tile.bf, us, arrangement.down * arrangement.columns * cluster),)


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions of implicit_gemm_straight.cu for this precision."""
    if dtype.itemsize_bytes != 2:
        return ()
    forms = ((False, False), (True, False), (True, True))
    return tuple(tile.defines(is_dense=is_dense, is_whole=is_whole) for tile in TILES for is_dense, is_whole in forms)


SOURCE: Final = Source("implicit_gemm_straight", definitions, architecture="sm_90a")
