"""How the 1x1 convolution cuts a problem: its tile, how x is loaded, and how blocks share tiles and channels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import ceil
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.source import Defines, Source

MOST_SHARED_BYTES: Final = 227 * 1024
"""What a block may have of a Hopper multiprocessor's shared memory."""
PROCESSOR_SHARED_BYTES: Final = 228 * 1024
"""Of a multiprocessor, of which each block takes 1 KB more than it asks for."""
SEGMENTS: Final = {4: (2,), 2: (2, 4)}
"""Images that the pixels of a tile may belong to where x comes in CHUNKS, for each size of an element.

Of four bytes, WORDS do better where a tile has parts of more planes.
"""
MOST_COLUMNS: Final = 64
"""Copies in a row of CHUNKS."""
BYTES_PER_US: Final = 4.1e6
"""What an H200's memory moves."""
ROW_BYTES: Final = 128
"""Of a stage: its channels of one filter."""
_ALIGNMENT: Final = 1024


class Loading(IntEnum):
    """How a stage of x comes to shared memory; the numbers are those of the .cu."""

    VECTORS = 0
    WORDS = 1
    CHUNKS = 2
    ELEMENTS = 3


@dataclass(frozen=True)
class Tile:
    """What a block computes at a time: `bn` filters of 64 x `warpgroups` x `tiles_p` pixels.

    Parameters
    ----------
    bn : int
    warpgroups : int
        Of 128 threads.
    tiles_p : int
        Tiles of 64 pixels of a warpgroup.
    stages : int
        Of x in shared memory at a time, each of 128 bytes of channels.
    blocks : int
        That a multiprocessor's registers must have room for.
    mode : str
        ``resident``: a block keeps all its weight in shared memory and walks over tiles of pixels; ``streaming``:
        weight comes in stages as x does, and a block computes one tile; ``split``: so do the blocks of a cluster.
    latency_us, busy_us : float
        Time of a stage of VECTORS when a block is alone on its multiprocessor, and what it takes of a busy one.
    output_us, busy_output_us : float
        The same of what follows the stages of a tile. Times fitted on an H200.
    """

    bn: int
    warpgroups: int
    tiles_p: int
    stages: int
    blocks: int
    mode: str
    latency_us: float
    busy_us: float
    output_us: float
    busy_output_us: float

    @property
    def bp(self) -> int:
        """Pixels."""
        return 64 * self.warpgroups * self.tiles_p

    @property
    def threads(self) -> int:
        """Of a block."""
        return 128 * self.warpgroups

    @property
    def is_resident(self) -> bool:
        """Whether a block keeps its weight."""
        return self.mode == "resident"

    @property
    def clusters(self) -> tuple[int, ...]:
        """Blocks that may share the channels of a tile."""
        return (2, 3, 4, 6, 8) if self.mode == "split" else (1,)

    @property
    def defines(self) -> dict[str, int]:
        """What the source is compiled with, beside the loading and the precision."""
        return {
            "BN": self.bn,
            "INST_N": self.bn if self.bn <= 128 else self.bn // 2,
            "WARPGROUPS": self.warpgroups,
            "TILES_P": self.tiles_p,
            "STAGES": self.stages,
            "BLOCKS": self.blocks,
            "RESIDENT": int(self.is_resident),
            "SPLIT_C": int(self.mode == "split"),
        }


@dataclass(frozen=True)
class Menu:
    """The tiles of one precision, and what a launch costs beside their stages; times fitted on an H200.

    Parameters
    ----------
    tiles : tuple of Tile
    latency_factors, busy_factors : tuple of float
        What WORDS, CHUNKS and ELEMENTS multiply a stage's times by; ELEMENTS guessed.
    launch_us : float
    weight_us : float
        Of a stage of weight that a block loads before its first tile.
    rank_us : float
        Of each block of a cluster.
    """

    tiles: tuple[Tile, ...]
    latency_factors: tuple[float, float, float]
    busy_factors: tuple[float, float, float]
    launch_us: float
    weight_us: float
    rank_us: float


SPLIT_TF32: Final = Menu(
    tiles=(
        Tile(16, 1, 1, 3, 3, "resident", 0.596, 0.245, 0.195, 0.241),
        Tile(16, 1, 2, 3, 2, "resident", 0.746, 0.481, 0.234, 0.412),
        Tile(16, 2, 1, 3, 1, "resident", 0.711, 0.240, 0.315, 0.318),
        Tile(32, 1, 1, 3, 3, "resident", 0.707, 0.243, 0.681, 0.320),
        Tile(32, 2, 1, 3, 2, "resident", 0.789, 0.133, 0.662, 0.750),
        Tile(64, 1, 1, 3, 3, "resident", 0.477, 0.159, 2.358, 0.698),
        Tile(128, 2, 1, 3, 1, "resident", 1.157, 0.208, 1.880, 0.684),
        Tile(64, 2, 1, 2, 3, "streaming", 1.448, 0.885, 0.887, 1.164),
        Tile(64, 2, 1, 3, 2, "streaming", 0.947, 0.925, 2.478, 0.561),
        Tile(96, 2, 1, 3, 1, "streaming", 1.026, 0.250, 1.667, 0.706),
        Tile(128, 2, 2, 2, 1, "streaming", 2.432, 0.338, 5.438, 0.804),
        Tile(32, 1, 1, 3, 2, "split", 0.390, 0.360, 2.708, 0.525),
        Tile(64, 2, 1, 3, 2, "split", 0.384, 0.916, 7.151, 0.688),
    ),
    latency_factors=(1.29, 1.78, 3.0),
    busy_factors=(1.00, 0.75, 3.0),
    launch_us=1.543,
    weight_us=0.170,
    rank_us=0.079,
)
TF32: Final = Menu(
    tiles=(
        Tile(16, 1, 1, 4, 3, "resident", 0.236, 0.188, 0.087, 0.029),
        Tile(16, 1, 2, 3, 2, "resident", 0.432, 0.352, 0.132, 0.064),
        Tile(32, 1, 1, 4, 3, "resident", 0.499, 0.078, 0.413, 0.207),
        Tile(32, 2, 1, 3, 2, "resident", 0.339, 0.331, 0.768, 0.384),
        Tile(64, 2, 1, 3, 2, "resident", 0.353, 0.359, 1.378, 0.577),
        Tile(192, 2, 1, 4, 1, "resident", 0.745, 0.251, 2.164, 0.681),
        Tile(64, 1, 1, 3, 3, "streaming", 0.463, 0.259, 0.681, 0.686),
        Tile(64, 2, 1, 3, 2, "streaming", 0.587, 0.479, 2.412, 0.686),
        Tile(128, 2, 1, 3, 2, "streaming", 0.363, 0.619, 3.757, 2.186),
        Tile(32, 1, 1, 3, 2, "split", 0.460, 0.196, 1.036, 1.072),
        Tile(64, 1, 1, 3, 2, "split", 0.319, 0.243, 3.500, 0.495),
        Tile(128, 2, 1, 3, 2, "split", 0.310, 0.508, 10.304, 0.536),
    ),
    latency_factors=(1.03, 1.10, 3.0),
    busy_factors=(1.19, 1.24, 3.0),
    launch_us=1.657,
    weight_us=0.133,
    rank_us=0.082,
)
HALF: Final = Menu(
    tiles=(
        Tile(16, 1, 1, 4, 3, "resident", 0.167, 0.158, 0.566, 0.189),
        Tile(16, 1, 2, 3, 2, "resident", 0.272, 0.253, 0.785, 0.455),
        Tile(32, 1, 1, 4, 3, "resident", 0.322, 0.210, 0.482, 0.161),
        Tile(32, 2, 1, 3, 2, "resident", 0.243, 0.291, 0.928, 0.464),
        Tile(48, 2, 1, 3, 2, "resident", 0.265, 0.310, 1.142, 0.568),
        Tile(64, 2, 1, 3, 2, "resident", 0.320, 0.377, 1.192, 0.596),
        Tile(96, 2, 1, 3, 2, "resident", 0.202, 0.643, 0.942, 0.467),
        Tile(128, 2, 1, 3, 2, "resident", 0.375, 0.295, 1.797, 0.495),
        Tile(256, 2, 1, 4, 1, "resident", 1.231, 0.190, 1.705, 0.576),
        Tile(64, 1, 1, 3, 4, "streaming", 0.235, 0.201, 1.437, 0.520),
        Tile(64, 2, 1, 3, 2, "streaming", 0.317, 0.306, 1.256, 1.001),
        Tile(112, 2, 1, 3, 2, "streaming", 0.374, 0.370, 2.344, 0.493),
        Tile(128, 2, 1, 3, 2, "streaming", 0.386, 0.384, 3.087, 0.778),
        Tile(256, 2, 1, 3, 1, "streaming", 0.544, 0.205, 3.730, 0.478),
        Tile(32, 1, 1, 3, 2, "split", 0.199, 0.240, 1.856, 0.490),
        Tile(64, 1, 1, 3, 2, "split", 0.315, 0.308, 2.789, 0.860),
    ),
    latency_factors=(1.21, 2.55, 3.0),
    busy_factors=(1.63, 2.07, 3.0),
    launch_us=1.822,
    weight_us=0.137,
    rank_us=0.048,
)


@dataclass(frozen=True)
class Cut:
    """A tile, and the blocks of a cluster that share its channels.

    Parameters
    ----------
    tile : Tile
    cluster : int
    """

    tile: Tile
    cluster: int


def menu_for(dtype: DType) -> Menu:
    """The tiles that multiply this precision."""
    return {DType.FLOAT32: SPLIT_TF32, DType.TF32: TF32}.get(dtype, HALF)


def segments_for(problem: ConvProblem, bp: int) -> int:
    """Images that the pixels of a tile may belong to, as the source provides for them; 0 where they are too many."""
    item = problem.dtype.itemsize_bytes
    needed = ceil((bp - 1) / (problem.h * problem.w)) + 1
    return next((count for count in SEGMENTS[item] if count >= needed and has_columns(bp, item, count)), 0)


def has_columns(bp: int, item: int, segments: int) -> bool:
    return bp * item // 16 + 2 * segments <= MOST_COLUMNS


def loading_for(problem: ConvProblem, bp: int) -> Loading:
    """The widest copies that the alignment of x allows for tiles of so many pixels."""
    item = problem.dtype.itemsize_bytes
    vector = 16 // item
    if problem.c % vector:
        return Loading.ELEMENTS
    if problem.h * problem.w % vector == 0:
        return Loading.VECTORS
    if segments_for(problem, bp):
        return Loading.CHUNKS
    return Loading.WORDS if item == 4 else Loading.ELEMENTS


def defines_for(tile: Tile, problem: ConvProblem) -> dict[str, int]:
    """What the source is compiled with."""
    loading = loading_for(problem, tile.bp)
    segments = segments_for(problem, tile.bp) if loading is Loading.CHUNKS else 0
    return _defines(tile, problem.dtype, loading, segments)


def _defines(tile: Tile, dtype: DType, loading: Loading, segments: int) -> dict[str, int]:
    return {**tile.defines, "SPLIT": int(dtype is DType.FLOAT32), "LOADING": int(loading), "SEGMENTS": segments}


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """Everything that a launcher may compile for this precision."""
    item = dtype.itemsize_bytes
    ways = [(Loading.VECTORS, 0), (Loading.ELEMENTS, 0), *([(Loading.WORDS, 0)] if item == 4 else [])]
    ways += [(Loading.CHUNKS, segments) for segments in SEGMENTS[item]]
    return tuple(
        _defines(tile, dtype, loading, segments)
        for tile in menu_for(dtype).tiles
        for loading, segments in ways
        if has_columns(tile.bp, item, segments)
    )


SOURCE: Final = Source("pointwise", definitions, architecture="sm_90a")


def shared_bytes(tile: Tile, problem: ConvProblem) -> int:
    """Shared memory of a block: weight, its small parts, stages of x, sums, as the .cu lays them out."""
    loading = loading_for(problem, tile.bp)
    segments = segments_for(problem, tile.bp) if loading is Loading.CHUNKS else 0
    return int(shared_bytes_with(tile, problem.dtype, loading, segments, problem.c))


def shared_bytes_with(tile: Tile, dtype: DType, loading: Loading, segments: int, c: Any) -> Any:
    """The same for the depth of one problem, or an array of depths."""
    item, is_split = dtype.itemsize_bytes, dtype is DType.FLOAT32
    vector, channels = 16 // item, ROW_BYTES // item
    pitch = tile.bp + 8
    if loading is Loading.CHUNKS:
        slots = tile.bp // vector + 2 * segments
        pitch = vector * (slots + ((42 - slots % 8) % 8 if item == 4 else (37 - slots % 4) % 4))
    kept = ceil_div(c, channels) if tile.is_resident else tile.stages
    kept_low = (kept if tile.is_resident else 2) if is_split else 0
    ring = (kept + kept_low) * tile.bn * ROW_BYTES + tile.stages * channels * pitch * item
    is_wide = item == 4 or tile.mode == "split"
    is_direct = item == 4 and loading is Loading.VECTORS and tile.mode != "split"
    sums = 0 if is_direct else tile.bn * (tile.bp + (4 if is_wide else 8)) * (4 if is_wide else item)
    return _ALIGNMENT + (ring + sums if tile.is_resident else max(ring, sums))


def residents(tile: Tile, problem: ConvProblem) -> int:
    """Blocks that a multiprocessor holds; 0 where not even one fits."""
    return int(fitting_blocks(tile, shared_bytes(tile, problem)))


def fitting_blocks(tile: Tile, needed_bytes: Any) -> Any:
    """The same for the shared memory that a block needs, one or an array."""
    fitting = np.minimum(tile.blocks, PROCESSOR_SHARED_BYTES // (needed_bytes + 1024))
    return np.where(needed_bytes <= MOST_SHARED_BYTES, fitting, 0)


def tiles_of(tile: Tile, problem: ConvProblem) -> tuple[int, int]:
    """Tiles of filters and of pixels."""
    return ceil(problem.k / tile.bn), ceil(problem.n * problem.h * problem.w / tile.bp)


def blocks_for(cut: Cut, problem: ConvProblem, processors: int) -> int:
    """The grid. Where blocks stay, as many as fit at a time, and no more than leave each a whole share of tiles."""
    return int(_grid(cut, *tiles_of(cut.tile, problem), residents(cut.tile, problem), processors))


def _grid(cut: Cut, filters: Any, pixels: Any, fitting: Any, processors: int) -> Any:
    if cut.tile.is_resident:
        most = np.minimum(np.maximum(1, processors * fitting // filters), pixels)
        pixels = ceil_div(pixels, ceil_div(pixels, most))
    return filters * pixels * cut.cluster


def expected_us(cut: Cut, problem: ConvProblem, device: Device) -> float:
    """A model of the time of a launch, good for choosing among cuts; see `expect`."""
    loading, fitting = loading_for(problem, cut.tile.bp), residents(cut.tile, problem)
    pixels = problem.n * problem.h * problem.w
    return float(expect(cut, problem.dtype, loading, pixels, problem.c, problem.k, fitting, device.processors)[0])


def expect(
    cut: Cut, dtype: DType, loading: Any, pixels: Any, c: Any, k: Any, fitting: Any, processors: int
) -> tuple[Any, Any]:
    """Time in us and grid of a launch, of one problem or of arrays of them.

    A stage takes its latency, or the time in which a multiprocessor works off a stage of each of its blocks, whichever
    is longer; so does what follows the stages of a tile. No launch is faster than memory moves x, weight and y.

    Parameters
    ----------
    cut : Cut
    dtype : DType
    loading : int or int array
        One of `Loading`.
    pixels : int or int array
        Of all images.
    c, k : int or int array
    fitting : int or int array
        Blocks that a multiprocessor holds.
    processors : int
    """
    tile, menu = cut.tile, menu_for(dtype)
    latency = tile.latency_us * np.array((1.0, *menu.latency_factors))[loading]
    busy = tile.busy_us * np.array((1.0, *menu.busy_factors))[loading]
    all_stages = ceil_div(c * dtype.itemsize_bytes, ROW_BYTES)
    stages = ceil_div(all_stages, cut.cluster)

    def tile_us(blocks: Any) -> Any:
        following = np.maximum(tile.output_us, blocks * tile.busy_output_us)
        return stages * np.maximum(latency, blocks * busy) + following

    filters, tiles = ceil_div(k, tile.bn), ceil_div(pixels, tile.bp)
    grid = _grid(cut, filters, tiles, fitting, processors)
    if tile.is_resident:
        rounds = ceil_div(tiles, grid // filters)
        body = rounds * tile_us(ceil_div(grid, processors)) + all_stages * menu.weight_us
    else:
        waves, rest = np.divmod(ceil_div(grid, processors), fitting)
        body = waves * tile_us(fitting) + np.where(rest, tile_us(rest), 0.0)
    moved = dtype.itemsize_bytes * (pixels * (c + k) + k * c)
    ranks = menu.rank_us * cut.cluster if cut.cluster > 1 else 0.0
    return menu.launch_us + np.maximum(body + ranks, moved / BYTES_PER_US), grid


def cuts_for(problem: ConvProblem, _device: Device) -> list[Cut]:
    """Those that fit and whose blocks all have a stage; of these, where there are any, those at least half of use."""
    all_stages = ceil(problem.c * problem.dtype.itemsize_bytes / ROW_BYTES)
    tiles = [tile for tile in menu_for(problem.dtype).tiles if residents(tile, problem)]
    filled = [tile for tile in tiles if tile.bn < 2 * problem.k] or [
        tile for tile in tiles if tile.bn == min(each.bn for each in tiles)
    ]
    return [Cut(tile, cluster) for tile in filled for cluster in tile.clusters if cluster <= max(1, all_stages)]


def plan_cut(problem: ConvProblem, device: Device) -> Cut:
    """The cut that the model expects to be fastest."""
    return min(cuts_for(problem, device), key=lambda cut: expected_us(cut, problem, device))
