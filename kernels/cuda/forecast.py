"""What the plans of our implicit GEMMs expect of many problems at once: their models of the time, in arrays.

The same cuts as the plans of those families choose for one problem after the other, which takes milliseconds each; a
teacher asks for a million.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import MAX_ELEMENTS, ConvProblem, DType, Layout
from conv_advisor.data.table import SIZES, output_plane
from conv_advisor.kernels.cuda.implicit_gemm import plan as plain_plan
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import plan as packed_plan
from conv_advisor.kernels.cuda.implicit_gemm_tensor import cut as tensor_plan
from conv_advisor.kernels.cuda.implicit_gemm_tensor import plan as tensor_choice
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.pointwise import plan as pointwise_plan
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES

Array = np.ndarray[Any, Any]

KERNELS: Final = ("pointwise", "implicit_gemm", "packed")
"""Whose plans are asked: packed is that of ``cuda.implicit_gemm_nhwc`` and ``cuda.implicit_gemm_transposed``."""

VALUES: Final = ("us", "cluster", "outputs", "blocks")
"""Of a cut: expected time, blocks that share a tile, outputs of a tile, and blocks of the grid."""

_AT_A_TIME: Final = 2**14
"""Problems whose arrays are in memory together."""


@dataclass(frozen=True)
class _Sizes:
    """Of problems of one dtype and layout, each an array of int64."""

    n: Array
    c: Array
    h: Array
    w: Array
    k: Array
    r: Array
    s: Array
    stride_h: Array
    stride_w: Array
    pad_h: Array
    pad_w: Array
    dilation_h: Array
    dilation_w: Array
    groups: Array
    p: Array
    q: Array

    @classmethod
    def of(cls, sizes: Array) -> _Sizes:
        """The columns of `data.table`, and the plane of y."""
        p, q = output_plane(sizes)
        return cls(**dict(zip(SIZES, sizes.T, strict=True)), p=p, q=q)

    @property
    def taps(self) -> Array:
        """Of a filter."""
        return self.r * self.s

    @property
    def pixels(self) -> Array:
        """Of y, all images."""
        return self.n * self.p * self.q

    @property
    def is_pointwise(self) -> Array:
        """Whether a filter has one tap, which lies inside every image."""
        is_pointwise: Array = (self.taps == 1) & (self.pad_h == 0) & (self.pad_w == 0)
        return is_pointwise

    @property
    def is_dense(self) -> Array:
        """Whether that sees every pixel."""
        is_dense: Array = self.is_pointwise & (self.stride_h == 1) & (self.stride_w == 1)
        return is_dense

    def take(self, rows: Array) -> _Sizes:
        """Those of some of the problems."""
        return _Sizes(*(getattr(self, name)[rows] for name in _NAMES))


_NAMES: Final = tuple(each.name for each in fields(_Sizes))


class _Least:
    """Keeps the first of the cuts that take least."""

    def __init__(self, count: int) -> None:
        self.values = np.full((len(VALUES), count), np.nan)
        self._us = np.full(count, np.inf)

    def offer(self, us: Array, is_possible: Any, cluster: int, outputs: int, blocks: Array) -> None:
        """Look at the same cut of all problems."""
        better = np.flatnonzero(is_possible & (us < self._us))
        self._us[better] = us[better]
        self.values[:, better] = us[better], *np.broadcast_arrays(cluster, outputs, blocks[better])


def forecast(sizes: Array, dtype: DType, layout: Layout, device: Device) -> dict[str, Array]:
    """What the plans expect on a device.

    Parameters
    ----------
    sizes : int64 array of shape (N, 14)
        As in `data.table`.
    dtype : DType
    layout : Layout
    device : Device

    Returns
    -------
    dict of str to float64 array of shape (N, len(VALUES))
        By `KERNELS`; NaN where one does not apply, as none does on a device whose multiprocessors are unknown.
    """
    found = {kernel: np.full((len(sizes), len(VALUES)), np.nan) for kernel in KERNELS}
    if device.kind != "cuda" or not device.processors:
        return found
    for first in range(0, len(sizes), _AT_A_TIME):
        some = _Sizes.of(sizes[first : first + _AT_A_TIME])
        for kernel, (applies, plan) in zip(KERNELS, _PLANS, strict=True):
            mine = np.flatnonzero(applies(some, dtype, layout, device))
            if len(mine):
                found[kernel][first + mine] = plan(some.take(mine), dtype, layout, device).T
    return found


def _has_wgmma(device: Device) -> bool:
    return device.capability == "9.0"


def _is_for_pointwise(sizes: _Sizes, _dtype: DType, layout: Layout, device: Device) -> Array:
    applies: Array = sizes.is_dense & (sizes.groups == 1) & (layout is Layout.NCHW and _has_wgmma(device))
    return applies


def _pointwise(sizes: _Sizes, dtype: DType, _layout: Layout, device: Device) -> Array:
    tiles, least = pointwise_plan.menu_for(dtype).tiles, _Least(len(sizes.n))
    stages = ceil_div(sizes.c * dtype.itemsize_bytes, pointwise_plan.ROW_BYTES)
    loadings = {bp: _pointwise_loading(sizes, dtype, bp) for bp in {tile.bp for tile in tiles}}
    fitting = [_pointwise_residents(tile, sizes, dtype, *loadings[tile.bp]) for tile in tiles]
    columns = np.array([[tile.bn] for tile in tiles])
    is_filled = (np.array(fitting) > 0) & (columns < 2 * sizes.k)
    narrowest = np.where(np.array(fitting) > 0, columns, columns.max() + 1).min(axis=0)
    for place, tile in enumerate(tiles):
        is_possible = np.where(is_filled.any(axis=0), is_filled[place], (fitting[place] > 0) & (tile.bn == narrowest))
        loading, room = loadings[tile.bp][0], np.maximum(fitting[place], 1)
        for cluster in tile.clusters:
            cut, processors = pointwise_plan.Cut(tile, cluster), device.processors
            us, blocks = pointwise_plan.expect(cut, dtype, loading, sizes.pixels, sizes.c, sizes.k, room, processors)
            least.offer(us, is_possible & (cluster <= np.maximum(1, stages)), cluster, tile.bn * tile.bp, blocks)
    return least.values


def _pointwise_loading(sizes: _Sizes, dtype: DType, bp: int) -> tuple[Array, Array]:
    """How x is loaded, and of how many images a tile's pixels may be where that is in CHUNKS."""
    loadings, item, plane = pointwise_plan.Loading, dtype.itemsize_bytes, sizes.h * sizes.w
    segments = np.zeros(len(plane), np.int64)
    for count in reversed(pointwise_plan.SEGMENTS[item]):
        if pointwise_plan.has_columns(bp, item, count):
            segments[ceil_div(bp - 1, plane) + 1 <= count] = count
    loading = np.where(segments > 0, loadings.CHUNKS, loadings.WORDS if item == 4 else loadings.ELEMENTS)
    loading[plane % (16 // item) == 0] = loadings.VECTORS
    loading[sizes.c % (16 // item) > 0] = loadings.ELEMENTS
    return loading, np.where(loading == loadings.CHUNKS, segments, 0)


def _pointwise_residents(
    tile: pointwise_plan.Tile, sizes: _Sizes, dtype: DType, loading: Array, segments: Array
) -> Array:
    needed = np.zeros(len(loading), np.int64)
    for way, count in set(zip(loading.tolist(), segments.tolist(), strict=True)):
        rows = (loading == way) & (segments == count)
        of_way = pointwise_plan.Loading(way)
        needed[rows] = pointwise_plan.shared_bytes_with(tile, dtype, of_way, count, sizes.c[rows])
    fitting: Array = pointwise_plan.fitting_blocks(tile, needed)
    return fitting


def _is_for_implicit_gemm(sizes: _Sizes, dtype: DType, layout: Layout, _device: Device) -> Array:
    most = plain_plan.MOST_TAPS if dtype.itemsize_bytes == 4 else plain_plan.MOST_GATHERED_TAPS
    applies: Array = (sizes.groups == 1) & (sizes.taps <= most) & (layout is Layout.NCHW)
    return applies


def _implicit_gemm(sizes: _Sizes, dtype: DType, _layout: Layout, device: Device) -> Array:
    least = _Least(len(sizes.n))
    if plain_plan.has_clusters(device):  # these first: the choice is theirs where both take as long
        _offer_tensor(least, sizes, dtype, device)
    _offer_plain(least, sizes, dtype, device)
    return least.values


def _offer_plain(least: _Least, sizes: _Sizes, dtype: DType, device: Device) -> None:
    loadings, item, plane = plain_plan.Loading, dtype.itemsize_bytes, sizes.p * sizes.q
    has_points = (sizes.is_pointwise & (item == 4)) | (sizes.is_dense & (plane % 2 == 0))
    has_runs = sizes.is_dense & (plane * item % 16 == 0)
    loading = np.select([has_runs, has_points], [loadings.RUNS, loadings.POINTS], loadings.TAPS)
    gemm_k = sizes.c * sizes.taps
    for tile in plain_plan.menu_for(dtype).tiles:
        tiles = ceil_div(sizes.k, tile.bm) * ceil_div(sizes.pixels, tile.bn)
        for cluster in range(1, plain_plan.LARGEST_CLUSTER + 1 if plain_plan.has_clusters(device) else 2):
            cut, us = plain_plan.Cut(tile, cluster), np.full(len(plane), np.inf)
            for way in loadings:
                rows = np.flatnonzero(loading == way)
                blocks = tiles[rows] * cluster
                us[rows] = plain_plan.expect(cut, dtype, way, sizes.taps[rows], gemm_k[rows], blocks, device)
            least.offer(us, cluster <= ceil_div(gemm_k, tile.bk), cluster, tile.bm * tile.bn, tiles * cluster)


def _offer_tensor(least: _Least, sizes: _Sizes, dtype: DType, device: Device) -> None:
    loadings, vector = tensor_plan.Loading, 16 // dtype.itemsize_bytes
    has_runs = sizes.h * sizes.w % vector == 0
    loading = np.select([sizes.is_dense & has_runs, sizes.is_dense], [loadings.RUNS, loadings.ROWS], loadings.WINDOWS)
    windows: dict[int, Array] = {}
    for place, tile in enumerate(tensor_choice.menu_for(dtype).tiles):
        if tile.bn not in windows:
            windows[tile.bn] = _windows(sizes, dtype, tile.bn, loading == loadings.WINDOWS)
        positions, pitch, tiles, has_window = windows[tile.bn]
        is_chosen = (sizes.n <= tensor_plan.MOST_IMAGES) & ((place == 0) | (sizes.c * sizes.taps % vector == 0))
        is_chosen &= (loading != loadings.WINDOWS) | (has_window > 0)
        for way in loadings:
            rows = np.flatnonzero(is_chosen & (loading == way))
            if not len(rows):
                continue
            some, all_stages = sizes.take(rows), ceil_div(sizes.c[rows], tensor_plan.stage_channels(tile, way))
            gathers = (dtype.itemsize_bytes == 2) & (some.w % 2 == 1)
            pitches = pitch[rows] if way is loadings.WINDOWS else tensor_plan.run_pitch(tile, dtype)
            images = tiles[rows] if way is loadings.WINDOWS else ceil_div(some.p * some.q, tile.bn)
            stage_k = tensor_plan.stage_k_with(tile, dtype, way, some.taps)
            for cluster in range(1, tensor_choice.LARGEST_CLUSTER + 1):
                cut, blocks = tensor_plan.Cut(tile, cluster), cluster * images * some.n * ceil_div(some.k, tile.bm)
                shared = tensor_plan.shared_bytes_with(cut, dtype, way, some.taps, some.c, pitches)
                resident = tensor_choice.resident_with(cut, shared, device)
                work = tensor_choice.Work(dtype, way, gathers, stage_k, all_stages, positions[rows], blocks, resident)
                is_possible = tensor_plan.is_possible_with(cut, dtype, way, some.r, some.s, some.c, gathers, pitches)
                us, places = np.full((2, len(sizes.n)), np.inf)
                us[rows] = np.where(is_possible, tensor_choice.expect(cut, work, device), np.inf)
                places[rows] = blocks
                least.offer(us, np.isfinite(us), cluster, tile.bm * tile.bn, places)


def _windows(sizes: _Sizes, dtype: DType, bn: int, wanted: Array) -> Array:
    """Of tiles of so many pixels: copies of a channel, elements to the next, tiles of an image, and whether it is."""
    found = np.zeros((4, len(wanted)), np.int64)
    rows = np.flatnonzero(wanted)
    some = sizes.take(rows)
    names = ("h", "w", "r", "s", "stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w")
    each, place = np.unique(np.array([getattr(some, name) for name in names]), axis=1, return_inverse=True)
    for number, values in enumerate(each.T.tolist()):
        shape = ConvProblem(n=1, c=1, k=1, dtype=dtype, **dict(zip(names, values, strict=True)))
        window = tensor_plan.find_window(shape, bn)
        if window:
            tiles = window.tiles * ceil_div(shape.q, window.strip)
            found[:, rows[place == number]] = [[window.positions], [window.channel_pitch], [tiles], [1]]
    return found


def _is_for_packed(sizes: _Sizes, dtype: DType, layout: Layout, device: Device) -> Array:
    is_here = dtype is not DType.FLOAT32 and _has_wgmma(device)
    applies: Array = (sizes.groups == 1) & is_here & (_packed_images(sizes, dtype, layout) > 0)
    return applies


def _packed_images(sizes: _Sizes, dtype: DType, layout: Layout) -> Array:
    """At a time, under the default limit; 0 where not even one fits."""
    item, run = dtype.itemsize_bytes, packed_plan.run_elements(dtype)
    channels, alignment = ceil_div(sizes.c, run) * run, packed_plan.PACKED_ALIGNMENT
    fixed = ceil_div(sizes.k * sizes.taps * channels * item, alignment) * alignment
    limit_bytes = min(DEFAULT_WORKSPACE_LIMIT_BYTES, MAX_ELEMENTS * item)
    fitting = np.clip((limit_bytes - fixed) // (sizes.h * sizes.w * channels * item), 0, sizes.n)
    chunked = np.where(fitting > 0, ceil_div(sizes.n, ceil_div(sizes.n, np.maximum(fitting, 1))), 0)
    return np.where((layout is Layout.NCHW) | (sizes.c % run > 0), chunked, sizes.n)


def _packed(sizes: _Sizes, dtype: DType, layout: Layout, device: Device) -> Array:
    least, images, menu = _Least(len(sizes.n)), _packed_images(sizes, dtype, layout), packed_plan.menu_for(dtype)
    run = packed_plan.run_elements(dtype)
    row_bytes = sizes.taps * ceil_div(sizes.c, run) * run * dtype.itemsize_bytes
    stages, pixels = ceil_div(row_bytes, packed_plan.ROW_BYTES), images * sizes.p * sizes.q
    for tile in menu.tiles:
        for cluster in range(1, packed_plan.LARGEST_CLUSTER + 1):
            if tile.shared_bytes(layout, cluster) > packed_plan.MOST_SHARED_BYTES:
                continue
            cut, blocks = (
                packed_plan.Cut(tile, cluster),
                ceil_div(sizes.k, tile.bf) * ceil_div(pixels, tile.bp) * cluster,
            )
            us = packed_plan.expect(cut, menu, layout, sizes.is_pointwise, stages, blocks, device)
            least.offer(us, cluster <= stages, cluster, tile.bf * tile.bp, blocks)
    least.values[0] *= ceil_div(sizes.n, images)
    return least.values


_Applies = Callable[[_Sizes, DType, Layout, Device], Array]
_PLANS: Final[tuple[tuple[_Applies, _Applies], ...]] = (
    (_is_for_pointwise, _pointwise),
    (_is_for_implicit_gemm, _implicit_gemm),
    (_is_for_packed, _packed),
)
