"""How the channels-innermost implicit GEMM cuts a problem: packed copies, images at a time, tile and cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import numpy as np

from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import MAX_ELEMENTS, ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.multiprocessor import HOPPER_BLOCK_BYTES, HOPPER_SHARED_BYTES, RESERVED_BYTES
from conv_advisor.kernels.cuda.parts.offers import Offer, cheapest, possible
from conv_advisor.kernels.cuda.parts.shapes import Array, Problems, Shapes, is_pointwise
from conv_advisor.kernels.cuda.parts.source import Defines, Source
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES

ROW_BYTES: Final = 128
"""Of gemm_k in a stage."""
RUN_BYTES: Final = 16
"""That one copy takes: channels are padded to whole runs."""
ALIGNMENT: Final = 1024
"""Of the stages in shared memory, for the swizzle of wgmma."""
GROUP_PROCESSORS: Final = 16
"""Multiprocessors of a group (GPC); some have two more: two of the eight of an H200 by their number."""
LARGEST_CLUSTER: Final = 8
"""Blocks that a cluster may have without a special attribute."""
PACK_RUNS: Final = (1, 2, 4, 8)
"""Runs of channels in a tile of nhwc_pack.cu."""
PACKED_AT_A_TIME: Final = 512
"""Runs in such a tile, of all its positions."""
PACK_THREADS: Final = 256
PACKED_ALIGNMENT: Final = 256


@dataclass(frozen=True)
class Tile:
    """What a block computes: `bf` filters of `bp` pixels, 128 bytes of gemm_k at a stage.

    Parameters
    ----------
    bf, bp : int
    is_pixels_m : bool
        Whether the rows of the products are pixels, not filters.
    is_wgmma : bool
        Whether four warps multiply together, 64 rows of the tile; else each warp by mma.sync.
    rows, columns, parts : int
        Warps along the rows and the columns of the tile, and along a stage.
    stages : int
        In shared memory at a time.
    blocks : int
        That a multiprocessor's registers must have room for.
    is_drained : bool
        Whether a stage's products (wgmma) are awaited before the next: that leaves one stage more for copies.
    latency_us, busy_us : float
        Time of a stage when a block is alone on its multiprocessor, and when that is busy: fitted on an H200.
    """

    bf: int
    bp: int
    is_pixels_m: bool
    is_wgmma: bool
    rows: int
    columns: int
    parts: int
    stages: int
    blocks: int
    is_drained: bool
    latency_us: float
    busy_us: float

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.rows * self.columns * self.parts

    def defines(self, layout: Layout, *, is_pointwise: bool) -> dict[str, int]:
        """What the source is compiled with."""
        return {
            "BF": self.bf,
            "BP": self.bp,
            "PIXELS_M": int(self.is_pixels_m),
            "WGMMA": int(self.is_wgmma),
            "WARPS_M": self.rows,
            "WARPS_N": self.columns,
            "WARPS_K": self.parts,
            "STAGES": self.stages,
            "BLOCKS": self.blocks,
            "DRAIN": int(self.is_drained),
            "IS_NHWC": int(layout is Layout.NHWC),
            "IS_POINTWISE": int(is_pointwise),
        }

    def shared_bytes(self, layout: Layout, cluster: Any) -> Any:
        """Of a block: stages or sums, then what other blocks of its cluster push, as the .cu lays them out."""
        outer, inner = (self.bp, self.bf) if layout is Layout.NHWC else (self.bf, self.bp)
        is_turned = (layout is Layout.NHWC) != self.is_pixels_m
        sums = 4 * self.parts * outer * (inner + (4 if is_turned else 8))
        received = np.where(np.greater(cluster, 1), 4 * cluster * ceil_div(outer, cluster) * inner, 0)
        return ALIGNMENT + max(self.stages * (self.bf + self.bp) * ROW_BYTES, sums) + received


@dataclass(frozen=True)
class Menu:
    """The tiles of one precision, and what a launch costs beside their stages; times fitted on an H200.

    Parameters
    ----------
    tiles : tuple of Tile
    launch_us : float
    wave_us : float
        Of each generation of blocks on a multiprocessor.
    output_us : dict of Layout to float
        Of 1024 outputs of a block.
    cluster_us, rank_us, push_us : float
        Of a cluster, of each of its blocks, and of 1024 sums that blocks push.
    pointwise : tuple of float
        What a filter of one tap multiplies a stage's two times by.
    """

    tiles: tuple[Tile, ...]
    launch_us: float
    wave_us: float
    output_us: dict[Layout, float]
    cluster_us: float
    rank_us: float
    push_us: float
    pointwise: tuple[float, float]


@dataclass(frozen=True)
class Cut:
    """A tile, and the blocks of a cluster that share its gemm_k.

    Parameters
    ----------
    tile : Tile
    cluster : int
    """

    tile: Tile
    cluster: int


HALF: Final = Menu(
    tiles=(
        Tile(16, 32, False, False, 1, 1, 4, 8, 4, False, 0.071, 0.211),
        Tile(32, 32, False, False, 2, 1, 2, 4, 4, False, 0.098, 0.229),
        Tile(32, 64, True, True, 4, 1, 1, 4, 4, True, 0.222, 0.148),
        Tile(32, 64, True, True, 4, 1, 1, 8, 2, True, 0.123, 0.254),
        Tile(64, 64, False, True, 4, 1, 1, 3, 4, True, 0.298, 0.160),
        Tile(64, 64, False, True, 4, 1, 1, 6, 2, True, 0.422, 0.064),
        Tile(96, 64, True, True, 4, 1, 1, 4, 2, True, 0.229, 0.211),
        Tile(128, 64, True, True, 4, 1, 1, 4, 2, True, 0.273, 0.264),
        Tile(64, 128, False, True, 4, 1, 1, 2, 4, True, 0.342, 0.299),
        Tile(64, 128, False, True, 4, 1, 1, 3, 3, True, 0.298, 0.266),
        Tile(128, 128, False, True, 8, 1, 1, 3, 2, True, 0.379, 0.393),
        Tile(128, 256, False, True, 8, 1, 1, 4, 1, False, 0.760, 0.745),
        Tile(96, 128, True, True, 8, 1, 1, 4, 2, True, 0.392, 0.342),
        Tile(160, 128, True, True, 8, 1, 1, 3, 2, True, 0.809, 0.215),
        Tile(192, 64, True, True, 4, 1, 1, 3, 2, True, 0.586, 0.137),
        Tile(32, 128, True, True, 8, 1, 1, 2, 4, True, 0.410, 0.435),
        Tile(128, 64, True, True, 4, 1, 1, 2, 4, True, 0.666, 0.285),
        Tile(256, 128, True, True, 8, 1, 1, 4, 1, False, 0.692, 0.361),
    ),
    launch_us=0.564,
    wave_us=1.237,
    output_us={Layout.NCHW: 0.093, Layout.NHWC: 0.049},
    cluster_us=1.132,
    rank_us=0.040,
    push_us=0.120,
    pointwise=(0.77, 0.66),
)
TF32: Final = Menu(
    tiles=(
        Tile(16, 32, False, False, 1, 1, 4, 4, 4, False, 0.147, 0.111),
        Tile(32, 32, False, False, 2, 1, 2, 4, 4, False, 0.105, 0.397),
        Tile(16, 64, False, False, 1, 2, 2, 4, 4, False, 0.169, 1.304),
        Tile(64, 32, False, True, 4, 1, 1, 4, 4, True, 0.683, 0.176),
        Tile(32, 64, True, True, 4, 1, 1, 4, 4, True, 0.168, 0.147),
        Tile(64, 64, False, True, 4, 1, 1, 3, 4, True, 0.436, 0.158),
        Tile(64, 64, False, True, 4, 1, 1, 6, 2, True, 0.155, 0.220),
        Tile(96, 64, True, True, 4, 1, 1, 4, 2, True, 0.070, 0.207),
        Tile(64, 128, False, True, 4, 1, 1, 2, 4, True, 0.130, 0.390),
        Tile(64, 128, False, True, 4, 1, 1, 3, 3, True, 0.260, 0.246),
        Tile(64, 128, False, True, 4, 1, 1, 4, 2, True, 0.407, 0.127),
        Tile(128, 128, False, True, 8, 1, 1, 3, 2, True, 0.422, 0.372),
        Tile(128, 256, False, True, 8, 1, 1, 4, 1, False, 0.128, 1.742),
        Tile(96, 128, True, True, 8, 1, 1, 4, 2, True, 0.421, 0.339),
        Tile(192, 128, True, True, 8, 1, 1, 4, 1, False, 0.570, 0.060),
        Tile(160, 128, True, True, 8, 1, 1, 3, 2, True, 0.124, 0.549),
        Tile(32, 128, True, True, 8, 1, 1, 2, 4, True, 1.060, 0.172),
        Tile(32, 128, True, True, 8, 1, 1, 4, 2, True, 0.282, 0.240),
    ),
    launch_us=0.745,
    wave_us=2.611,
    output_us={Layout.NCHW: 0.171, Layout.NHWC: 0.173},
    cluster_us=0.837,
    rank_us=0.012,
    push_us=0.042,
    pointwise=(0.88, 0.88),
)


def menu_for(dtype: DType) -> Menu:
    """The tiles that multiply this precision."""
    return TF32 if dtype is DType.TF32 else HALF


def run_elements(dtype: DType) -> int:
    """Elements of 16 bytes."""
    return RUN_BYTES // dtype.itemsize_bytes


def packed_channels(problems: Problems) -> Any:
    """Channels of the packed copies: whole runs."""
    run = run_elements(problems.dtype)
    return ceil_div(problems.c, run) * run


def is_packed(problems: Problems) -> Any:
    """Whether x and weight are copied before they are multiplied: always from nchw, else to pad the channels."""
    return (problems.c % run_elements(problems.dtype) > 0) | (problems.layout is Layout.NCHW)


def weight_bytes(problems: Problems) -> Any:
    """Of the packed filters, padded so that x begins aligned."""
    elements = problems.k * problems.r * problems.s * packed_channels(problems)
    return ceil_div(elements * problems.dtype.itemsize_bytes, PACKED_ALIGNMENT) * PACKED_ALIGNMENT


def image_bytes(problems: Problems) -> Any:
    """Of a packed image."""
    return problems.h * problems.w * packed_channels(problems) * problems.dtype.itemsize_bytes


def least_workspace_bytes(problem: ConvProblem) -> int:
    """Of the packed copies, of one image at a time."""
    return int(weight_bytes(problem) + image_bytes(problem)) if is_packed(problem) else 0


def images_at_a_time(problem: ConvProblem, limit_bytes: int) -> int:
    """Images whose packed copies fit the limit beside that of the filters; all where nothing is packed.

    Raises
    ------
    WorkspaceExceeded
        Not even one fits.
    """
    if not is_packed(problem):
        return problem.n
    limit_bytes = _packed_limit(problem, limit_bytes)
    if (least_bytes := least_workspace_bytes(problem)) > limit_bytes:
        raise WorkspaceExceeded(least_bytes, limit_bytes)
    return int(_equal_chunks(problem, (limit_bytes - weight_bytes(problem)) // image_bytes(problem)))


def _packed_limit(problems: Problems, limit_bytes: int) -> int:
    """Of the packed copies, whose elements the kernels count by 32-bit integers."""
    return min(limit_bytes, MAX_ELEMENTS * problems.dtype.itemsize_bytes)


def _equal_chunks(problems: Problems, fitting: Any) -> Any:
    """Fewer images at a time than would fit, but no small rest."""
    return ceil_div(problems.n, ceil_div(problems.n, fitting))


def images_of(problems: Shapes) -> Array:
    """`images_at_a_time` of many problems under the default limit; 0 where not even one fits."""
    limit_bytes = _packed_limit(problems, DEFAULT_WORKSPACE_LIMIT_BYTES)
    fitting = (limit_bytes - weight_bytes(problems)) // image_bytes(problems)
    chunks = np.where(fitting > 0, _equal_chunks(problems, np.maximum(fitting, 1)), 0)
    return np.where(is_packed(problems), chunks, problems.n)


def workspace_bytes(problem: ConvProblem, limit_bytes: int) -> int:
    """Of the packed copies."""
    if not is_packed(problem):
        return 0
    return int(weight_bytes(problem) + images_at_a_time(problem, limit_bytes) * image_bytes(problem))


def pack_runs(problem: ConvProblem) -> int:
    """Runs of channels in a tile: no more than there are, so that no thread is without."""
    runs = packed_channels(problem) // run_elements(problem.dtype)
    return next((count for count in PACK_RUNS if count >= runs), PACK_RUNS[-1])


def pack_tiles(problem: ConvProblem, positions: int) -> int:
    """Blocks that pack so many positions of all channels."""
    runs: int = packed_channels(problem) // run_elements(problem.dtype)
    return ceil(positions * pack_runs(problem) / PACKED_AT_A_TIME) * ceil(runs / pack_runs(problem))


def pack_defines(problem: ConvProblem) -> dict[str, int]:
    """What nhwc_pack.cu is compiled with."""
    return {
        "RUNS": pack_runs(problem),
        "IS_NHWC": int(problem.layout is Layout.NHWC),
        "ROUNDED": int(problem.dtype is DType.TF32),
    }


def stages_of(problems: Problems) -> Any:
    """Stages of all gemm_k."""
    return ceil_div(problems.r * problems.s * packed_channels(problems) * problems.dtype.itemsize_bytes, ROW_BYTES)


def blocks_for(cut: Cut, problem: ConvProblem, images: int) -> int:
    """The grid."""
    return int(_tiles(cut.tile, problem, images) * cut.cluster)


def _tiles(tile: Tile, problems: Problems, images: Any) -> Any:
    return ceil_div(problems.k, tile.bf) * ceil_div(images * problems.p * problems.q, tile.bp)


def room_for(cluster: Any, resident: Any, processors: int) -> Any:
    """Blocks that run at a time, so many a multiprocessor: a cluster lies within one group of multiprocessors."""
    groups, rest = divmod(processors, GROUP_PROCESSORS)
    larger = min(groups, rest // 2)
    clusters = (groups - larger) * (GROUP_PROCESSORS * resident // cluster)
    clusters += larger * ((GROUP_PROCESSORS + 2) * resident // cluster)
    return np.where(np.greater(cluster, 1), np.maximum(1, clusters) * cluster, processors * resident)


def expected_us(cut: Cut, problem: ConvProblem, device: Device, images: int | None = None) -> float:
    """A model of the time of the multiplication, good for choosing among cuts; see `expect`.

    Of so many images at a time, or as many as the default limit allows.
    """
    images = images or images_at_a_time(problem, DEFAULT_WORKSPACE_LIMIT_BYTES)
    return float(expect(cut.tile, cut.cluster, problem, images, device))


def expect(tile: Tile, cluster: Any, problems: Problems, images: Any, device: Device) -> Any:
    """Time of the multiplication of so many images in us, with clusters of so many blocks, one number or an array.

    Blocks come to a multiprocessor in waves of as many as fit. A stage of a wave takes its latency, or the time in
    which the multiprocessor multiplies the stages of all its blocks, whichever is longer.
    """
    menu, layout, has_one_tap = menu_for(problems.dtype), problems.layout, is_pointwise(problems)
    fitting = HOPPER_SHARED_BYTES // (tile.shared_bytes(layout, cluster) + RESERVED_BYTES)
    resident = np.maximum(1, np.minimum(tile.blocks, fitting))
    stages = ceil_div(stages_of(problems), cluster)
    latency = tile.latency_us * np.where(has_one_tap, menu.pointwise[0], 1.0)
    busy = tile.busy_us * np.where(has_one_tap, menu.pointwise[1], 1.0)
    thousands = tile.bf * tile.bp / 1024

    def wave_us(blocks: Any) -> Any:
        return menu.wave_us + stages * np.maximum(latency, blocks * busy) + blocks * thousands * menu.output_us[layout]

    processors = device.processors or 1
    waves, rest = np.divmod(_tiles(tile, problems, images) * cluster, room_for(cluster, resident, processors))
    rest = np.minimum(resident, ceil_div(rest, processors))
    sharing_us = menu.cluster_us + menu.rank_us * cluster + menu.push_us * thousands
    cluster_us = np.where(np.greater(cluster, 1), sharing_us, 0.0)
    return menu.launch_us + waves * wave_us(resident) + np.where(rest, wave_us(rest), 0.0) + cluster_us


def offers(problems: Shapes, device: Device, images: Any = None) -> Iterator[Offer]:
    """Every cut that fits; no block of a cluster is left without a stage.

    Parameters
    ----------
    problems : Shapes
        Of layers that the kernel computes.
    device : Device
    images : int or int array, optional
        That are multiplied at a time; as many as the default limit allows.
    """
    images = images_of(problems) if images is None else images
    clusters = np.arange(1, LARGEST_CLUSTER + 1)[:, None]
    for tile in menu_for(problems.dtype).tiles:
        fits = tile.shared_bytes(problems.layout, clusters) <= HOPPER_BLOCK_BYTES
        us = expect(tile, clusters, problems, images, device)
        cuts = tuple(Cut(tile, cluster) for cluster in clusters[:, 0].tolist())
        possible_us = np.where(fits & (clusters <= stages_of(problems)), us, np.inf)
        yield Offer(cuts, tile.bf * tile.bp, possible_us, _tiles(tile, problems, images) * clusters)


def computes(problems: Shapes, device: Device) -> Array:
    """For which of many problems the rules of the variants say nothing, and the default limit allows an image."""
    is_here = problems.dtype is not DType.FLOAT32 and device.capability == "9.0"
    computed: Array = (problems.groups == 1) & (images_of(problems) > 0) & is_here
    return computed


def launches_of(problems: Shapes) -> Array:
    """Multiplications one after the other, each of as many images as the default limit allows."""
    launches: Array = ceil_div(problems.n, images_of(problems))
    return launches


def cuts_for(problem: ConvProblem, device: Device) -> list[Cut]:
    """Those that `offers` has for one problem."""
    return possible(offers(Shapes.of(problem), device, problem.n))


def plan_cut(problem: ConvProblem, device: Device, images: int) -> Cut:
    """The cut that the model expects to be fastest for so many images at a time."""
    cut: Cut = cheapest(offers(Shapes.of(problem), device, images))
    return cut


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """What implicit_gemm_nhwc.cu is compiled with for this precision."""
    if dtype is DType.FLOAT32:
        return ()
    return tuple(
        tile.defines(layout, is_pointwise=is_pointwise)
        for tile in menu_for(dtype).tiles
        for layout in Layout
        for is_pointwise in (False, True)
    )


def pack_definitions(dtype: DType) -> tuple[Defines, ...]:
    """What nhwc_pack.cu is compiled with for this precision."""
    is_rounded = int(dtype is DType.TF32)
    return tuple({"RUNS": runs, "IS_NHWC": is_nhwc, "ROUNDED": is_rounded} for runs in PACK_RUNS for is_nhwc in (0, 1))


SOURCE: Final = Source("implicit_gemm_nhwc", definitions, architecture="sm_90a")
PACK_SOURCE: Final = Source("nhwc_pack", pack_definitions)
