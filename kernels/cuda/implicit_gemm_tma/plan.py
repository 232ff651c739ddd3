"""How the implicit GEMM fed by the tensor memory accelerator cuts a problem: its tile."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import (
    BOX,
    BOX_ROW_BYTES,
    DTYPES,
    GROUPS,
    ROW_BYTES,
    TILES,
    Tile,
    row_bytes_of,
)
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.source import Defines, Source

# Fitted to the times of every tile for 35 layers on an H100, tests/kernels/data/implicit_gemm_tma_us.json: the
# geometric mean of the chosen tile's time is 1.005 times that of the fastest, the worst 1.065 times.
_FLOPS_OF_CYCLE: Final = 4096
"""What the tensor cores of a multiprocessor do."""
_BYTES_OF_CYCLE: Final = 60
"""What a multiprocessor gets from the L2 cache while all do."""
_STAGE_CYCLES: Final = 100
"""What each stage takes besides."""
_BOX_CYCLES: Final = 750
"""What a group of warps takes for a box of y."""
_LATENCY_CYCLES: Final = 3000
"""From a block's start to its first products."""


def tiles_of(tile: Tile, problem: ConvProblem) -> tuple[int, int]:
    """Tiles of pixels and of filters."""
    return ceil_div(problem.n * problem.p * problem.q, tile.bp), ceil_div(problem.k, tile.bf)


def blocks_of(tile: Tile, problem: ConvProblem, device: Device) -> int:
    """One for every multiprocessor, or for every tile where these are fewer."""
    across, down = tiles_of(tile, problem)
    return min(across * down, device.processors or 1)


def expected_cycles(tile: Tile, problem: ConvProblem, device: Device) -> float:
    """Cycles of the block that has most tiles."""
    across, down = tiles_of(tile, problem)
    turns = ceil_div(across * down, blocks_of(tile, problem, device))
    row_bytes, item = row_bytes_of(problem), problem.dtype.itemsize_bytes
    stages = problem.r * problem.s * ceil_div(problem.c * item, row_bytes)
    multiplied = tile.bp * tile.bf * row_bytes / _FLOPS_OF_CYCLE
    loaded = (tile.bp + tile.bf) * row_bytes / _BYTES_OF_CYCLE
    stored = tile.bp * tile.bf * item / (BOX * BOX_ROW_BYTES) / GROUPS * _BOX_CYCLES
    return float(_LATENCY_CYCLES + turns * (stages * (max(multiplied, loaded) + _STAGE_CYCLES) + stored))


def plan_tile(problem: ConvProblem, device: Device) -> Tile:
    """The tile that is expected to be fastest."""
    return min(TILES, key=lambda tile: expected_cycles(tile, problem, device))


def definitions(dtype: DType) -> tuple[Defines, ...]:
    """What implicit_gemm_tma.cu is compiled with for this precision."""
    if dtype not in DTYPES:
        return ()
    return tuple(
        tile.defines(row_bytes, is_dense=is_dense)
        for tile in TILES
        for row_bytes in ROW_BYTES
        for is_dense in (False, True)
    )


SOURCE: Final = Source("implicit_gemm_tma", definitions, architecture="sm_90a")
