"""How our kernels cut a problem into tiles and chunks: pure arithmetic, shared by rules, workspaces and launchers."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.problem import MAX_ELEMENTS, ConvProblem

SHARED_BYTES: Final = 48 * 1024
"""Shared memory that every block may have without asking for more."""
CONSTANT_BYTES: Final = 64 * 1024
"""Constant memory of one module."""
MOST_CONSTANT_CHUNKS: Final = 256
"""Launches of the constant-memory kernel: beyond, launching costs more than the constant cache can save."""
BLAS_WORKSPACE_BYTES: Final = 32 * 1024 * 1024
"""What cuBLAS recommends for Hopper; given to it so that it allocates nothing during graph capture."""
LEAST_THREADS_PER_PROCESSOR: Final = 512
"""Threads that keep a multiprocessor busy; with fewer, a thread computes fewer outputs so that there are more."""
STAGE_BYTES: Final = 24 * 1024
"""Shared memory filled between two barriers: two blocks of 48 KB or more fit a multiprocessor."""
DIRECT_FILTERS: Final = (8, 4, 1)
"""Filters a thread of the direct kernels may compute."""
CUCONV_FILTERS: Final = (16, 4, 1)
FFT_TILES: Final = ((4, 4), (1, 4), (1, 1))
"""Images and filters a thread of the FFT's product may compute."""
_TILES: Final = ((32, 8), (16, 16), (32, 4), (16, 8), (8, 16), (8, 8))
"""Output tiles (width, height), the larger first."""
_TILES_SMALLEST_FIRST: Final = _TILES[::-1]


def ceil_div(dividend: Any, divisor: Any) -> Any:
    """The quotient of whole numbers, or of arrays of them, rounded up."""
    return -(-dividend // divisor)


def threads_for(count: int) -> int:
    """Threads a block for so many elements in a row: 64, 128 or 256."""
    return 64 if count <= 64 else 128 if count <= 128 else 256


def filters_per_thread(choices: tuple[int, ...], filters: int, pixels: int, processors: int) -> int:
    """The most filters a thread may compute, of descending choices, while the device stays busy."""
    for choice in choices:
        if choice <= filters and pixels * ceil(filters / choice) >= processors * LEAST_THREADS_PER_PROCESSOR:
            return choice
    return choices[-1]


def fft_tile(images: int, filters: int, frequencies: int, processors: int) -> tuple[int, int]:
    """The largest tile that the images and filters fill while the device stays busy."""
    for tile_n, tile_k in FFT_TILES:
        threads = ceil(images / tile_n) * ceil(filters / tile_k) * frequencies
        if tile_n <= images and tile_k <= filters and threads >= processors * LEAST_THREADS_PER_PROCESSOR:
            return tile_n, tile_k
    return FFT_TILES[-1]


@dataclass(frozen=True)
class TilePlan:
    """The tile of a block of the tiled direct kernels.

    Parameters
    ----------
    width, height : int
        Output pixels.
    filters : int
        Filters a thread computes.
    stage_channels : int
        Channels in shared memory at a time.
    shared_bytes : int
    """

    width: int
    height: int
    filters: int
    stage_channels: int
    shared_bytes: int


def has_tiles(problem: ConvProblem, *, has_halo: bool) -> bool:
    """Whether `plan_tiles` finds any, without looking for the best: with one filter a thread the most fit."""
    return any(
        _channel_bytes(problem, width, height, 1, has_halo) <= SHARED_BYTES for width, height in _TILES_SMALLEST_FIRST
    )


def plan_tiles(problem: ConvProblem, *, has_halo: bool) -> TilePlan | None:
    """The tile that wastes the fewest threads, filters before tile size; None where nothing fits shared memory."""
    for filters in (8, 1) if problem.k > 1 else (1,):  # of DIRECT_FILTERS
        fitting = [
            (ceil(problem.q / width) * width * ceil(problem.p / height) * height, width, height)
            for width, height in _TILES
            if _channel_bytes(problem, width, height, filters, has_halo) <= SHARED_BYTES
        ]
        if fitting:
            _, width, height = min(fitting, key=lambda tile: tile[0])
            channel_bytes = _channel_bytes(problem, width, height, filters, has_halo)
            channels = max(1, min(problem.c, STAGE_BYTES // channel_bytes))
            return TilePlan(width, height, filters, channels, channels * channel_bytes)
    return None


def _channel_bytes(problem: ConvProblem, width: int, height: int, filters: int, has_halo: bool) -> int:
    rows, columns = (height + problem.r - 1, width + problem.s - 1) if has_halo else (height, width)
    return 4 * (filters * problem.r * problem.s + rows * columns)


def constant_filters(problem: ConvProblem) -> int:
    """Filters that fit constant memory at a time; 0 where not even one does."""
    fitting = min(problem.k, CONSTANT_BYTES // (problem.gemm_k * problem.dtype.itemsize_bytes))
    return fitting if fitting < 8 or fitting == problem.k else fitting - fitting % 8


def planes_bytes(problem: ConvProblem) -> int:
    """Temporary planes of cuConv's first stage; none for 1×1."""
    taps = problem.r * problem.s
    return 0 if taps == 1 else 4 * taps * problem.n * problem.k * problem.p * problem.q


def is_plain_gemm(problem: ConvProblem) -> bool:
    """Whether x is its own im2col matrix: 1×1, stride 1, no padding."""
    return problem.r == problem.s == problem.stride_h == problem.stride_w == 1 and problem.pad_h == problem.pad_w == 0


def column_elements(problem: ConvProblem) -> int:
    """Elements of the im2col matrix of one image."""
    return problem.c * problem.r * problem.s * problem.p * problem.q


@dataclass(frozen=True)
class ChunkPlan:
    """So many images at a time.

    Parameters
    ----------
    images : int
    workspace_bytes : int
    """

    images: int
    workspace_bytes: int


def plan_gemm(problem: ConvProblem, limit_bytes: int) -> ChunkPlan:
    """Images whose im2col matrices fit the limit beside cuBLAS's own workspace.

    Raises
    ------
    WorkspaceExceeded
        Not even one fits.
    """
    if is_plain_gemm(problem):
        _check(BLAS_WORKSPACE_BYTES, limit_bytes)
        return ChunkPlan(problem.n, BLAS_WORKSPACE_BYTES)
    elements = column_elements(problem)
    return _plan_images(problem.n, BLAS_WORKSPACE_BYTES, elements * problem.dtype.itemsize_bytes, elements, limit_bytes)


def least_gemm_bytes(problem: ConvProblem) -> int:
    """What `plan_gemm` needs for one image at a time."""
    columns = 0 if is_plain_gemm(problem) else column_elements(problem) * problem.dtype.itemsize_bytes
    return BLAS_WORKSPACE_BYTES + columns


def winograd_tiles(problem: ConvProblem) -> int:
    """Output tiles of 2x2 in one image."""
    return ceil(problem.p / 2) * ceil(problem.q / 2)


def plan_winograd(problem: ConvProblem, limit_bytes: int) -> ChunkPlan:
    """Images whose transforms fit the limit beside those of the filters and cuBLAS's own workspace.

    Raises
    ------
    WorkspaceExceeded
        Not even one fits.
    """
    fixed_bytes = BLAS_WORKSPACE_BYTES + 4 * 16 * problem.k * problem.c
    elements = 16 * winograd_tiles(problem) * (problem.c + problem.k)
    return _plan_images(problem.n, fixed_bytes, 4 * elements, elements, limit_bytes)


def _plan_images(images: int, fixed_bytes: int, image_bytes: int, image_elements: int, limit_bytes: int) -> ChunkPlan:
    _check(fixed_bytes + image_bytes, limit_bytes)
    fitting = min(images, (limit_bytes - fixed_bytes) // image_bytes, max(1, MAX_ELEMENTS // image_elements))
    # Equal chunks: fewer images at a time than would fit, but no small rest.
    fitting = ceil(images / ceil(images / fitting))
    return ChunkPlan(fitting, fixed_bytes + fitting * image_bytes)


def _check(needed_bytes: int, limit_bytes: int) -> None:
    if needed_bytes > limit_bytes:
        raise WorkspaceExceeded(needed_bytes, limit_bytes)


def fft_size(least: int) -> int:
    """The smallest size from this on that has no prime factor above 7, for which cuFFT is fast."""
    size = least
    while _without_small_factors(size) > 1:
        size += 1
    return size


def _without_small_factors(size: int) -> int:
    for factor in (2, 3, 5, 7):
        while size % factor == 0:
            size //= factor
    return size


@dataclass(frozen=True)
class FftPlan:
    """Sizes and chunks of the FFT variant.

    Parameters
    ----------
    rows, columns : int
        Size of a transform.
    images, filters : int
        Of one chunk.
    batch : int
        Planes one call of cuFFT transforms, at most.
    buffers_bytes : int
        Padded planes of x, weight and y of one chunk; cuFFT's own work areas come on top.
    """

    rows: int
    columns: int
    images: int
    filters: int
    batch: int
    buffers_bytes: int

    @property
    def pitch(self) -> int:
        """Floats from one row of a padded plane to the next."""
        return 2 * (self.columns // 2 + 1)

    @property
    def plane_floats(self) -> int:
        """Floats of a padded plane, and of its transform."""
        return self.rows * self.pitch

    @property
    def frequencies(self) -> int:
        """Complex numbers of a transformed plane."""
        return self.plane_floats // 2

    def batch_of(self, planes: int) -> int:
        """Planes a call: equal shares of at most `batch`."""
        return ceil(planes / ceil(planes / self.batch))

    def rounded(self, planes: int) -> int:
        """Planes that whole calls transform, at least as many as asked for."""
        return _in_whole_calls(planes, self.batch)


def plan_fft(problem: ConvProblem, limit_bytes: int) -> FftPlan:
    """Chunks of images and filters whose padded planes fit seven eighths of the limit; the rest is for cuFFT.

    Raises
    ------
    WorkspaceExceeded
        Not even one image and one filter fit.
    """
    rows = fft_size(max(problem.h + problem.pad_h, problem.r))
    # Rows of odd length, 375 for one, came out wrong now and then (H200, cuFFT 12.0, in place).
    columns = 2 * fft_size(ceil(max(problem.w + problem.pad_w, problem.s) / 2))
    plane_bytes = 4 * rows * 2 * (columns // 2 + 1)
    batch = max(1, limit_bytes // 64 // plane_bytes)
    # A buffer of fewer than 2^31 floats keeps the kernels' indices within 32 bits.
    budget_bytes = min(limit_bytes - limit_bytes // 8, 4 * MAX_ELEMENTS)
    least_images = min(problem.n, 8)
    parts = 1
    while True:
        filters = ceil(problem.k / parts)
        images = _fft_images(problem, rows, columns, filters, batch, budget_bytes)
        if images >= (least_images if filters > 1 else 1):
            return _fft_plan(problem, rows, columns, images, filters, batch)
        if filters == 1 and batch > 1:
            batch = parts = 1  # whole calls of larger batches transform planes that nobody asked for
            continue
        if filters == 1:
            needed = _fft_plan(problem, rows, columns, 1, 1, 1).buffers_bytes
            raise WorkspaceExceeded(needed + (needed - 1) // 7, limit_bytes)
        parts *= 2


def _fft_images(problem: ConvProblem, rows: int, columns: int, filters: int, batch: int, budget_bytes: int) -> int:
    low, high = 0, problem.n
    if _fft_buffers_bytes(problem, rows, columns, high, filters, batch) <= budget_bytes:
        return high  # as nearly always: advice asks this of 100,000 layers a second
    while low < high:
        images = (low + high + 1) // 2
        if _fft_buffers_bytes(problem, rows, columns, images, filters, batch) <= budget_bytes:
            low = images
        else:
            high = images - 1
    return low


def _fft_plan(problem: ConvProblem, rows: int, columns: int, images: int, filters: int, batch: int) -> FftPlan:
    buffers_bytes = _fft_buffers_bytes(problem, rows, columns, images, filters, batch)
    return FftPlan(rows, columns, images, filters, batch, buffers_bytes)


def _fft_buffers_bytes(problem: ConvProblem, rows: int, columns: int, images: int, filters: int, batch: int) -> int:
    planes = _in_whole_calls(images * problem.c, batch)
    planes += _in_whole_calls(filters * problem.c, batch) + _in_whole_calls(images * filters, batch)
    return planes * rows * 2 * (columns // 2 + 1) * 4


def _in_whole_calls(planes: int, batch: int) -> int:
    """Planes that calls of equal shares transform, at least as many as asked for."""
    share = ceil(planes / ceil(planes / batch))
    return share * ceil(planes / share)
