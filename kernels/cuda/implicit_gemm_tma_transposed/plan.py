"""How the implicit GEMM of planar tensors that the accelerator feeds cuts a problem: tile, and blocks that share it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.implicit_gemm_nhwc.packing import images_of
from conv_advisor.kernels.cuda.implicit_gemm_tma.cycles import memory_cycles, side_by_side
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import (
    BYTES_OF_CYCLE,
    CYCLES_OF_US,
    ROW_BYTES,
    row_bytes_of,
    stages_of,
)
from conv_advisor.kernels.cuda.implicit_gemm_tma.split import blocks_at_a_time, sharing
from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed import forms, menu
from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed.forms import BOX_PIXELS
from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed.menu import (
    HEAD_BYTES,
    LARGEST_CLUSTER,
    LINE,
    LINE_FILTERS,
    MOST_SLOTS,
    SHARED_TILES,
    SPLIT_ROW_BYTES,
    TILES,
    Tile,
)
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.multiprocessor import HOPPER_SHARED_BYTES, RESERVED_BYTES
from conv_advisor.kernels.cuda.parts.offers import Choice, Cut, Offer, cheapest, choice_of, expected_of, offered
from conv_advisor.kernels.cuda.parts.shapes import Problems, Shapes, is_dense
from conv_advisor.kernels.cuda.parts.source import Defines, Source

IM2COL, DENSE, PLANAR = range(3)
"""How x is read: packed along the windows, packed pixel by pixel, or as it lies."""
UNITS: Final = (8, 4, 1)
"""Pixels that are stored at a time."""
_LEAST_SLOTS: Final = 2
"""Stages in shared memory at a time, at least, unless there are fewer: one is released when the next is multiplied."""
_ALONE: Final[Choice[Tile]] = choice_of(TILES, 1)
_SHARED: Final[Choice[Tile]] = choice_of(SHARED_TILES, LARGEST_CLUSTER)


def form_of(problem: ConvProblem) -> int:
    """How x is read."""
    return PLANAR if forms.is_planar(problem) else DENSE if is_dense(problem) else IM2COL


def unit_of(problem: ConvProblem) -> int:
    """Pixels that are stored at a time: as many as planes have whole units of, and are aligned."""
    return next(unit for unit in UNITS if gcd(problem.p * problem.q, UNITS[0]) % unit == 0)


def pixels_of(problems: Problems, images: Any) -> Any:
    """Pixels of ``images`` images of y that tiles have: where x is read as it lies, those of whole boxes."""
    plane = problems.p * problems.q
    in_boxes = ceil_div(plane, BOX_PIXELS) * BOX_PIXELS
    return images * (plane + forms.is_planar(problems) * (in_boxes - plane))


@dataclass(frozen=True)
class Arrangement:
    """How a launch divides a problem among blocks, and the resources of each: for one problem and cut, or many.

    Parameters
    ----------
    across, tiles : int
        Tiles of filters, and all tiles.
    blocks : int
        Blocks of the grid.
    resident : int
        Blocks of a multiprocessor.
    slots : int
        Stages in shared memory at a time; too few where the cut is impossible.
    received_bytes : int
        Shared memory of a block for the sums of the other blocks of its cluster, which replace its stages.
    shared_bytes : int
        Shared memory of a block.
    """

    across: Any
    tiles: Any
    blocks: Any
    resident: Any
    slots: Any
    received_bytes: Any
    shared_bytes: Any


def arranged(
    tile: Tile, cluster: Any, problems: Problems, pixels: Any, processors: int, *, has_residual: bool = False
) -> Arrangement:
    """As many blocks as multiprocessors hold of the tile, or a cluster a tile; stages fill the shared memory."""
    across = ceil_div(problems.k, tile.bf)
    tiles = across * ceil_div(pixels, tile.bp)
    resident = sharing(tiles * cluster, cluster, tile.blocks, processors)
    blocks = np.where(np.greater(cluster, 1), tiles * cluster, np.minimum(tiles, processors * resident))
    lines_bytes = (1 + has_residual) * 4 * tile.groups * tile.chunk_bytes
    room = HOPPER_SHARED_BYTES // resident - RESERVED_BYTES - HEAD_BYTES - lines_bytes
    sums = LINE_FILTERS * tile.line * 4
    received = np.where(np.greater(cluster, 1), ceil_div(tile.chunks, cluster) * (cluster - 1) * sums, 0)
    stage_bytes = (tile.bf + tile.bp) * row_bytes_of(problems)
    of_block = ceil_div(stages_of(problems), cluster)
    slots = np.minimum(np.minimum(room // stage_bytes, MOST_SLOTS), of_block * ceil_div(tiles * cluster, blocks))
    slots = np.where(received <= room, slots, 0)
    shared = HEAD_BYTES + lines_bytes + np.maximum(slots * stage_bytes, received)
    return Arrangement(across, tiles, blocks, resident, slots, received, shared)


def expected_cycles(tile: Tile, cluster: Any, problems: Problems, pixels: Any, processors: int) -> Any:
    """Cycles of the busiest multiprocessor for one multiplication; of concurrent work the longest part counts most.

    Parameters
    ----------
    tile : Tile
        One tile, or several `stacked`.
    cluster : int or int array
        Blocks that share a tile's gemm_k.
    problems : ConvProblem or Shapes
        As they are multiplied.
    pixels : int or int array
        Pixels that tiles have.
    processors : int
    """
    costs, row_bytes = menu.COSTS, row_bytes_of(problems)
    of = arranged(tile, cluster, problems, pixels, processors)
    stages = ceil_div(stages_of(problems), cluster)
    at_a_time = blocks_at_a_time(cluster, of.resident, processors)
    turns = ceil_div(of.tiles * cluster, at_a_time)
    tiles = turns * of.resident
    of_row = row_bytes / costs.loaded_bytes
    of_pixel = np.where(is_dense(problems), of_row, costs.pixel)
    loaded = tile.bp * of_pixel + np.minimum(tile.bf, ceil_div(problems.k, 8) * 8) * of_row
    read = np.maximum(1, (64 + tile.columns) / (2 * tile.columns))  # longer than multiplied, from shared memory
    multiplied = tile.bf * tile.bp * row_bytes / BYTES_OF_CYCLE * read
    plane = problems.p * problems.q
    by_unit = np.where(plane % 8 == 0, 1.0, np.where(plane % 4 == 0, *costs.unit))
    stored = tile.chunks / (4 * tile.groups * cluster) * costs.chunk * by_unit
    in_turn = stages * np.maximum(np.maximum(loaded, multiplied), costs.stage) + costs.turn + stored
    concurrent = (
        tiles * stages * loaded,
        tiles * (stages * multiplied + tile.bf * tile.bp / 1024 / cluster * costs.outputs * by_unit),
        memory_cycles(problems, processors),
        turns * in_turn,
    )
    pushed = costs.meeting + of.resident * tile.bf * tile.bp * (1 - 1 / cluster) / 1024 * costs.push
    shared = np.where(np.greater(cluster, 1), turns * pushed, 0.0)
    return costs.start + of.resident * costs.block + side_by_side(*concurrent) + shared


def packing_cycles(problems: Problems, images: Any, processors: int) -> Any:
    """Cycles that a multiplication waits for the packing of its images; 0 where x is read as it lies."""
    moved = 2 * images * problems.h * problems.w * problems.c * problems.dtype.itemsize_bytes
    moved += 2 * problems.k * problems.r * problems.s * problems.c * problems.dtype.itemsize_bytes
    waited = menu.COSTS.packing + moved / menu.COSTS.packed_bytes / processors
    return np.where(forms.is_planar(problems), 0.0, waited)


def offers(problems: Shapes, device: Device, images: Any = None) -> tuple[Offer[Tile], ...]:
    """Every tile, alone or shared by blocks that each have a stage and room to receive sums.

    Parameters
    ----------
    problems : Shapes
        Layers that the kernel computes.
    device : Device
    images : int or int array, optional
        Images that are multiplied at a time; by default as many as the default limit allows.
    """
    processors, planar = device.processors or 1, forms.is_planar(problems)
    if images is None:
        images = np.where(planar, problems.n, images_of(problems))
    multiplied, pixels = replace(forms.packed(problems), n=images), pixels_of(problems, images)
    launches = ceil_div(problems.n, np.maximum(1, images))
    packing = packing_cycles(problems, images, processors)
    made = []
    for choice in (_ALONE, _SHARED):
        tile, cluster = choice.tile, choice.cluster
        of = arranged(tile, cluster, multiplied, pixels, processors)
        # A residual takes room too: what is possible does not depend on it.
        least = arranged(tile, cluster, multiplied, pixels, processors, has_residual=True)
        stages = stages_of(multiplied)
        is_possible = (least.slots >= np.minimum(_LEAST_SLOTS, ceil_div(stages, cluster))) & np.greater(images, 0)
        is_possible &= ~planar | (tile.columns % BOX_PIXELS == 0)
        is_shared = (cluster > 1) & (cluster <= stages) & (row_bytes_of(multiplied) == SPLIT_ROW_BYTES)
        is_possible &= is_shared if choice is _SHARED else True
        cycles = expected_cycles(tile, cluster, multiplied, pixels, processors)
        us = np.where(is_possible, launches * (packing + cycles) / CYCLES_OF_US, np.inf)
        made.append(offered(choice, tile.bf * tile.bp, us, of.blocks))
    return tuple(made)


def expected(problem: ConvProblem, device: Device) -> dict[Cut[Tile], float]:
    """The cuts of one problem, and the expected time of each in us."""
    return expected_of(offers(Shapes.of(problem), device))


def plan_cut(problem: ConvProblem, device: Device, images: int) -> Cut[Tile]:
    """The cut that is expected to be fastest for ``images`` images at a time."""
    cut: Cut[Tile] = cheapest(offers(Shapes.of(problem), device, images))
    return cut


def defines_of_cut(cut: Cut[Tile], problem: ConvProblem) -> Defines:
    """The definitions of a cut's kernel."""
    row_bytes, form = int(row_bytes_of(forms.packed(problem))), form_of(problem)
    return cut.tile.defines(row_bytes, form, unit_of(problem), is_split=cut.cluster > 1)


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions of the source for this precision."""
    if dtype.itemsize_bytes != 2:
        return ()
    return tuple(
        tile.defines(row_bytes, form, unit, is_split=is_split)
        for tile in TILES
        for row_bytes, is_split in (*((row_bytes, False) for row_bytes in ROW_BYTES), (SPLIT_ROW_BYTES, True))
        if not is_split or tile in SHARED_TILES
        for form in (IM2COL, DENSE, PLANAR)
        if form != PLANAR or tile.columns % LINE == 0
        for unit in (UNITS if form != PLANAR else UNITS[:1])
    )


SOURCE: Final = Source("implicit_gemm_tma_transposed", definitions, architecture="sm_90a")
