"""How Winograd with tiles of 4x4 outputs cuts a problem: the tile of its GEMM, the images of a chunk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.parts.fitted import fitted_on
from conv_advisor.kernels.cuda.parts.source import Source, each_once

OUT: Final = 4
"""Rows and columns of an output tile."""
TILES_OF: Final = {(3, 3): 6, (5, 5): 8}
"""Rows and columns of an input tile, for each filter."""
SLICE: Final = 16
"""Channels that an instruction multiplies at a time."""
DEPTH: Final = 2
"""Slices of a stage."""
BLOCK_TILES: Final = 32
"""Tiles that a block transforms."""
RUN_TILES: Final = 32
"""Tiles that a warp transforms back."""
PARTS: Final = 2
"""float16 numbers that represent a float32, to 22 bits."""
ROW_BYTES: Final = 32
"""Bytes of a row of a part of a slice."""
MOST_PARTS: Final = 32
"""Blocks that find the largest magnitude of an image, at most."""
LEAST_PART: Final = 4096
"""Elements per such block, at least."""


@dataclass(frozen=True)
class Tile:
    """The outputs of a block of the GEMM: `bm` filters of `bn` tiles, in channels last `bm` tiles of `bn` filters.

    Parameters
    ----------
    bm, bn : int
    stages : int
        Stages in shared memory at a time.
    blocks : int
        Blocks that a multiprocessor has room for.
    """

    bm: int
    bn: int
    stages: int
    blocks: int

    @property
    def threads(self) -> int:
        """Threads of a block: a group of 128 for every 64 of `bm`."""
        return self.bm * 2

    @property
    def shared_bytes(self) -> int:
        """Bytes of the ring of stages, or of the products that replace it, plus alignment."""
        ring = self.stages * DEPTH * PARTS * ROW_BYTES * (self.bm + self.bn)
        return max(ring, self.bm * (self.bn + 8) * 4) + 128

    @property
    def defines(self) -> dict[str, int]:
        """The definitions that the GEMM is compiled with."""
        return {"BM": self.bm, "BN": self.bn, "STAGES": self.stages, "BLOCKS": self.blocks}


@dataclass(frozen=True)
class TimedTile:
    """A tile, and the time of a generation of its blocks on a multiprocessor.

    Parameters
    ----------
    tile : Tile
    latency_us, stage_latency_us : float
        Time of a block alone on a multiprocessor, fixed and per stage.
    busy_us, stage_busy_us : float
        Time of each block on a busy multiprocessor, fixed and per stage.
    """

    tile: Tile
    latency_us: float
    stage_latency_us: float
    busy_us: float
    stage_busy_us: float


@dataclass(frozen=True)
class Menu:
    """The tiles of the GEMM, and the constants of their expected times.

    Parameters
    ----------
    tiles : tuple of TimedTile
    launch_us : float
        Time of the GEMM of a chunk, without its blocks.
    """

    tiles: tuple[TimedTile, ...]
    launch_us: float


H200: Final = Menu(
    (
        TimedTile(Tile(64, 64, 4, 3), 1.444, 0.534, 0.911, 0.173),
        TimedTile(Tile(64, 128, 4, 2), 1.736, 0.772, 1.77, 0.307),
        TimedTile(Tile(128, 64, 4, 2), 1.493, 0.779, 1.635, 0.293),
        TimedTile(Tile(128, 128, 3, 2), 3.756, 0.797, 2.661, 0.546),
        TimedTile(Tile(64, 256, 2, 2), 1.86, 1.392, 3.104, 0.696),
    ),
    launch_us=1.0,
)
"""Fitted to the times of 44 GEMMs: the tiles chosen take 1.0003 times as long as the fastest, at most 1.012 times."""
MENUS: Final[Mapping[str, Menu]] = {"nvidia-h200": H200}
"""By the device that they were fitted on."""
GEMM_DEFINES: Final = each_once(timed.tile.defines for menu in MENUS.values() for timed in menu.tiles)
"""The sets of definitions of winograd_gemm.cu."""
TRANSFORM_DEFINES: Final = tuple({"TILE": tile} for tile in TILES_OF.values())
"""The sets of definitions of the transforms."""
GEMM_SOURCE: Final = Source(
    "winograd_gemm", lambda dtype: GEMM_DEFINES if dtype is DType.FLOAT32 else (), architecture="sm_90a"
)
TRANSFORM_SOURCES: Final = {
    layout: Source(name, lambda dtype: TRANSFORM_DEFINES if dtype is DType.FLOAT32 else ())
    for layout, name in ((Layout.NCHW, "winograd_large"), (Layout.NHWC, "winograd_large_nhwc"))
}


@dataclass(frozen=True)
class Cut:
    """A tile of the GEMM, and the images of a chunk.

    Parameters
    ----------
    tile : Tile
    images : int
    """

    tile: Tile
    images: int


_LEAST: Final = H200.tiles[0].tile
"""Every other tile is a multiple of this one."""


def tile_of(problem: ConvProblem) -> int:
    """Rows and columns of an input tile."""
    return TILES_OF[problem.r, problem.s]


def positions_of(problem: ConvProblem) -> int:
    """Positions of an input tile, each of which is one GEMM."""
    return TILES_OF[problem.r, problem.s] ** 2


def tiles_of(problem: ConvProblem) -> int:
    """Tiles of an image."""
    return -(-problem.p // OUT) * -(-problem.q // OUT)


def slices_of(problem: ConvProblem) -> int:
    """Slices of the channels."""
    return -(-problem.c // SLICE)


def image_parts(problem: ConvProblem, device: Device) -> int:
    """Blocks that find the largest magnitude of an image."""
    useful_parts = min(ceil(8 * device.processors / problem.n), problem.c * problem.h * problem.w // LEAST_PART)
    return max(1, min(MOST_PARTS, useful_parts))


def has_tiles_left(problem: ConvProblem) -> bool:
    """Whether the GEMM has tiles on its left and filters on its right, and so writes neighbouring filters together."""
    return problem.layout is Layout.NHWC


def block_of(problem: ConvProblem, tile: Tile) -> tuple[int, int]:
    """Filters and tiles that a block of the GEMM multiplies."""
    return (tile.bn, tile.bm) if has_tiles_left(problem) else (tile.bm, tile.bn)


def rows_u(problem: ConvProblem, tile: Tile) -> int:
    """Rows of U: the filters, rounded up to whole blocks."""
    filters, _ = block_of(problem, tile)
    return -(-problem.k // filters) * filters


def rows_v(problem: ConvProblem, tile: Tile, images: int) -> int:
    """Rows of V: the tiles of ``images`` images, rounded up to whole blocks."""
    _, tiles = block_of(problem, tile)
    return -(-images * tiles_of(problem) // tiles) * tiles


def filters_m(problem: ConvProblem, tile: Tile) -> int:
    """Filters of M, rounded up to whole blocks where they are on the right of the GEMM."""
    return rows_u(problem, tile) if has_tiles_left(problem) else problem.k


def staged_bytes(problem: ConvProblem) -> int:
    """Shared memory of a block that transforms x: the rows that 32 tiles read, of 16 channels; 0 in channels last."""
    if problem.layout is Layout.NHWC:
        return 0
    tile = tile_of(problem)
    strips = min(BLOCK_TILES, (BLOCK_TILES - 2) // ceil(problem.q / OUT) + 2)
    pairs = OUT // 2 * BLOCK_TILES + ((tile - OUT) // 2 + 1) * strips
    pitch = ceil(4 * tile * pairs / 32) * 32 + 2
    return SLICE // 2 * pitch * 4


def scratch_bytes(problem: ConvProblem, tile: Tile, images: int) -> tuple[int, int, int, int, int]:
    """Bytes of U, of V and M for a chunk of ``images`` images, of the largest magnitudes, and of the scales."""
    n, k, u, v = problem.n, problem.k, rows_u(problem, tile), rows_v(problem, tile, images)
    positions = positions_of(problem)
    row_bytes = positions * slices_of(problem) * PARTS * ROW_BYTES
    m_bytes = 4 * positions * filters_m(problem, tile) * v
    return u * row_bytes, v * row_bytes, m_bytes, 4 * (n * MOST_PARTS + k), 4 * (n + k)


def workspace_bytes(problem: ConvProblem, cut: Cut) -> int:
    """Bytes of U, V and M, of the scales, and of the largest magnitudes that give them."""
    return sum(scratch_bytes(problem, cut.tile, cut.images))


def run_tiles(problem: ConvProblem) -> int:
    """Tiles that a warp transforms back at a time: whole rows of tiles where their outputs are stored together."""
    tiles_q = ceil(problem.q / OUT)
    return RUN_TILES if problem.q % 4 == 0 or tiles_q > RUN_TILES else RUN_TILES // tiles_q * tiles_q


def filters_of_run(problem: ConvProblem, device: Device, images: int) -> int:
    """Filters that a warp transforms back one after the other: several where the device still stays busy."""
    runs = ceil(images * tiles_of(problem) / run_tiles(problem)) * problem.k
    return max(1, min(4, runs // (device.processors * 64)))


def gemm_blocks(problem: ConvProblem, cut: Cut, images: int) -> int:
    """Blocks of the grid of the GEMM."""
    rows = rows_u(problem, cut.tile) * rows_v(problem, cut.tile, images)
    return positions_of(problem) * (rows // (cut.tile.bm * cut.tile.bn))


def least_workspace_bytes(problem: ConvProblem) -> int:
    """Workspace of one image at a time with the smallest tile: the least that any cut takes."""
    return sum(scratch_bytes(problem, _LEAST, 1))


def most_images(problem: ConvProblem, tile: Tile, limit_bytes: int) -> int:
    """Images whose workspace stays within the limit."""
    none = Cut(tile, 0)
    row_bytes = positions_of(problem) * (slices_of(problem) * PARTS * ROW_BYTES + 4 * filters_m(problem, tile))
    _, tiles = block_of(problem, tile)
    rows = (limit_bytes - workspace_bytes(problem, none)) // row_bytes
    return max(0, min(problem.n, rows // tiles * tiles // tiles_of(problem)))


def expected_us(problem: ConvProblem, device: Device, launch_us: float, timed: TimedTile, cut: Cut) -> float:
    """A model of the time of the GEMMs, good for choosing among tiles.

    Blocks run on a multiprocessor in generations of as many as fit. A generation takes its latency, or the time in
    which the multiprocessor works off all its blocks, whichever is longer.
    """
    stages = ceil(slices_of(problem) / DEPTH)
    latency = timed.latency_us + timed.stage_latency_us * stages
    busy = timed.busy_us + timed.stage_busy_us * stages
    processors = device.processors or 1  # unknown for a device that only a tree's card names; its workspace is needed
    generations, remaining = divmod(ceil(gemm_blocks(problem, cut, cut.images) / processors), cut.tile.blocks)
    last_us = max(latency, remaining * busy) if remaining else 0.0
    return ceil(problem.n / cut.images) * (launch_us + generations * max(latency, cut.tile.blocks * busy) + last_us)


def plan_cut(problem: ConvProblem, device: Device, limit_bytes: int) -> Cut:
    """The cut that the model expects to be fastest, among those whose blocks are not mostly empty."""
    menu, timed_cuts = fitted_on(device, MENUS), []
    filters, tiles = problem.k, problem.n * tiles_of(problem)
    left, right = (tiles, filters) if has_tiles_left(problem) else (filters, tiles)
    most_bm, most_bn = max(64, left), 2 * max(64, right)
    for timed in menu.tiles:
        is_filled = timed.tile.bm <= most_bm and timed.tile.bn < most_bn
        if is_filled and (images := most_images(problem, timed.tile, limit_bytes)):
            cut = Cut(timed.tile, ceil(problem.n / ceil(problem.n / images)))
            timed_cuts.append((expected_us(problem, device, menu.launch_us, timed, cut), cut))
    if not timed_cuts:
        raise WorkspaceExceeded(least_workspace_bytes(problem), limit_bytes)
    return min(timed_cuts, key=lambda timed_cut: timed_cut[0])[1]


def planned_bytes(problem: ConvProblem, device: Device, limit_bytes: int) -> int:
    """Workspace of the cut that `plan_cut` chooses."""
    return workspace_bytes(problem, plan_cut(problem, device, limit_bytes))
