"""How the 1x1 convolution cuts a problem: its tile, how x is loaded, and how blocks share tiles and channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.multiprocessor import HOPPER_BLOCK_BYTES, HOPPER_SHARED_BYTES, RESERVED_BYTES
from conv_advisor.kernels.cuda.parts.offers import Offer, cheapest, possible
from conv_advisor.kernels.cuda.parts.shapes import Array, Problems, Shapes, is_dense
from conv_advisor.kernels.cuda.parts.source import Defines, Source

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


def segments_of(problems: Problems, bp: int) -> Any:
    """Images that the pixels of a tile may belong to, as the source provides for them; 0 where they are too many."""
    item = problems.dtype.itemsize_bytes
    needed = ceil_div(bp - 1, problems.h * problems.w) + 1
    segments = 0 * needed
    for count in reversed(SEGMENTS[item]):
        if has_columns(bp, item, count):
            segments = np.where(needed <= count, count, segments)
    return segments


def has_columns(bp: int, item: int, segments: int) -> bool:
    """Whether copies in a row are few enough for tiles of so many pixels of so many images."""
    return bp * item // 16 + 2 * segments <= MOST_COLUMNS


def loadings(problems: Problems, bp: int) -> Any:
    """The widest copies, by the numbers of `Loading`, that the alignment of x allows for tiles of so many pixels."""
    item = problems.dtype.itemsize_bytes
    vector = 16 // item
    rest = Loading.WORDS if item == 4 else Loading.ELEMENTS
    unaligned = np.where(segments_of(problems, bp) > 0, int(Loading.CHUNKS), int(rest))
    whole = np.where(problems.h * problems.w % vector == 0, int(Loading.VECTORS), unaligned)
    return np.where(problems.c % vector > 0, int(Loading.ELEMENTS), whole)


def loading_for(problem: ConvProblem, bp: int) -> Loading:
    """`loadings` of one problem."""
    return Loading(int(loadings(problem, bp)))


def defines_for(tile: Tile, problem: ConvProblem) -> dict[str, int]:
    """What the source is compiled with."""
    loading = loading_for(problem, tile.bp)
    segments = int(segments_of(problem, tile.bp)) if loading is Loading.CHUNKS else 0
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


def shared_bytes(tile: Tile, problems: Problems) -> Any:
    """Shared memory of a block: weight, its small parts, stages of x, sums, as the .cu lays them out."""
    item, is_split = problems.dtype.itemsize_bytes, problems.dtype is DType.FLOAT32
    vector, channels = 16 // item, ROW_BYTES // item
    loading = loadings(problems, tile.bp)
    slots = tile.bp // vector + 2 * segments_of(problems, tile.bp)
    chunk_pitch = vector * (slots + ((42 - slots % 8) % 8 if item == 4 else (37 - slots % 4) % 4))
    pitch = np.where(loading == Loading.CHUNKS, chunk_pitch, tile.bp + 8)
    kept = ceil_div(problems.c, channels) if tile.is_resident else tile.stages
    kept_low = (kept if tile.is_resident else 2) if is_split else 0
    ring = (kept + kept_low) * tile.bn * ROW_BYTES + tile.stages * channels * pitch * item
    is_wide = item == 4 or tile.mode == "split"
    is_direct = (loading == Loading.VECTORS) & (item == 4 and tile.mode != "split")
    sums = np.where(is_direct, 0, tile.bn * (tile.bp + (4 if is_wide else 8)) * (4 if is_wide else item))
    return _ALIGNMENT + (ring + sums if tile.is_resident else np.maximum(ring, sums))


def residents(tile: Tile, problems: Problems) -> Any:
    """Blocks that a multiprocessor holds; 0 where not even one fits."""
    needed_bytes = shared_bytes(tile, problems)
    fitting = np.minimum(tile.blocks, HOPPER_SHARED_BYTES // (needed_bytes + RESERVED_BYTES))
    return np.where(needed_bytes <= HOPPER_BLOCK_BYTES, fitting, 0)


def tiles_of(tile: Tile, problems: Problems) -> tuple[Any, Any]:
    """Tiles of filters and of pixels."""
    return ceil_div(problems.k, tile.bn), ceil_div(problems.n * problems.h * problems.w, tile.bp)


def blocks_for(cut: Cut, problem: ConvProblem, processors: int) -> int:
    """The grid. Where blocks stay, as many as fit at a time, and no more than leave each a whole share of tiles."""
    return int(_grid(cut.tile, cut.cluster, problem, residents(cut.tile, problem), processors))


def _grid(tile: Tile, cluster: Any, problems: Problems, fitting: Any, processors: int) -> Any:
    filters, pixels = tiles_of(tile, problems)
    if tile.is_resident:
        most = np.minimum(np.maximum(1, processors * fitting // filters), pixels)
        pixels = ceil_div(pixels, ceil_div(pixels, most))
    return filters * pixels * cluster


def expected_us(cut: Cut, problem: ConvProblem, device: Device) -> float:
    """A model of the time of a launch, good for choosing among cuts; see `expect`."""
    return float(expect(cut.tile, cut.cluster, problem, residents(cut.tile, problem), device.processors)[0])


def expect(tile: Tile, cluster: Any, problems: Problems, fitting: Any, processors: int) -> tuple[Any, Any]:
    """Time in us and grid of a launch.

    A stage takes its latency, or the time in which a multiprocessor works off a stage of each of its blocks, whichever
    is longer; so does what follows the stages of a tile. No launch is faster than memory moves x, weight and y.

    Parameters
    ----------
    tile : Tile
    cluster : int or int array
        Blocks that share its channels.
    problems : ConvProblem or Shapes
    fitting : int or int array
        Blocks that a multiprocessor holds, at least one.
    processors : int
    """
    menu, item, c, k = menu_for(problems.dtype), problems.dtype.itemsize_bytes, problems.c, problems.k
    loading, pixels = loadings(problems, tile.bp), problems.n * problems.h * problems.w
    latency = tile.latency_us * np.array((1.0, *menu.latency_factors))[loading]
    busy = tile.busy_us * np.array((1.0, *menu.busy_factors))[loading]
    all_stages = stages_of(problems)
    stages = ceil_div(all_stages, cluster)

    def tile_us(blocks: Any) -> Any:
        following = np.maximum(tile.output_us, blocks * tile.busy_output_us)
        return stages * np.maximum(latency, blocks * busy) + following

    grid = _grid(tile, cluster, problems, fitting, processors)
    if tile.is_resident:
        filters, tiles = tiles_of(tile, problems)
        rounds = ceil_div(tiles, grid // filters)
        body = rounds * tile_us(ceil_div(grid, processors)) + all_stages * menu.weight_us
    else:
        waves, rest = np.divmod(ceil_div(grid, processors), fitting)
        body = waves * tile_us(fitting) + np.where(rest, tile_us(rest), 0.0)
    moved = item * (pixels * (c + k) + k * c)
    ranks = np.where(np.greater(cluster, 1), menu.rank_us * cluster, 0.0)
    return menu.launch_us + np.maximum(body + ranks, moved / BYTES_PER_US), grid


def stages_of(problems: Problems) -> Any:
    """Stages of all channels."""
    return ceil_div(problems.c * problems.dtype.itemsize_bytes, ROW_BYTES)


def offers(problems: Shapes, device: Device) -> Iterator[Offer]:
    """Every cut that fits and whose blocks all have a stage; of these, where there are any, those at least half of use.

    Parameters
    ----------
    problems : Shapes
        Of layers that the kernel computes.
    device : Device
    """
    tiles, most_clusters = menu_for(problems.dtype).tiles, np.maximum(1, stages_of(problems))
    rooms = np.array([residents(tile, problems) for tile in tiles])
    columns = np.array([[tile.bn] for tile in tiles])
    is_filled = (rooms > 0) & (columns < 2 * problems.k)
    narrowest = np.where(rooms > 0, columns, columns.max() + 1).min(axis=0)
    is_wanted = np.where(is_filled.any(axis=0), is_filled, (rooms > 0) & (columns == narrowest))
    for tile, room, wanted in zip(tiles, rooms, is_wanted, strict=True):
        clusters = np.array(tile.clusters)[:, None]
        us, blocks = expect(tile, clusters, problems, np.maximum(room, 1), device.processors)
        cuts = tuple(Cut(tile, cluster) for cluster in tile.clusters)
        yield Offer(cuts, tile.bn * tile.bp, np.where(wanted & (clusters <= most_clusters), us, np.inf), blocks)


def computes(problems: Shapes, device: Device) -> Array:
    """For which of many problems the rule of ``cuda.pointwise`` says nothing."""
    is_here = problems.layout is Layout.NCHW and device.capability == "9.0"
    computed: Array = is_dense(problems) & (problems.groups == 1) & is_here
    return computed


def cuts_for(problem: ConvProblem, device: Device) -> list[Cut]:
    """Those that `offers` has for one problem."""
    return possible(offers(Shapes.of(problem), device))


def plan_cut(problem: ConvProblem, device: Device) -> Cut:
    """The cut that the model expects to be fastest."""
    cut: Cut = cheapest(offers(Shapes.of(problem), device))
    return cut
