"""How the 1x1 convolution cuts a problem: its tile, how x is loaded, and how blocks share tiles and channels."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.fitted import fitted_on, tiles_of_every_device
from conv_advisor.kernels.cuda.parts.multiprocessor import HOPPER_BLOCK_BYTES, HOPPER_SHARED_BYTES, RESERVED_BYTES
from conv_advisor.kernels.cuda.parts.offers import Cut, Offer, cheapest, expected_of, offered
from conv_advisor.kernels.cuda.parts.shapes import Problems, Shapes, is_dense
from conv_advisor.kernels.cuda.parts.source import BorneSpill, Defines, Source
from conv_advisor.kernels.cuda.parts.waves import in_waves, stages_us
from conv_advisor.kernels.cuda.pointwise import menu as menus
from conv_advisor.kernels.cuda.pointwise.menu import Tile

SEGMENTS: Final = {4: (2,), 2: (2, 4)}
"""Images that the pixels of a tile may belong to where x is loaded in CHUNKS, by bytes of an element.

For four-byte elements, WORDS are faster where a tile has parts of more planes.
"""
MOST_COLUMNS: Final = 64
"""Copies in a row of CHUNKS, at most."""
ROW_BYTES: Final = 128
"""Bytes of the channels of one filter in a stage."""
_ALIGNMENT: Final = 1024


class Loading(IntEnum):
    """How a stage of x is copied to shared memory; the numbers are those of the .cu."""

    VECTORS = 0
    WORDS = 1
    CHUNKS = 2
    ELEMENTS = 3


def segments_of(problems: Problems, bp: Any) -> Any:
    """Images that the pixels of a tile may belong to, rounded up to a value of `SEGMENTS`; 0 where there are more."""
    itemsize = problems.dtype.itemsize_bytes
    needed = ceil_div(bp - 1, problems.p * problems.q) + 1
    segments = 0 * needed
    for count in reversed(SEGMENTS[itemsize]):
        segments = np.where((needed <= count) & has_columns(bp, itemsize, count), count, segments)
    return np.where(is_dense(problems), segments, 0)


def has_columns(bp: Any, itemsize: int, segments: int) -> Any:
    """Whether tiles of ``bp`` pixels from ``segments`` images have at most `MOST_COLUMNS` copies in a row."""
    return bp * itemsize // 16 + 2 * segments <= MOST_COLUMNS


def loadings(problems: Problems, bp: Any, segments: Any = None) -> Any:
    """The widest copies, by the numbers of `Loading`, that the alignment of x allows for tiles of ``bp`` pixels."""
    segments = segments_of(problems, bp) if segments is None else segments
    itemsize = problems.dtype.itemsize_bytes
    vector = 16 // itemsize
    narrow = Loading.WORDS if itemsize == 4 else Loading.ELEMENTS
    unaligned = np.where(segments > 0, int(Loading.CHUNKS), int(narrow))
    is_whole = is_dense(problems) & (problems.p * problems.q % vector == 0)
    aligned = np.where(is_whole, int(Loading.VECTORS), unaligned)
    return np.where(problems.c % vector > 0, int(Loading.ELEMENTS), aligned)


def loading_for(problem: ConvProblem, bp: int) -> Loading:
    """`loadings` for one problem."""
    return Loading(int(loadings(problem, bp)))


def defines_for(tile: Tile, problem: ConvProblem) -> dict[str, int]:
    """The source's definitions for a tile and a problem."""
    loading = loading_for(problem, tile.bp)
    segments = int(segments_of(problem, tile.bp)) if loading is Loading.CHUNKS else 0
    return _defines(tile, problem.dtype, loading, segments)


def _defines(tile: Tile, dtype: DType, loading: Loading, segments: int) -> dict[str, int]:
    return {**tile.defines, "SPLIT": int(dtype is DType.FLOAT32), "LOADING": int(loading), "SEGMENTS": segments}


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions that a launcher may use for this precision."""
    itemsize = dtype.itemsize_bytes
    ways = [(Loading.VECTORS, 0), (Loading.ELEMENTS, 0), *([(Loading.WORDS, 0)] if itemsize == 4 else [])]
    ways += [(Loading.CHUNKS, segments) for segments in SEGMENTS[itemsize]]
    return tuple(
        _defines(tile, dtype, loading, segments)
        for tile in tiles_of_every_device(menus.MENUS, dtype)
        for loading, segments in ways
        if has_columns(tile.bp, itemsize, segments)
    )


_COPIES: Final = (
    "a copy of single elements, for channels that are no multiple of 16 bytes: it waits for memory, not for these"
)
_ENDED: Final = (
    "an activation where sums are half of a thread's registers: it needs more than are left; the spill is ahead of the "
    "products or behind them, not among them"
)
_SPILLED_BYTES: Final = {
    (128, Activation.RELU): 8,
    (128, Activation.RELU6): 16,
    (128, Activation.LEAKY_RELU): 8,
    (128, Activation.SILU): 96,
    (128, Activation.GELU): 200,
    (128, Activation.GELU_TANH): 96,
    (128, Activation.HARDSWISH): 8,
    (128, Activation.SIGMOID): 8,
    (256, Activation.GELU): 40,
}
"""By filters of a tile in half precision; the most of any loading, with and without bias and residual."""
SOURCE: Final = Source(
    "pointwise",
    definitions,
    architecture="sm_90a",
    spills=(
        BorneSpill("pointwise", "sm_90a", 28, _COPIES, defines=(("BN", 256), ("LOADING", 3))),
        *(
            BorneSpill("pointwise", "sm_90a", most_bytes, _ENDED, storage, (("BN", bn), *ending.items()))
            for (bn, activation), most_bytes in _SPILLED_BYTES.items()
            for ending in (defines_of(Epilogue(activation=activation)),)
            for storage in ("FLOAT16", "BFLOAT16")
        ),
    ),
)


def shared_bytes(tile: Tile, problems: Problems) -> Any:
    """Shared memory of a block: weight, its low parts, stages of x, sums, in the layout of the .cu.

    Parameters
    ----------
    tile : Tile
        One tile, or several `stacked`.
    problems : ConvProblem or Shapes
    """
    itemsize, is_float32 = problems.dtype.itemsize_bytes, problems.dtype is DType.FLOAT32
    vector, channels = 16 // itemsize, ROW_BYTES // itemsize
    segments = segments_of(problems, tile.bp)
    loading = loadings(problems, tile.bp, segments)
    slots = tile.bp // vector + 2 * segments
    chunk_pitch = vector * (slots + ((42 - slots % 8) % 8 if itemsize == 4 else (37 - slots % 4) % 4))
    pitch = np.where(loading == Loading.CHUNKS, chunk_pitch, tile.bp + 8)
    kept_stages = np.where(tile.is_resident, ceil_div(problems.c, channels), tile.stages)
    kept_low = np.where(tile.is_resident, kept_stages, 2) if is_float32 else 0
    ring = (kept_stages + kept_low) * tile.bn * ROW_BYTES + tile.stages * channels * pitch * itemsize
    is_wide = (itemsize == 4) | tile.is_split
    sum_bytes = tile.bn * (tile.bp + np.where(is_wide, 4, 8)) * np.where(is_wide, 4, itemsize)
    sums = np.where((loading == Loading.VECTORS) & (itemsize == 4) & ~tile.is_split, 0, sum_bytes)
    return _ALIGNMENT + np.where(tile.is_resident, ring + sums, np.maximum(ring, sums))


def residents(tile: Tile, problems: Problems) -> Any:
    """Blocks that a multiprocessor holds; 0 where not even one fits."""
    needed_bytes = shared_bytes(tile, problems)
    fitting = np.minimum(tile.blocks, HOPPER_SHARED_BYTES // (needed_bytes + RESERVED_BYTES))
    return np.where(needed_bytes <= HOPPER_BLOCK_BYTES, fitting, 0)


def tiles_of(tile: Tile, problems: Problems) -> tuple[Any, Any]:
    """Tiles of filters and of pixels."""
    return ceil_div(problems.k, tile.bn), ceil_div(problems.n * problems.p * problems.q, tile.bp)


def blocks_for(cut: Cut[Tile], problem: ConvProblem, processors: int) -> int:
    """Blocks of the grid. Resident blocks are as many as fit at a time, at most what equal shares of tiles need."""
    return int(_grid(cut.tile, cut.cluster, problem, residents(cut.tile, problem), processors))


def _grid(tile: Tile, cluster: Any, problems: Problems, fitting: Any, processors: int) -> Any:
    filters, pixels = tiles_of(tile, problems)
    most = np.minimum(np.maximum(1, processors * fitting // filters), pixels)
    walkers = np.where(tile.is_resident, ceil_div(pixels, ceil_div(pixels, most)), pixels)
    return filters * walkers * cluster


def expect(tile: Tile, cluster: Any, problems: Problems, fitting: Any, device: Device) -> tuple[Any, Any]:
    """Time in us and grid of a launch.

    A stage takes its latency, or the time in which a multiprocessor works off a stage of each of its blocks, whichever
    is longer; so does the work after the stages of a tile. No launch is faster than memory moves x, weight and y.

    Parameters
    ----------
    tile : Tile
        One tile, or several `stacked`.
    cluster : int or int array
        Blocks that share a tile's channels.
    problems : ConvProblem or Shapes
    fitting : int or int array
        Blocks that a multiprocessor holds, at least one.
    device : Device
    """
    menu = fitted_on(device, menus.MENUS)[problems.dtype]
    itemsize, c, k = problems.dtype.itemsize_bytes, problems.c, problems.k
    loading, pixels = loadings(problems, tile.bp), problems.n * problems.p * problems.q
    latency = tile.latency_us * np.array((1.0, *menu.latency_factors))[loading]
    busy = tile.busy_us * np.array((1.0, *menu.busy_factors))[loading]
    all_stages, processors = stages_of(problems), device.processors
    stages = ceil_div(all_stages, cluster)

    def tile_us(blocks: Any) -> Any:
        following = np.maximum(tile.output_us, blocks * tile.busy_output_us)
        return stages_us(stages, latency, busy, blocks) + following

    grid = _grid(tile, cluster, problems, fitting, processors)
    filters, tiles = tiles_of(tile, problems)
    blocks = ceil_div(grid, processors)
    walked = ceil_div(tiles, grid // filters) * tile_us(blocks) + all_stages * menu.weight_us
    waves, remaining = np.divmod(blocks, fitting)
    body = np.where(tile.is_resident, walked, in_waves(0.0, waves, remaining, fitting, tile_us))
    moved = itemsize * (pixels * (c + k) + k * c)
    ranks = np.where(np.greater(cluster, 1), menu.rank_us * cluster, 0.0)
    return menu.launch_us + np.maximum(body + ranks, moved / menu.bytes_per_us), grid


def stages_of(problems: Problems) -> Any:
    """Stages of all channels."""
    return ceil_div(problems.c * problems.dtype.itemsize_bytes, ROW_BYTES)


def offers(problems: Shapes, device: Device) -> tuple[Offer[Tile], ...]:
    """Every cut that fits and whose blocks all have a stage, with tiles at least half filled or else the narrowest.

    Parameters
    ----------
    problems : Shapes
        Layers that the kernel computes.
    device : Device
    """
    choice = fitted_on(device, menus.MENUS)[problems.dtype].choice
    tile, cluster = choice.tile, choice.cluster
    room = residents(tile, problems)
    is_filled = (room > 0) & (tile.bn < 2 * problems.k)
    narrowest = np.where(room > 0, tile.bn, np.max(tile.bn) + 1).min(axis=0)
    is_wanted = np.where(is_filled.any(axis=0), is_filled, (room > 0) & (tile.bn == narrowest))
    us, blocks = expect(tile, cluster, problems, np.maximum(room, 1), device)
    is_possible = is_wanted & (cluster <= np.maximum(1, stages_of(problems)))
    return (offered(choice, tile.bn * tile.bp, np.where(is_possible, us, np.inf), blocks),)


def expected(problem: ConvProblem, device: Device) -> dict[Cut[Tile], float]:
    """The cuts of one problem, and the expected time of each in us."""
    return expected_of(offers(Shapes.of(problem), device))


def plan_cut(problem: ConvProblem, device: Device) -> Cut[Tile]:
    """The cut that the model expects to be fastest."""
    cut: Cut[Tile] = cheapest(offers(Shapes.of(problem), device))
    return cut
