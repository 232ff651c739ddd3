"""The form for float16 and bfloat16: windows in shared memory have the layout that products read (few_inputs.cu)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.few_inputs import MOST_CHANNELS, MOST_TAPS
from conv_advisor.kernels.cuda.few_inputs.form import LAYOUTS, Form, apart_cycles, layout_defines
from conv_advisor.kernels.cuda.few_inputs.menu import HALF_TILES, Cut, Tile, cuts_of
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.source import ARCHITECTURES, BorneSpill, Defines, Source

RUN: Final = 4
"""Pixels of x that a thread stages at a time."""

# Fitted to times of 12 to 18 cuts of 12 layers on an H200, none of which memory traffic limits.
_PRODUCTS_OF_CYCLE: Final = 752
"""Multiplications that a multiprocessor's tensor cores do in a cycle."""
_SHARED_BYTES_OF_CYCLE: Final = 102
_RUN_CYCLES: Final = 2.17
"""Time that staging a run of pixels takes of a busy multiprocessor."""
_MOVED_BYTES_OF_CYCLE: Final = 133
"""A multiprocessor's share of the memory bandwidth."""
_TURN_CYCLES: Final = 4790
"""Time from a tile's first load to its last store, without its products."""
_CHUNK_CYCLES: Final = 15.4
"""Latency of the products of one chunk, where a warp waits for them."""
_START_CYCLES: Final = 5810
_PACK_CYCLES: Final = 113
"""Time that a thread takes to pack a tap of a filter."""


@dataclass(frozen=True)
class Stage:
    """The part of x that a block holds in shared memory.

    Parameters
    ----------
    rows : int
    slots : int
        Slots of eight bytes in a row.
    copy_bytes : int
        Offset of the second copy, which is shifted by one slot; 0 where there is only one copy.
    """

    rows: int
    slots: int
    copy_bytes: int

    @classmethod
    def of(cls, cut: Cut, problem: ConvProblem) -> Stage:
        """The stage for the tiles of a cut."""
        rows = (cut.tile_p - 1) * problem.stride_h + problem.r
        lead = -problem.pad_w % RUN
        pixels = lead + (cut.tile_q - 1) * problem.stride_w + 2 * _chunks(problem)
        slots = RUN * ceil_div(pixels, RUN) + 2
        # Offset by half of 128 bytes: alternate pixels, read from the two copies, then lie in different banks.
        copy_bytes = 128 * ceil_div(8 * rows * slots, 128) + 64 if problem.stride_w % 2 else 0
        return cls(rows, slots, copy_bytes)

    @property
    def runs(self) -> int:
        """Runs of pixels that are staged."""
        return self.rows * (self.slots - 2) // RUN

    @property
    def shared_bytes(self) -> int:
        """Bytes of both copies."""
        return self.copy_bytes + 8 * self.rows * self.slots

    def asked_bytes(self, problem: ConvProblem) -> int:
        """Bytes of the runs loaded while the tile before is multiplied; 0 where a row is not a whole number of runs."""
        return 8 * problem.c * self.runs if problem.w % RUN == 0 else 0


def _chunks(problem: ConvProblem) -> int:
    """Chunks of a window's row: pairs of pixels."""
    return (problem.s + 1) // 2


def chunks_of(problem: ConvProblem) -> int:
    """Chunks of a window."""
    return problem.r * _chunks(problem)


def shared_bytes(cut: Cut, problem: ConvProblem) -> int:
    """Shared memory of a block: its weight, in rows of an odd number of chunks, then the staged part of x."""
    stage = Stage.of(cut, problem)
    weight_bytes = 16 * cut.tile.filters * (chunks_of(problem) | 1)
    return weight_bytes + stage.shared_bytes + stage.asked_bytes(problem)


def cycles(cut: Cut, problem: ConvProblem, turns: int, resident: int) -> float:
    """As `Form.cycles`: a tile takes its own waits, or its share of a multiprocessor that all resident blocks use."""
    tile, stage, chunks = cut.tile, Stage.of(cut, problem), chunks_of(problem)
    multiplied = tile.pixels * tile.filters * 8 / _PRODUCTS_OF_CYCLE
    read = 16 * tile.warps * (16 * tile.mt + 8 * tile.nt) / _SHARED_BYTES_OF_CYCLE
    moved = 2 * (tile.pixels * min(tile.filters, problem.k) + RUN * stage.runs * problem.c) / _MOVED_BYTES_OF_CYCLE
    staged = stage.runs * (1 + (stage.copy_bytes > 0)) * _RUN_CYCLES
    busy = max(chunks * max(multiplied, read) + staged, moved) + apart_cycles(cut, problem)
    alone = _TURN_CYCLES + chunks * max(_CHUNK_CYCLES, 2 * tile.mt * tile.nt)
    packed = ceil_div(tile.filters * 2 * chunks, tile.threads) * _PACK_CYCLES
    return float(_START_CYCLES + packed + turns * max(alone, resident * busy))


def sizes(cut: Cut, problem: ConvProblem) -> tuple[int, ...]:
    """The kernel's parameters after those of the shape."""
    stage = Stage.of(cut, problem)
    asked_at = stage.shared_bytes if stage.asked_bytes(problem) else 0
    return (cut.tile_p, cut.tile_q, *cut.tiles_of(problem), stage.rows, stage.slots, stage.copy_bytes, asked_at)


def _defines(tile: Tile, layout: Defines, c: int, s: int) -> Defines:
    return {**layout, "CHANNELS": c, "COLUMNS": s, **tile.defines}


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions of few_inputs.cu for this precision."""
    if dtype not in (DType.FLOAT16, DType.BFLOAT16):
        return ()
    return tuple(
        _defines(tile, layout, c, s)
        for tile in HALF_TILES
        for layout in LAYOUTS
        for c in range(1, MOST_CHANNELS + 1)
        for s in range(1, MOST_TAPS + 1)
    )


_FULL: Final = "a size of a tile, stored before its products and loaded behind them: the sums leave no register"
_EXCHANGED: Final = (
    "a residual of rows that begin anywhere, exchanged among lanes beside the sums: no network's first layer has one"
)
SPILLS: Final = (
    *(
        BorneSpill("few_inputs", architecture, most_bytes, _FULL, defines=(("IS_NHWC", is_nhwc), ("MT", 2), ("NT", 8)))
        for architecture in ARCHITECTURES
        for is_nhwc, most_bytes in ((0, 8), (1, 36))
    ),
    *(
        BorneSpill(
            "few_inputs", architecture, 24, _EXCHANGED, defines=(("IS_NHWC", 0), ("IS_PAIR", 0), ("RESIDUAL", 1))
        )
        for architecture in ARCHITECTURES
    ),
)

FORM: Final = Form(
    Source("few_inputs", definitions, spills=SPILLS),
    "few_inputs",
    cuts_of(HALF_TILES),
    defines=lambda cut, problem: _defines(cut.tile, layout_defines(problem), problem.c, problem.s),
    sizes=sizes,
    shared_bytes=shared_bytes,
    cycles=cycles,
)
