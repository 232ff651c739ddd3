"""The tiles of the implicit GEMM of few input channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from conv_advisor.data.problem import DType

HALVES: Final = (DType.FLOAT16, DType.BFLOAT16)
FRAGMENT: Final = 16
"""Pixels of a tile of the products: neighbours in a row of y."""
WIDTHS: Final = (16, 32, 64)
"""Pixels in a row of what a block computes at a time."""
RUN: Final = 4
"""Pixels of x that a thread stages at a time."""


@dataclass(frozen=True)
class Tile:
    """What a block computes at a time: 8 `nt` filters of 16 `mt` x `warps` pixels.

    Parameters
    ----------
    mt, nt : int
        Tiles of 16 pixels and of 8 filters of a warp.
    warps : int
    blocks : int
        That a multiprocessor's registers must have room for.
    """

    mt: int
    nt: int
    warps: int
    blocks: int

    def defines(self, c: int, s: int) -> dict[str, int]:
        """What the source is compiled with for so many channels and columns of a filter."""
        sizes = {"MT": self.mt, "NT": self.nt, "WARPS": self.warps, "BLOCKS": self.blocks}
        return {"CHANNELS": c, "COLUMNS": s, **sizes}

    @property
    def pixels(self) -> int:
        """Pixels of y that a block computes."""
        return FRAGMENT * self.mt * self.warps

    @property
    def filters(self) -> int:
        """Filters that a block computes."""
        return 8 * self.nt

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps


@dataclass(frozen=True)
class Cut:
    """A tile, and how many of its pixels lie in a row.

    Parameters
    ----------
    tile : Tile
    tile_q : int
    """

    tile: Tile
    tile_q: int

    @property
    def tile_p(self) -> int:
        """Rows of y."""
        return self.tile.pixels // self.tile_q


TILES: Final = (
    Tile(2, 8, warps=8, blocks=2),
    Tile(2, 8, warps=4, blocks=4),
    Tile(4, 8, warps=4, blocks=2),
    Tile(1, 8, warps=4, blocks=5),
    Tile(2, 4, warps=4, blocks=5),
    Tile(4, 4, warps=4, blocks=3),
    Tile(1, 4, warps=4, blocks=7),
    Tile(4, 2, warps=8, blocks=2),
    Tile(2, 2, warps=4, blocks=7),
)
CUTS: Final = tuple(Cut(tile, tile_q) for tile in TILES for tile_q in WIDTHS)
