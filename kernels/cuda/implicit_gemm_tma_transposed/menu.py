"""The tiles of the implicit GEMM of planar tensors that the accelerator feeds, and what they are expected to cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from conv_advisor.kernels.cuda.parts.source import Defines

LINE: Final = 64
"""Pixels of a chunk of y, at most; a chunk has 16 filters and is a warp's."""
LINE_FILTERS: Final = 16
HEAD_BYTES: Final = 1024
"""Shared memory before the stages: barriers, and what aligns the stages."""
MOST_SLOTS: Final = 16
"""Stages for which the source has barriers."""
LARGEST_CLUSTER: Final = 16
"""Blocks that share a tile, at most."""
SPLIT_ROW_BYTES: Final = 128
"""Bytes of a row where blocks share a tile: with shorter rows there is little to share."""


@dataclass(frozen=True)
class Tile:
    """The outputs that a block computes at a time: `bf` filters of `bp` pixels.

    Parameters
    ----------
    bf, bp : int
    groups : int
        Groups of four warps that multiply, each a part of the filters.
    is_across : bool
        Whether groups have parts of the pixels instead.
    blocks : int
        Blocks that a multiprocessor's registers have room for.
    """

    bf: int
    bp: int
    groups: int
    is_across: bool
    blocks: int

    @property
    def threads(self) -> int:
        """Threads of the warps that multiply, and of one that loads."""
        return 128 * self.groups + 32

    @property
    def columns(self) -> Any:
        """Pixels of a group."""
        return self.bp // (1 + self.is_across * (self.groups - 1))

    @property
    def line(self) -> Any:
        """Pixels of a chunk of y."""
        return self.columns - (self.columns > LINE) * (self.columns - LINE)

    @property
    def chunk_bytes(self) -> Any:
        """Shared memory of a warp's chunk of y."""
        return LINE_FILTERS * self.line * 2

    @property
    def chunks(self) -> Any:
        """Chunks of y in a tile."""
        return self.bf * self.bp // (LINE_FILTERS * self.line)

    def defines(self, row_bytes: int, form: int, unit: int, *, is_split: bool) -> Defines:
        """The source's definitions for this tile."""
        return {
            "BF": self.bf,
            "BP": self.bp,
            "GROUPS": self.groups,
            "ACROSS": int(self.is_across),
            "BLOCKS": self.blocks,
            "ROW_BYTES": row_bytes,
            "FORM": form,
            "UNIT": unit,
            "IS_SPLIT": int(is_split),
        }


TILES: Final = (
    Tile(128, 256, 2, is_across=False, blocks=1),
    Tile(128, 192, 2, is_across=False, blocks=1),
    Tile(128, 128, 2, is_across=False, blocks=2),
    Tile(64, 256, 2, is_across=True, blocks=2),
    Tile(64, 128, 1, is_across=False, blocks=3),
    Tile(128, 64, 2, is_across=False, blocks=2),
    Tile(64, 64, 1, is_across=False, blocks=4),
    Tile(64, 32, 1, is_across=False, blocks=4),
)
SHARED_TILES: Final = TILES[2:3] + TILES[4:]
"""Tiles that blocks of a cluster may share."""


@dataclass(frozen=True)
class Costs:
    """Costs in cycles of a multiprocessor; bytes are per cycle.

    Parameters
    ----------
    start : float
        Cycles from a launch to the first products, and from the last outputs to the end.
    block : float
        Cycles of each block that runs on a multiprocessor.
    loaded_bytes : float
        Bytes that a multiprocessor gets from the L2 cache in a cycle.
    pixel : float
        Cycles of a pixel of a stage that im2col mode loads.
    stage, turn : float
        Cycles of a block from one stage to the next, at least, and from one tile to the next.
    chunk : float
        Cycles of a warp for a chunk of y in units of 16 bytes.
    outputs : float
        Cycles of a multiprocessor for 1024 outputs in such units.
    unit : tuple of float
        Times these where a unit has 4 pixels, and where it has 1.
    meeting, push : float
        Cycles of the blocks of a cluster, and of 1024 sums that a block gives to others.
    packed_bytes : float
        Bytes that a multiprocessor reads and writes in a cycle to pack x.
    packing : float
        Cycles that a product waits for a packing, beside its bytes.
    """

    start: float
    block: float
    loaded_bytes: float
    pixel: float
    stage: float
    turn: float
    chunk: float
    outputs: float
    unit: tuple[float, float]
    meeting: float
    push: float
    packed_bytes: float
    packing: float


COSTS: Final = Costs(
    start=1772.0,
    block=1608.0,
    loaded_bytes=100.3,
    pixel=2.15,
    stage=122.0,
    turn=556.0,
    chunk=109.5,
    outputs=73.2,
    unit=(1.71, 8.34),
    meeting=3035.0,
    push=645.0,
    packed_bytes=10.8,
    packing=2630.0,
)
"""Fitted to all cuts of 28 layers on an H200 (28 November 2026), before single pixels were stored as now. Those of the
packing, the same for all cuts of a layer, are an estimate for the kernel that has replaced the measured one."""
