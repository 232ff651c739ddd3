"""Expected time of a cut of a depthwise convolution: a model good for choosing among cuts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.kernels.cuda.depthwise import menu
from conv_advisor.kernels.cuda.depthwise.cut import Planes, Staged, Tiled, Window, copy_of
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.fitted import fitted_on
from conv_advisor.kernels.cuda.parts.multiprocessor import RESERVED_BYTES, shared_memory_of
from conv_advisor.kernels.cuda.parts.shapes import Ints, Problems

REGISTERS: Final = 65536
"""Registers of a multiprocessor, of four bytes each."""
SLOTS_PER_US: Final = 4 * 1750
"""Warp instructions that a multiprocessor issues: four per cycle, at 1,750 MHz."""
SECTOR_BYTES: Final = 32
"""The least that memory moves at a time."""
_REGISTERS_OF: Final = np.array((0, 200, 128, 80, 64))
"""Registers of a thread of the nhwc kernels, by the blocks that a multiprocessor's registers must have room for."""


@dataclass(frozen=True)
class Work:
    """Counts of a thread's operations, and the blocks of a launch: of one cut, or arrays of many.

    Parameters
    ----------
    blocks : int or int array
    threads : int or int array
        Threads of a block.
    residents : int or int array
        Blocks that a multiprocessor holds.
    products, loads, elements, outputs, filters, copies : int or int array
        Counts of a thread: multiplications, loads of x, elements loaded, outputs, filter elements, vectors copied.
    bytes : int or int array
        Bytes of x, weight and y.
    wasted_bytes : float or float array
        Bytes moved in addition: unused parts of sectors, and halos that several blocks load.
    """

    blocks: Ints
    threads: Ints
    residents: Ints
    products: Ints
    loads: Ints
    elements: Ints
    outputs: Ints
    filters: Ints
    copies: Ints
    bytes: Ints
    wasted_bytes: Any


def _extent(window: Window, tp: Ints, tq: Ints) -> tuple[Ints, int, Ints]:
    """Rows of x that a tile alone reads, rows that it shares with the tile below, and its columns."""
    r, s, stride, dilation = window
    return tp * stride, max(0, (r - 1) * dilation + 1 - stride), (tq - 1) * stride + (s - 1) * dilation + 1


def _residents(threads: Ints, registers: Ints, shared_bytes: Ints, device: Device) -> Ints:
    warps = ceil_div(threads, 32)
    by_registers = REGISTERS // (registers * 32 * warps)
    by_shared = np.minimum(shared_memory_of(device) // (shared_bytes + RESERVED_BYTES), by_registers)
    return np.maximum(1, np.minimum(np.minimum(32, 64 // warps), by_shared))


def _bytes_of(problems: Problems) -> tuple[Ints, Ints, Ints]:
    """Bytes of x, of the weight and of y."""
    itemsize, n, k = problems.dtype.itemsize_bytes, problems.n, problems.k
    x, y = n * problems.c * problems.h * problems.w, n * k * problems.p * problems.q
    return x * itemsize, k * problems.r * problems.s * itemsize, y * itemsize


def work_of(cut: Tiled, problems: Problems, window: Window, device: Device) -> Work:
    """Work of a launch; or of many cuts, each with its problem, all of one window."""
    if isinstance(cut, Planes):
        return _work_of_planes(cut, problems, window, device)
    own_rows, shared_rows, columns = _extent(window, cut.tp, cut.tq)
    blocks, threads = cut.grid_of(problems)
    x_bytes, weight_bytes, y_bytes = _bytes_of(problems)
    moved = x_bytes + weight_bytes + y_bytes
    turns: Ints = 1
    copies: Ints = 0
    shared_bytes: Ints = 0
    if isinstance(cut, Staged):
        (rows, wide), lanes = cut.share_of(problems), cut.lanes_of(problems)[0]
        taken_rows, taken_columns = cut.taken_of(problems)
        tasks = rows // cut.strip * (wide // cut.tq) * cut.vectors_of(problems)
        repeats, turns = cut.repeats, ceil_div(tasks, threads)
        copies, shared_bytes = ceil_div(taken_rows * taken_columns * lanes, threads), cut.shared_bytes(problems)
        part = lanes * copy_of(problems)
        wasted = moved * (ceil_div(part, SECTOR_BYTES) * SECTOR_BYTES / part - 1)
    else:
        repeats = np.minimum(cut.repeats, ceil_div(problems.p, cut.tp))
        tiles, tiles_q = np.maximum(1, threads // cut.lanes_of(problems)[0]), cut.tiles_of(problems)[1]
        wide = np.minimum(tiles, tiles_q) * cut.tq * window[2]
        tile_rows = np.maximum(1, tiles // tiles_q) * cut.repeats * own_rows
        halo = (1 + (columns - cut.tq * window[2]) / wide) * (1 + shared_rows / tile_rows)
        wasted = x_bytes * (halo - 1)
    taken_rows, taps = shared_rows + repeats * own_rows, window[0] * window[1]
    return Work(
        blocks=blocks,
        threads=threads,
        residents=_residents(threads, _REGISTERS_OF[cut.blocks], shared_bytes, device),
        products=turns * repeats * cut.tp * cut.tq * cut.vec * taps,
        loads=turns * taken_rows * columns,
        elements=turns * taken_rows * columns * cut.vec,
        outputs=turns * repeats * cut.tp * cut.tq * cut.vec,
        filters=turns * taps * cut.vec,
        copies=copies,
        bytes=moved,
        wasted_bytes=wasted,
    )


def _work_of_planes(cut: Planes, problems: Problems, window: Window, device: Device) -> Work:
    own_rows, shared_rows, columns = _extent(window, cut.tp, cut.tq)
    taps, stride, itemsize = window[0] * window[1], window[2], problems.dtype.itemsize_bytes
    blocks, threads = cut.grid_of(problems)
    planes, rows = cut.share_of(problems)
    pairs, (of_x, of_y) = cut.pairs_of(problems), cut.shared_elements(problems)
    turns = ceil_div(planes * ceil_div(rows, cut.strip) * ceil_div(problems.q, cut.tq), threads)
    repeats = np.minimum(cut.repeats, ceil_div(rows, cut.tp))
    taken_rows = shared_rows + repeats * own_rows
    loads = np.where(pairs > 0, ceil_div(columns + (pairs == 2), 2), columns)
    # A vector has 16 bytes; the slack around the run of x is not copied.
    vectors = ceil_div((of_x - 2 * cut.slack_of(problems)) * itemsize, 16 * threads)
    copies_x = np.where(np.greater(cut.staged, 0), vectors, 0)
    written = np.where((pairs > 0) & (stride == 1), 2, 1)
    registers = 34 + taps + np.minimum(window[0], cut.tp) * cut.tq + (shared_rows + 1) * columns
    x_bytes, weight_bytes, y_bytes = _bytes_of(problems)
    scattered = y_bytes * (np.minimum(cut.tq, SECTOR_BYTES / itemsize) / written - 1)
    return Work(
        blocks=blocks,
        threads=threads,
        residents=_residents(threads, np.minimum(255, registers), cut.shared_bytes(problems), device),
        products=turns * repeats * cut.tp * cut.tq * taps,
        loads=turns * taken_rows * loads,
        elements=turns * taken_rows * columns,
        outputs=turns * repeats * cut.tp * cut.tq,
        filters=turns * taps,
        copies=copies_x + ceil_div(of_y * itemsize, 16 * threads),
        bytes=x_bytes + weight_bytes + y_bytes,
        wasted_bytes=np.where(np.less(cut.staged, 2), scattered, 0.0),
    )


def expect(cut: Tiled, problems: Problems, window: Window, device: Device) -> Any:
    """Time of a launch in us; or of many cuts, each with its problem, all of one window.

    The model has three parts: a multiprocessor issues the instructions of its warps; a block takes its latency, once
    for every wave of blocks; memory moves the bytes. The longest part counts most.
    """
    costs = fitted_on(device, menu.COSTS)[type(cut), problems.dtype.itemsize_bytes]
    work = work_of(cut, problems, window, device)
    slots = costs.factor_table[cut.tp * cut.tq, cut.staged if isinstance(cut, Planes) else 0] * (
        costs.slots
        + costs.product * work.products
        + costs.load * work.loads
        + costs.element * work.elements
        + costs.output * work.outputs
        + costs.filter * work.filters
        + costs.copy * work.copies
    )
    blocks = ceil_div(work.blocks, device.processors)
    busy = blocks * ceil_div(work.threads, 32) * slots / SLOTS_PER_US
    latency = ceil_div(blocks, work.residents) * (costs.block_us + costs.chain * slots * 4 / SLOTS_PER_US)
    memory = (work.bytes + costs.waste * work.wasted_bytes) / costs.bytes_per_us
    longest = np.maximum(np.maximum(busy, latency), memory)
    shares = sum((part / longest) ** costs.blend for part in (busy, latency, memory))
    return costs.launch_us + longest * shares ** (1 / costs.blend)
