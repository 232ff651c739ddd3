"""What a cut of the grouped convolution is expected to take: a model good for choosing among cuts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import DType, Layout
from conv_advisor.kernels.cuda.grouped.cut import (
    MOST_WARPS,
    Cut,
    Geometry,
    Runs,
    columns_of_blocks,
    tiles_of,
)
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.fitted import fitted_on
from conv_advisor.kernels.cuda.parts.multiprocessor import RESERVED_BYTES, shared_memory_of
from conv_advisor.kernels.cuda.parts.shapes import Problems

CLOCKS_PER_US: Final = 1700
DOUBLE_STAGES: Final = 0.1
"""Share of a chunk's latency that a second stage hides."""


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
H200: Final[Mapping[DType, Mapping[Layout, Costs]]] = {
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
COSTS: Final[Mapping[str, Mapping[DType, Mapping[Layout, Costs]]]] = {"nvidia-h200": H200}
"""By the device that they were fitted on."""


def resident_blocks(cut: Cut, shared_bytes: Any, device: Device) -> Any:
    """Blocks that a multiprocessor holds at a time."""
    registers = cut.tile.blocks * MOST_WARPS * 32 // cut.threads
    fitting = np.minimum(shared_memory_of(device) // (shared_bytes + RESERVED_BYTES), registers)
    return np.maximum(1, np.minimum(fitting, 32))


def expect(cut: Cut, problems: Problems, g: Geometry, runs: Runs, resident: Any, device: Device) -> Any:
    """Time in us: what a busy multiprocessor's units take, and the latency of its blocks, wave after wave.

    Parameters
    ----------
    cut : Cut
    problems : ConvProblem or Shapes
        The problem of each cut.
    g : Geometry
    runs : Runs
    resident : int or int array
        Blocks that a multiprocessor holds.
    device : Device
    """
    costs, tile = fitted_on(device, COSTS)[problems.dtype][problems.layout], cut.tile
    columns, tiles, warps = columns_of_blocks(problems, cut), tiles_of(problems, cut), cut.threads // 32
    steps = g.chunks * g.padded_k // 8
    products = tile.mt * tile.nt * (3 if problems.dtype is DType.FLOAT32 else 1)
    words = cut.block_groups * cut.chunk_words
    x_copies = g.slab_pixels * words * g.chunks / runs.x
    weight_copies = cut.block_groups * cut.block_filters * g.padded_k * g.chunks / runs.weight
    outputs = cut.tile_pixels * cut.block_filters * cut.block_groups
    latency = costs.tile + g.chunks * costs.chunk * (1 - DOUBLE_STAGES * (cut.stages - 1))
    latency = latency + (steps * (costs.step + costs.product * products) + costs.thread_y * outputs / cut.threads)
    x_lanes = (g.slab_pixels if problems.layout is Layout.NCHW else words) // runs.x
    latency = latency + costs.thread_x * x_copies / _busy_threads(cut, x_lanes)
    weight_latency = costs.thread_weight * weight_copies / _busy_threads(cut, g.padded_k // runs.weight)
    fragments = 4 * tile.mt + 2 * tile.nt + 2
    busy = costs.x * x_copies + costs.x_byte * 4 * x_copies * runs.x + costs.y * outputs
    busy = busy + warps * steps * np.maximum(costs.fragments * fragments, costs.products * products)
    walked = ceil_div(tiles, cut.tile_blocks)
    weights = np.where(g.chunks > 1, walked, 1)
    blocks = ceil_div(cut.tile_blocks * columns, device.processors)
    clocks = blocks * (walked * busy + weights * costs.weight * weight_copies)
    waves = ceil_div(blocks, resident)
    clocks = clocks + waves * (costs.block + walked * latency + weights * weight_latency)
    return costs.launch_us + clocks / CLOCKS_PER_US


def _busy_threads(cut: Cut, lanes: Any) -> Any:
    """Threads that copy where so many lie side by side."""
    lanes = np.minimum(cut.threads, lanes)
    return cut.threads // lanes * lanes
