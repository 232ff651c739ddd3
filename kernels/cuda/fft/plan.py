"""How the FFT cuts a problem: sizes of transforms, chunks of images and filters, and the tile of the product."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.problem import MAX_ELEMENTS, ConvProblem
from conv_advisor.kernels.cuda.parts.arithmetic import LEAST_THREADS_PER_PROCESSOR
from conv_advisor.kernels.cuda.parts.source import Source

FFT_TILES: Final = ((4, 4), (1, 4), (1, 1))
"""Images and filters that a thread of the FFT's product may compute."""
DEFINES: Final = tuple({"TILE_N": tile_n, "TILE_K": tile_k} for tile_n, tile_k in FFT_TILES)
"""The definitions that fft.cu is compiled with."""
SOURCE: Final = Source("fft", lambda _dtype: DEFINES)


def fft_tile(images: int, filters: int, frequencies: int, processors: int) -> tuple[int, int]:
    """The largest tile that the images and filters fill while the device stays busy."""
    for tile_n, tile_k in FFT_TILES:
        threads = ceil(images / tile_n) * ceil(filters / tile_k) * frequencies
        if tile_n <= images and tile_k <= filters and threads >= processors * LEAST_THREADS_PER_PROCESSOR:
            return tile_n, tile_k
    return FFT_TILES[-1]


def fft_size(least: int) -> int:
    """The smallest size, not below ``least``, without a prime factor above 7: cuFFT is fast for these."""
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
        Images and filters of one chunk.
    batch : int
        Planes that one call of cuFFT transforms, at most.
    buffers_bytes : int
        Padded planes of x, weight and y of one chunk, without cuFFT's own work areas.
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
        """Planes per call: equal shares of at most `batch`."""
        return ceil(planes / ceil(planes / self.batch))

    def rounded(self, planes: int) -> int:
        """``planes`` rounded up to the planes that whole calls transform."""
        return _in_whole_calls(planes, self.batch)


def plan_fft(problem: ConvProblem, limit_bytes: int) -> FftPlan:
    """Chunks of images and filters whose padded planes fit seven eighths of the limit; the rest is for cuFFT.

    Raises
    ------
    WorkspaceExceeded
        Not even one image and one filter fit.
    """
    rows = fft_size(max(problem.h + max(problem.pad_h, problem.pad_h_end), problem.r))
    # Rows of odd length, such as 375, sometimes gave wrong results (H200, cuFFT 12.0, in place).
    columns = 2 * fft_size(ceil(max(problem.w + max(problem.pad_w, problem.pad_w_end), problem.s) / 2))
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
            batch = parts = 1  # whole calls of larger batches also transform planes that are not needed
            continue
        if filters == 1:
            needed = _fft_plan(problem, rows, columns, 1, 1, 1).buffers_bytes
            raise WorkspaceExceeded(needed + (needed - 1) // 7, limit_bytes)
        parts *= 2


def workspace_bytes(problem: ConvProblem, limit_bytes: int) -> int:
    """Bytes of the padded planes; only cuFFT knows the bytes of its own work areas."""
    return plan_fft(problem, limit_bytes).buffers_bytes


def _fft_images(problem: ConvProblem, rows: int, columns: int, filters: int, batch: int, budget_bytes: int) -> int:
    low, high = 0, problem.n
    if _fft_buffers_bytes(problem, rows, columns, high, filters, batch) <= budget_bytes:
        return high  # nearly always: advice computes this for 100,000 layers a second
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
    """``planes`` rounded up to the planes that calls of equal shares transform."""
    share = ceil(planes / ceil(planes / batch))
    return share * ceil(planes / share)
