"""Forms for float32 and tf32: rows of x are staged as in memory, and a table locates a window's elements in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.few_inputs.form import LAYOUTS, Form, apart_cycles, layout_defines
from conv_advisor.kernels.cuda.few_inputs.menu import MMA_TILES, WGMMA_TILES, Cut, Tile, cuts_of
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.source import Defines, Source

STEP: Final = 8
"""Elements of gemm_k that an instruction multiplies."""

# Fitted to times of 33 cuts of 17 layers in both precisions on an H200.
_SHARED_BYTES_OF_CYCLE: Final = 176
_COPY_CYCLES: Final = 0.37
"""Time that a copy to shared memory takes of a multiprocessor."""
_MOVED_BYTES_OF_CYCLE: Final = 25
"""A multiprocessor's share of the memory bandwidth."""
_SERIAL: Final = 0.25
"""Share by which moving takes longer where no other block multiplies meanwhile."""
_TURN_CYCLES: Final = 460
"""Fixed time of a tile."""
_STEP_CYCLES: Final = 115
"""Time that a warp waits at a step."""
_START_CYCLES: Final = 3900
_PACK_CYCLES: Final = 218
"""Time that a thread takes to pack an element of the weight."""


@dataclass(frozen=True)
class Stage:
    """The part of x that a block holds in shared memory.

    Parameters
    ----------
    planes : int
        1 where the channels of a pixel are adjacent in memory.
    rows : int
        Rows of a plane.
    pitch : int
        Elements of a row: a multiple of four, so that copies move 16 bytes where rows of x are multiples of 16 bytes.
    """

    planes: int
    rows: int
    pitch: int

    @classmethod
    def of(cls, cut: Cut, problem: ConvProblem) -> Stage:
        """The stage for the tiles of a cut."""
        inner = _inner(problem)
        rows = (cut.tile_p - 1) * problem.stride_h + problem.r
        pixels = (cut.tile_q - 1) * problem.stride_w + problem.s
        return cls(problem.c // inner, rows, 4 * ceil_div(-problem.pad_w * inner % 4 + pixels * inner, 4))

    @property
    def elements(self) -> int:
        """Elements of x that are staged."""
        return self.planes * self.rows * self.pitch


def _inner(problem: ConvProblem) -> int:
    """Elements of a pixel that are adjacent in memory."""
    return problem.c if problem.layout is Layout.NHWC else 1


def _products(problem: ConvProblem) -> int:
    """How many tf32 products make one product of the problem."""
    return 3 if problem.dtype is DType.FLOAT32 else 1


def _weight_bytes(problem: ConvProblem) -> int:
    """Shared memory of a weight element: one tf32 product needs one part of it, three need two parts."""
    return 8 if _products(problem) == 3 else 4


@dataclass(frozen=True)
class Products:
    """How a source uses the tensor cores.

    Parameters
    ----------
    chain : int
        Steps of gemm_k that the tensor cores sum.
    of_cycle : float
        Multiplications of tf32 that a multiprocessor's tensor cores do in a cycle.
    reads_weight : bool
        Whether warps load the weight into registers; else the instruction reads it from shared memory.
    """

    chain: int
    of_cycle: float
    reads_weight: bool

    def steps(self, problem: ConvProblem) -> int:
        """Steps of gemm_k, in whole chains."""
        return self.chain * int(ceil_div(problem.gemm_k, STEP * self.chain))

    def shared_bytes(self, cut: Cut, problem: ConvProblem) -> int:
        """Shared memory of a block: its weight and the table, whole chains long, then the staged part of x."""
        stage = Stage.of(cut, problem)
        row_bytes = cut.tile.filters * _weight_bytes(problem) + 4
        return STEP * self.steps(problem) * row_bytes + 4 * stage.elements

    def cycles(self, cut: Cut, problem: ConvProblem, turns: int, resident: int) -> float:
        """As `Form.cycles`: waits of a tile plus the work of all blocks of a multiprocessor, one after the other."""
        tile, stage, steps = cut.tile, Stage.of(cut, problem), self.steps(problem)
        multiplied = _products(problem) * STEP * tile.pixels * tile.filters / self.of_cycle
        of_x = 64 * tile.mt * _turns_of_read(problem)
        read = tile.warps * STEP * (of_x + self.reads_weight * _weight_bytes(problem) * 8 * tile.nt)
        moved = 4 * (tile.pixels * min(tile.filters, problem.k) + stage.elements) / _MOVED_BYTES_OF_CYCLE
        copied = stage.elements / (4 if problem.w * _inner(problem) % 4 == 0 else 1) * _COPY_CYCLES
        work = steps * (multiplied + read / _SHARED_BYTES_OF_CYCLE) + copied + moved * (1 + _SERIAL / resident)
        work += apart_cycles(cut, problem)
        packed = ceil_div(STEP * steps * tile.filters, tile.threads) * _PACK_CYCLES
        return float(_START_CYCLES + packed + turns * (_TURN_CYCLES + steps * _STEP_CYCLES + resident * work))

    def form(self, name: str, tiles: tuple[Tile, ...], architecture: str | None = None) -> Form:
        """The form of a source that uses the tensor cores in this way."""
        return Form(
            Source(name, lambda dtype: _definitions(dtype, tiles), architecture),
            "few_inputs_float32",
            cuts_of(tiles),
            defines=lambda cut, problem: _defines(cut.tile, problem.dtype, layout_defines(problem)),
            sizes=_sizes,
            shared_bytes=self.shared_bytes,
            cycles=self.cycles,
        )


def _sizes(cut: Cut, problem: ConvProblem) -> tuple[int, ...]:
    stage = Stage.of(cut, problem)
    return (cut.tile_p, cut.tile_q.bit_length() - 1, *cut.tiles_of(problem), stage.rows, stage.pitch)


def _turns_of_read(problem: ConvProblem) -> int:
    """How often shared memory is read for an element of a warp's pixels: twice where two pixels share a bank."""
    apart = problem.stride_w * problem.c
    return 1 + (problem.layout is Layout.NHWC and (apart % 4 == 2 or apart % 8 == 0))


def _defines(tile: Tile, dtype: DType, layout: Defines) -> Defines:
    return {"SPLIT": int(dtype is DType.FLOAT32), **layout, **tile.defines}


def _definitions(dtype: DType, tiles: tuple[Tile, ...]) -> tuple[Defines, ...]:
    if dtype not in (DType.FLOAT32, DType.TF32):
        return ()
    return tuple(_defines(tile, dtype, layout) for layout in LAYOUTS for tile in tiles)


MMA: Final = Products(chain=1, of_cycle=400, reads_weight=True).form("few_inputs_float32", MMA_TILES)
WGMMA: Final = Products(chain=2, of_cycle=1070, reads_weight=False).form("few_inputs_wgmma", WGMMA_TILES, "sm_90a")
"""For compute capability 9.0."""
