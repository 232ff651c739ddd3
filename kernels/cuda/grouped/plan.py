"""Which cut of the grouped convolution a problem takes: a menu, and a model of what each costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.grouped.cut import (
    MOST_SHARED_BYTES,
    MOST_WARPS,
    TILES,
    Cut,
    Mode,
    Tile,
    columns_of_blocks,
    elements_of_word,
    geometry_of,
    group_words,
    mode_of,
    next_of,
    runs_of,
    tiles_of,
)
from conv_advisor.kernels.cuda.parts.multiprocessor import HOPPER_SHARED_BYTES, RESERVED_BYTES

CLOCKS_PER_US: Final = 1700
DOUBLE_STAGES: Final = 0.1
"""Of a chunk's latency that a second stage hides."""


@dataclass(frozen=True)
class Costs:
    """Clocks, but for the launch's microseconds; fitted on an H200.

    Parameters
    ----------
    launch_us : float
    block, tile, chunk, step, product : float
        Latency of what a block does alone: once, for each tile of pixels, chunk of channels, eight words of gemm_k, and
        instruction of these.
    thread_x, thread_weight, thread_y : float
        Latency of a thread's copies and outputs.
    x, weight, fragments, products, y, x_byte : float
        What each copy, row of fragments, instruction, output and byte takes of a busy multiprocessor.
    """

    launch_us: float
    block: float
    tile: float
    chunk: float
    step: float
    product: float
    thread_x: float
    thread_weight: float
    thread_y: float
    x: float
    weight: float
    fragments: float
    products: float
    y: float
    x_byte: float


_HALF: Final = {
    # From before loads went ahead of their stores; constants fitted since, to the cuts of 390 layers, chose no better.
    Layout.NCHW: Costs(0.9, 1900, 1500, 1720, 30, 4, 150, 100, 6.67, 0.43, 0.15, 0.4, 1.6, 0.15, 0),
    Layout.NHWC: Costs(1.67, 1540, 1730, 1860, 0, 2.27, 16, 27.5, 14.6, 0.725, 0.23, 0.52, 1.29, 0.159, 0),
}
COSTS: Final = {
    DType.FLOAT32: {
        Layout.NCHW: Costs(0.961, 1270, 2080, 1510, 51, 0.877, 45.7, 51.6, 0, 0.0417, 0, 1.6, 1.78, 0.205, 0.0187),
        Layout.NHWC: Costs(
            1.25, 894, 1940, 1750, 20.9, 1.79, 88.8, 39.9, 11.8, 0.157, 0.0875, 1.25, 1.47, 0.277, 0.00987
        ),
    },
    DType.TF32: {
        Layout.NCHW: Costs(1.13, 1590, 1750, 1500, 23.9, 6.54, 32.7, 43.7, 0, 0.12, 0, 0.92, 1.21, 0.169, 0.0126),
        Layout.NHWC: Costs(1.09, 944, 2250, 1500, 41.2, 4.41, 92.9, 23.3, 0, 0.18, 0.13, 0.511, 1.53, 0.326, 0.00717),
    },
    DType.FLOAT16: _HALF,
    DType.BFLOAT16: _HALF,
}


def every_cut(problem: ConvProblem) -> Iterator[Cut]:
    """Those worth a thought, of one tile of pixels a block."""
    filters = problem.k // problem.groups
    for tile in TILES:
        if 8 * (tile.nt - 1) >= filters:
            continue
        for warps_n in sorted({1, min(2, ceil(filters / (8 * tile.nt))), min(4, ceil(filters / (8 * tile.nt)))}):
            parts = ceil(filters / (8 * tile.nt * warps_n))
            block_filters = min(filters, 8 * tile.nt * warps_n) if parts > 1 else filters
            for warps_m in (1, 2, 4, 8):
                if warps_m * warps_n > MOST_WARPS:
                    continue
                for groups in _block_groups(problem, parts, MOST_WARPS // (warps_m * warps_n)):
                    for pixels in _tiles_of_pixels(problem, 16 * tile.mt * warps_m):
                        cut = Cut(tile, warps_m, warps_n, groups, block_filters, *pixels, 0, 1)
                        yield from _chunked(problem, cut)


def _block_groups(problem: ConvProblem, parts: int, most: int) -> list[int]:
    is_odd = problem.c // problem.groups % elements_of_word(problem) != 0
    if parts > 1 or is_odd:
        return [1]
    return [groups for groups in (1, 2, 4, 8) if groups <= min(most, problem.groups)]


def _tiles_of_pixels(problem: ConvProblem, pixels: int) -> list[tuple[int, int, int]]:
    """Images, rows and columns of tiles of at most so many pixels."""
    n, p, q = problem.n, problem.p, problem.q
    if p * q <= pixels:
        return [(_share(n, pixels // (p * q)), p, q)]
    found = []
    for width in {q, *(width for width in (8, 16, 32, 64) if width < q)}:
        if width > pixels:
            continue
        tile_q = _share(q, width)
        found.append((1, _share(p, max(1, pixels // tile_q)), tile_q))
    return found or [(1, 1, _share(q, pixels))]


def _share(size: int, most: int) -> int:
    """Of equal shares of at most so much."""
    return ceil(size / ceil(size / most))


def _chunked(problem: ConvProblem, cut: Cut) -> Iterator[Cut]:
    words = group_words(problem)
    seen = set()
    for parts in (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, words):
        chunk = ceil(words / parts)
        multiple = 8 if words % 8 == 0 or chunk > 8 else 4
        if chunk < words:
            chunk = min(words, next_of(chunk, 0, multiple)) if parts < words or mode_of(problem) is Mode.NHWC else chunk
        if chunk in seen or (chunk < words and cut.block_groups > 1):
            continue
        seen.add(chunk)
        single = replace(cut, chunk_words=chunk, stages=1)
        fits = geometry_of(problem, single).shared_bytes <= MOST_SHARED_BYTES
        if fits:
            yield single
        double = replace(single, stages=2)
        if chunk < words and geometry_of(problem, double).shared_bytes <= MOST_SHARED_BYTES:
            yield double
        if fits and len(seen) > 2:
            return


def _least_cut(problem: ConvProblem) -> Cut:
    """What fits where nothing else does: one pixel, few filters, four words of channels."""
    chunk = min(group_words(problem), 4)
    least = Cut(Tile(1, 1), 1, 1, 1, min(8, problem.k // problem.groups), 1, 1, 1, chunk, 1)
    while geometry_of(problem, least).shared_bytes > MOST_SHARED_BYTES and least.block_filters > 1:
        least = replace(least, block_filters=least.block_filters - 1)
    return least


def _resident_blocks(cut: Cut, shared_bytes: int) -> int:
    """Blocks that a multiprocessor holds at a time."""
    registers = cut.tile.blocks * MOST_WARPS * 32 // cut.threads
    return max(1, min(HOPPER_SHARED_BYTES // (shared_bytes + RESERVED_BYTES), registers, 32))


def expected_us(cut: Cut, problem: ConvProblem, device: Device) -> float:
    """Expected time: what a busy multiprocessor's units take, and the latency of its blocks, wave after wave."""
    costs = COSTS[problem.dtype][problem.layout]
    g, runs, tile = geometry_of(problem, cut), runs_of(problem, cut), cut.tile
    columns, tiles, warps = columns_of_blocks(problem, cut), tiles_of(problem, cut), cut.threads // 32
    steps = g.chunks * g.padded_k // 8
    products = tile.mt * tile.nt * (3 if problem.dtype is DType.FLOAT32 else 1)
    words = cut.block_groups * cut.chunk_words
    x_copies = g.slab_pixels * words * g.chunks / runs.x
    weight_copies = cut.block_groups * cut.block_filters * g.padded_k * g.chunks / runs.weight
    outputs = cut.tile_pixels * cut.block_filters * cut.block_groups
    latency = costs.tile + g.chunks * costs.chunk * (1 - DOUBLE_STAGES * (cut.stages - 1))
    latency += steps * (costs.step + costs.product * products) + costs.thread_y * outputs / cut.threads
    x_lanes = (g.slab_pixels if problem.layout is Layout.NCHW else words) // runs.x
    latency += costs.thread_x * x_copies / _busy_threads(cut, x_lanes)
    weight_latency = costs.thread_weight * weight_copies / _busy_threads(cut, g.padded_k // runs.weight)
    fragments = 4 * tile.mt + 2 * tile.nt + 2
    busy = costs.x * x_copies + costs.x_byte * 4 * x_copies * runs.x + costs.y * outputs
    busy += warps * steps * max(costs.fragments * fragments, costs.products * products)
    walked = ceil(tiles / cut.tile_blocks)
    weights = walked if g.chunks > 1 else 1
    blocks = ceil(cut.tile_blocks * columns / device.processors)
    waves = ceil(blocks / _resident_blocks(cut, g.shared_bytes))
    clocks = blocks * (walked * busy + weights * costs.weight * weight_copies)
    clocks += waves * (costs.block + walked * latency + weights * weight_latency)
    return costs.launch_us + clocks / CLOCKS_PER_US


def _busy_threads(cut: Cut, lanes: int) -> int:
    """Threads that copy where so many lie side by side."""
    lanes = min(cut.threads, lanes)
    return cut.threads // lanes * lanes


def cuts_for(problem: ConvProblem, device: Device) -> list[Cut]:
    """Every cut with a block a tile of pixels, and with as many as run at a time, which keep their weight."""
    cuts = list(every_cut(problem)) or [_least_cut(problem)]
    return [walked(problem, cut, device.processors, waves) for cut in cuts for waves in (0, 1)]


def expected(problem: ConvProblem, device: Device) -> dict[Cut, float]:
    """The cuts of one problem, and the time in us that each is expected to take."""
    return {cut: expected_us(cut, problem, device) for cut in cuts_for(problem, device)}


def plan_cut(problem: ConvProblem, device: Device) -> Cut:
    """The cut that the model expects to be fastest."""
    return min(cuts_for(problem, device), key=lambda cut: expected_us(cut, problem, device))


def walked(problem: ConvProblem, cut: Cut, processors: int, waves: int = 0) -> Cut:
    """The same with so many blocks that they run in so many waves; 0: a block a tile of pixels."""
    tiles = tiles_of(problem, cut)
    if waves == 0:
        return replace(cut, tile_blocks=tiles)
    resident = _resident_blocks(cut, geometry_of(problem, cut).shared_bytes)
    room = max(1, processors * resident * waves // columns_of_blocks(problem, cut))
    return replace(cut, tile_blocks=ceil(tiles / ceil(tiles / room)))
