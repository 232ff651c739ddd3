"""The form for large filters of one or two channels in float16 and bfloat16 on Hopper (few_inputs_taps.cu)."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.few_inputs import halves
from conv_advisor.kernels.cuda.few_inputs.form import Form
from conv_advisor.kernels.cuda.few_inputs.menu import TAPS_TILES, Cut, Tile, cuts_of
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.source import BorneSpill, Defines, Source

CAPABILITY: Final = "9.0"
MOST_CHANNELS: Final = 2
LEAST_SAVED: Final = 24
"""Chunks of a window that few_inputs.cu, where pixels have four channels, multiplies in vain; of fewer it is faster."""
CHUNK: Final = 8
"""Elements of 16 bytes."""
LANES_BYTES: Final = 128
"""Bytes of all banks of shared memory."""

# Fitted to times of two to 16 cuts of 18 layers on an H200.
_PRODUCTS_OF_CYCLE: Final = 1940
"""Multiplications that a multiprocessor's tensor cores do in a cycle."""
_SHARED_BYTES_OF_CYCLE: Final = 36.1
_SPREAD_CYCLES: Final = 0.653
"""Time that a chunk of slots takes of a multiprocessor."""
_COPY_CYCLES: Final = 0.0016
"""The same of a copy to shared memory."""
_MOVED_BYTES_OF_CYCLE: Final = 8.33
"""A multiprocessor's share of the memory bandwidth."""
_TURN_CYCLES: Final = 2740
"""Time from a tile's first slot to its last store, without its products."""
_STEP_CYCLES: Final = 447
"""Time that a warp waits at a step."""
_START_CYCLES: Final = 1310
_PACK_CYCLES: Final = 847
"""Time that a thread takes to pack a chunk of the weight."""


@dataclass(frozen=True)
class Stage:
    """The part of x that a block holds in shared memory.

    Parameters
    ----------
    rows : int
    pixels : int
        Pixels of a row.
    row_bytes : int
        Bytes of a row of slots.
    raw_bytes : int
        Bytes of a row as it lies in memory, with what lies before it from a multiple of 16 bytes on.
    copies : int
        Copies of the slots, each shifted by the next element at which windows begin.
    copy_bytes : int
        Distance of the copies.
    """

    rows: int
    pixels: int
    row_bytes: int
    raw_bytes: int
    copies: int
    copy_bytes: int

    @classmethod
    def of(cls, cut: Cut, problem: ConvProblem) -> Stage:
        """The stage for the tiles of a cut."""
        rows = (cut.tile_p - 1) * problem.stride_h + problem.r
        pixels = (cut.tile_q - 1) * problem.stride_w + problem.s
        row_bytes = 16 * ((cut.tile_q - 1) * _step(problem) // CHUNK + chunks_of_row(problem))
        raw_bytes = 16 * ceil_div(2 * pixels * problem.c + 14, 16)
        copies = CHUNK // gcd(CHUNK, _step(problem))
        copy_bytes = rows * row_bytes
        if copies > 1:  # neighbouring pixels, which different copies have, then lie in different banks
            copy_bytes = LANES_BYTES * ceil_div(copy_bytes, LANES_BYTES) + LANES_BYTES // copies
        return cls(rows, pixels, row_bytes, raw_bytes, copies, copy_bytes)

    @property
    def shared_bytes(self) -> int:
        """Bytes of the slots and of the raw rows."""
        return self.copies * self.copy_bytes + self.rows * self.raw_bytes


def takes(problem: ConvProblem, device: Device) -> bool:
    """Whether the form is for the problem: where windows of as many elements as they have are far shorter."""
    return (
        device.capability == CAPABILITY
        and problem.layout is Layout.NHWC
        and problem.c <= MOST_CHANNELS
        and halves.chunks_of(problem) - 2 * steps_of(problem) >= LEAST_SAVED
    )


def _step(problem: ConvProblem) -> int:
    """Elements from one window to the next."""
    return problem.stride_w * problem.c


def chunks_of_row(problem: ConvProblem) -> int:
    """Chunks of a window's row."""
    return int(ceil_div(problem.s * problem.c, CHUNK))


def steps_of(problem: ConvProblem) -> int:
    """Steps of two chunks: an even number of them."""
    return 2 * int(ceil_div(problem.r * chunks_of_row(problem), 4))


def shared_bytes(cut: Cut, problem: ConvProblem) -> int:
    """Shared memory of a block: its weight, the staged part of x and the table of chunks."""
    steps = steps_of(problem)
    return 32 * cut.tile.filters * steps + Stage.of(cut, problem).shared_bytes + 4 * (2 * steps + 4)


def cycles(cut: Cut, problem: ConvProblem, turns: int, resident: int) -> float:
    """As `Form.cycles`: a tile takes its own waits, or its share of a multiprocessor that all resident blocks use."""
    tile, stage, steps = cut.tile, Stage.of(cut, problem), steps_of(problem)
    multiplied = 16 * tile.pixels * tile.filters / _PRODUCTS_OF_CYCLE
    read = (32 * tile.pixels + 32 * tile.filters * tile.warps * tile.mt / 4) / _SHARED_BYTES_OF_CYCLE
    spread = stage.rows * stage.row_bytes // 16 * stage.copies * _SPREAD_CYCLES
    copied = stage.rows * stage.raw_bytes // 16 * _COPY_CYCLES
    y_bytes = 2 * tile.pixels * min(tile.filters, problem.k)
    moved = (y_bytes + stage.rows * stage.raw_bytes) / _MOVED_BYTES_OF_CYCLE
    busy = max(steps * max(multiplied, read) + spread + copied, moved)
    alone = _TURN_CYCLES + steps * max(_STEP_CYCLES, multiplied) + 3 * (spread + copied)
    packed = ceil_div(tile.filters * 2 * steps, tile.threads) * _PACK_CYCLES
    return float(_START_CYCLES + packed + turns * max(alone, resident * busy))


def sizes(cut: Cut, problem: ConvProblem) -> tuple[int, ...]:
    """The kernel's parameters after those of the shape."""
    stage = Stage.of(cut, problem)
    return (
        *(cut.tile_p, cut.tile_q.bit_length() - 1, *cut.tiles_of(problem), stage.rows, stage.pixels),
        *(stage.row_bytes, stage.raw_bytes, stage.copies, stage.copy_bytes, steps_of(problem)),
    )


def _defines(tile: Tile, channels: int) -> Defines:
    return {"CHANNELS": channels, **tile.defines}


def _definitions(dtype: DType) -> tuple[Defines, ...]:
    if dtype not in (DType.FLOAT16, DType.BFLOAT16):
        return ()
    return tuple(_defines(tile, channels) for tile in TAPS_TILES for channels in range(1, MOST_CHANNELS + 1))


_FULL: Final = tuple(
    BorneSpill(
        "few_inputs_taps",
        "sm_90a",
        most_bytes=most_bytes,
        reason="two registers, with an epilogue five: sums and two steps' windows of two blocks' threads leave no more",
        defines=defines,
    )
    for most_bytes, defines in ((20, (("MT", 4), ("NT", 4))), (8, (("MT", 2), ("NT", 8), ("ACTIVATION", 5))))
)
FORM: Final = Form(
    Source("few_inputs_taps", _definitions, "sm_90a", spills=_FULL),
    "few_inputs_taps",
    cuts_of(TAPS_TILES),
    defines=lambda cut, problem: _defines(cut.tile, problem.c),
    sizes=sizes,
    shared_bytes=shared_bytes,
    cycles=cycles,
)
