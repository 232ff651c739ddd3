"""Expected time of a cut of the grouped convolution: a model good for choosing among cuts."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import DType, Layout
from conv_advisor.kernels.cuda.grouped import menu
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
"""The clock, in cycles per us, at which the constants were fitted."""
DOUBLE_STAGES: Final = 0.1
"""Share of a chunk's latency that a second stage hides."""


def resident_blocks(cut: Cut, shared_bytes: Any, device: Device) -> Any:
    """Blocks that a multiprocessor holds at a time."""
    registers = cut.tile.blocks * MOST_WARPS * 32 // cut.threads
    fitting = np.minimum(shared_memory_of(device) // (shared_bytes + RESERVED_BYTES), registers)
    return np.maximum(1, np.minimum(fitting, 32))


def expect(cut: Cut, problems: Problems, g: Geometry, runs: Runs, resident: Any, device: Device) -> Any:
    """Time in us: the work of a busy multiprocessor's units, plus the latency of its blocks, wave after wave.

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
    costs, tile = fitted_on(device, menu.COSTS)[problems.dtype][problems.layout], cut.tile
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
    """Threads that copy where ``lanes`` copies lie side by side: a multiple of the lanes."""
    lanes = np.minimum(cut.threads, lanes)
    return cut.threads // lanes * lanes
