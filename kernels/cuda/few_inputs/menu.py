"""The tiles of the implicit GEMM of few input channels, of two-byte types and of float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div

FRAGMENT: Final = 16
"""Pixels of a tile of the products: neighbours in a row of y."""
WIDTHS: Final = (16, 32, 64)
"""Widths in pixels of a block's tile: powers of two."""


@dataclass(frozen=True)
class Tile:
    """The outputs that a block computes at a time: 8 `nt` filters of 16 `mt` x `warps` pixels.

    Parameters
    ----------
    mt, nt : int
        Tiles of 16 pixels and of 8 filters of a warp.
    warps : int
    blocks : int
        Blocks that a multiprocessor's registers must have room for.
    is_joint : bool
        Of two-byte types: whether four warps multiply together.
    """

    mt: int
    nt: int
    warps: int
    blocks: int
    is_joint: bool = False

    @property
    def defines(self) -> dict[str, int]:
        """The definitions of a source for this tile."""
        return {"MT": self.mt, "NT": self.nt, "WARPS": self.warps, "BLOCKS": self.blocks}

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
        """Rows of y in a tile."""
        return self.tile.pixels // self.tile_q

    def tiles_of(self, problem: ConvProblem) -> tuple[int, int, int]:
        """Tiles of rows and of columns of an image, and of filters."""
        return (
            ceil_div(problem.p, self.tile_p),
            ceil_div(problem.q, self.tile_q),
            ceil_div(problem.k, self.tile.filters),
        )


def cuts_of(tiles: tuple[Tile, ...]) -> tuple[Cut, ...]:
    """The cuts of each tile: every width that does not exceed its pixels."""
    return tuple(Cut(tile, tile_q) for tile in tiles for tile_q in WIDTHS if tile_q <= tile.pixels)


HALF_TILES: Final = (
    Tile(2, 8, warps=8, blocks=2),
    Tile(2, 8, warps=4, blocks=4),
    Tile(4, 8, warps=4, blocks=2),
    Tile(1, 8, warps=4, blocks=5),
    Tile(2, 12, warps=4, blocks=2),
    Tile(1, 12, warps=4, blocks=4),
    Tile(2, 4, warps=4, blocks=5),
    Tile(4, 4, warps=4, blocks=3),
    Tile(1, 4, warps=4, blocks=7),
    Tile(4, 2, warps=8, blocks=2),
    Tile(2, 2, warps=4, blocks=7),
)
TAPS_TILES: Final = tuple(
    Tile(mt, nt, warps, blocks, is_joint=True)
    for mt, nt, warps, blocks in ((4, 2, 8, 2), (2, 4, 8, 2), (4, 4, 8, 2), (2, 8, 8, 2), (1, 12, 8, 2), (2, 12, 4, 3))
)
NARROW_TILES: Final = (
    Tile(2, 8, warps=8, blocks=2),
    Tile(2, 8, warps=4, blocks=4),
    Tile(4, 8, warps=4, blocks=2),
    Tile(2, 6, warps=4, blocks=4),
    Tile(4, 6, warps=4, blocks=3),
    Tile(4, 4, warps=8, blocks=2),
    Tile(4, 4, warps=4, blocks=4),
    Tile(2, 4, warps=4, blocks=6),
    Tile(4, 3, warps=4, blocks=4),
    Tile(2, 3, warps=4, blocks=6),
    Tile(4, 2, warps=8, blocks=3),
    Tile(4, 2, warps=4, blocks=6),
    Tile(2, 2, warps=4, blocks=8),
    Tile(4, 1, warps=4, blocks=8),
    Tile(2, 1, warps=4, blocks=8),
    Tile(1, 1, warps=2, blocks=16),
)
"""Tiles for whole runs of channels."""
MMA_TILES: Final = (
    Tile(2, 8, warps=4, blocks=2),
    Tile(1, 8, warps=8, blocks=3),
    Tile(1, 8, warps=4, blocks=6),
    Tile(2, 4, warps=8, blocks=3),
    Tile(2, 4, warps=4, blocks=6),
    Tile(1, 4, warps=4, blocks=6),
    Tile(4, 2, warps=4, blocks=5),
    Tile(2, 2, warps=4, blocks=7),
    Tile(1, 2, warps=2, blocks=16),
)
"""Tiles for float32 and tf32 that each warp multiplies by itself."""
WGMMA_TILES: Final = (
    Tile(1, 8, warps=4, blocks=4),
    Tile(1, 8, warps=8, blocks=2),
    Tile(1, 8, warps=16, blocks=1),
    Tile(2, 8, warps=4, blocks=2),
    Tile(1, 4, warps=8, blocks=4),
    Tile(1, 4, warps=16, blocks=2),
    Tile(2, 4, warps=4, blocks=3),
    Tile(1, 2, warps=4, blocks=8),
    Tile(2, 2, warps=4, blocks=5),
)
"""Tiles for float32 and tf32 that four warps multiply together."""
