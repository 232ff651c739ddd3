"""The tiles of the 1x1 convolution, and the constants of their expected times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from conv_advisor.data.problem import DType
from conv_advisor.kernels.cuda.parts.offers import Choice, Cut, stacked


@dataclass(frozen=True)
class Tile:
    """The outputs that a block computes at a time: `bn` filters of 64 x `warpgroups` x `tiles_p` pixels.

    Parameters
    ----------
    bn : int
    warpgroups : int
        Groups of 128 threads.
    tiles_p : int
        Tiles of 64 pixels of a warpgroup.
    stages : int
        Stages of x in shared memory at a time, each of 128 bytes of channels.
    blocks : int
        Blocks that a multiprocessor's registers must have room for.
    mode : str
        ``resident``: a block keeps all its weight in shared memory and walks over tiles of pixels; ``streaming``:
        weight is staged like x, and a block computes one tile; ``split``: the same by the blocks of a cluster together.
    latency_us, busy_us : float
        Time of a stage of VECTORS when a block is alone on its multiprocessor, and its share of a busy one's time.
    output_us, busy_output_us : float
        The same two times for the work after the stages of a tile.
    most_inst_n : int
        Filters of an instruction, at most: float32 keeps a second set of sums for one instruction in registers.
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
    most_inst_n: int = 128

    @property
    def bp(self) -> int:
        """Pixels of a block."""
        return 64 * self.warpgroups * self.tiles_p

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * self.warpgroups

    @property
    def is_resident(self) -> Any:
        """Whether a block keeps its weight."""
        return np.equal(self.mode, "resident")

    @property
    def is_split(self) -> Any:
        """Whether the blocks of a cluster share the channels."""
        return np.equal(self.mode, "split")

    @property
    def clusters(self) -> tuple[int, ...]:
        """Blocks that may share the channels of a tile."""
        return (2, 3, 4, 6, 8) if self.is_split else (1,)

    @property
    def defines(self) -> dict[str, int]:
        """The source's definitions, without the loading and the precision."""
        return {
            "BN": self.bn,
            "INST_N": self.bn // -(-self.bn // self.most_inst_n),
            "WARPGROUPS": self.warpgroups,
            "TILES_P": self.tiles_p,
            "STAGES": self.stages,
            "BLOCKS": self.blocks,
            "RESIDENT": int(self.is_resident),
            "SPLIT_C": int(self.is_split),
        }


@dataclass(frozen=True)
class Menu:
    """The tiles of one precision, and the costs of a launch besides their stages.

    Parameters
    ----------
    tiles : tuple of Tile
    latency_factors, busy_factors : tuple of float
        Factors of WORDS, CHUNKS and ELEMENTS on a stage's times; that of ELEMENTS is a guess.
    launch_us : float
    weight_us : float
        Time of a stage of weight that a block loads before its first tile.
    rank_us : float
        Time of each block of a cluster.
    bytes_per_us : float
        Bandwidth of the device's memory.
    """

    tiles: tuple[Tile, ...]
    latency_factors: tuple[float, float, float]
    busy_factors: tuple[float, float, float]
    launch_us: float
    weight_us: float
    rank_us: float
    bytes_per_us: float

    @cached_property
    def choice(self) -> Choice[Tile]:
        """Every tile with every size of its clusters; its axes are cuts, and one for problems."""
        cuts = tuple(Cut(tile, cluster) for tile in self.tiles for cluster in tile.clusters)
        return Choice(cuts, stacked([cut.tile for cut in cuts], axes=1), np.array([[cut.cluster] for cut in cuts]))


SPLIT_TF32: Final = Menu(
    tiles=(
        Tile(16, 1, 1, 3, 3, "resident", 0.445, 0.184, 0.188, 0.478),
        Tile(16, 1, 2, 3, 2, "resident", 0.815, 0.456, 0.234, 0.733),
        Tile(16, 2, 1, 3, 1, "resident", 0.512, 0.240, 0.010, 0.803),
        Tile(32, 1, 1, 3, 3, "resident", 0.490, 0.113, 0.652, 0.556),
        Tile(32, 2, 1, 3, 2, "resident", 0.646, 0.133, 0.993, 1.030),
        Tile(64, 1, 1, 3, 3, "resident", 0.411, 0.077, 2.270, 0.549),
        Tile(128, 2, 1, 3, 1, "resident", 1.050, 0.208, 2.810, 0.684, most_inst_n=64),
        Tile(64, 2, 1, 2, 3, "streaming", 1.400, 0.978, 1.180, 0.873, most_inst_n=16),
        Tile(64, 2, 1, 3, 2, "streaming", 1.030, 0.857, 1.710, 0.561),
        Tile(96, 2, 1, 3, 1, "streaming", 1.310, 0.250, 1.680, 0.706, most_inst_n=48),
        Tile(128, 2, 2, 2, 1, "streaming", 2.830, 0.338, 4.480, 0.804, most_inst_n=64),
        Tile(64, 1, 1, 3, 3, "streaming", 0.744, 0.511, 1.430, 0.350),
        Tile(32, 1, 1, 3, 3, "split", 0.459, 0.355, 2.090, 0.719),
        Tile(64, 1, 1, 3, 3, "split", 0.756, 0.546, 2.730, 0.350),
        Tile(64, 2, 1, 3, 2, "split", 0.330, 0.878, 3.520, 0.688),
    ),
    latency_factors=(1.18, 1.29, 3.0),
    busy_factors=(1.19, 1.2, 3.0),
    launch_us=1.31,
    weight_us=0.164,
    rank_us=0.081,
    bytes_per_us=4.1e6,
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
    bytes_per_us=4.1e6,
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
    bytes_per_us=4.1e6,
)

MENUS: Final[Mapping[str, Mapping[DType, Menu]]] = {
    "nvidia-h200": {DType.FLOAT32: SPLIT_TF32, DType.TF32: TF32, DType.FLOAT16: HALF, DType.BFLOAT16: HALF}
}
"""By the device that they were fitted on."""
