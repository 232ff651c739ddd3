"""How the direct kernels cut a problem: tiles of outputs, and fillings of constant memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.parts.arithmetic import SHARED_BYTES, STAGE_BYTES
from conv_advisor.kernels.cuda.parts.source import Source

CONSTANT_BYTES: Final = 64 * 1024
"""Constant memory of one module."""
MOST_CONSTANT_CHUNKS: Final = 256
"""Launches of the constant-memory kernel; with more, launching costs more than the constant cache can save."""
FILTERS: Final = (8, 4, 1)
"""Filters that a thread of the direct kernels may compute."""
FILTER_SIZES: Final = (3, 5, 7)
"""Square filters whose size is fixed at compile time, so that their rows are unrolled."""
DEFINES: Final[tuple[dict[str, int], ...]] = tuple(
    {"FILTERS": filters} | fixed
    for filters in FILTERS
    for fixed in ({}, *({"FILTER_SIZE": size} for size in FILTER_SIZES))
)
"""The definitions that direct.cu is compiled with."""
SOURCE: Final = Source("direct", lambda _dtype: DEFINES)
_TILES: Final = ((32, 8), (16, 16), (32, 4), (16, 8), (8, 16), (8, 8))
"""Output tiles (width, height), larger ones first."""
_TILES_SMALLEST_FIRST: Final = _TILES[::-1]


@dataclass(frozen=True)
class TilePlan:
    """The tile of a block of the tiled direct kernels.

    Parameters
    ----------
    width, height : int
        Output pixels.
    filters : int
        Filters that a thread computes.
    stage_channels : int
        Channels in shared memory at a time.
    shared_bytes : int
    """

    width: int
    height: int
    filters: int
    stage_channels: int
    shared_bytes: int


def fixed_size(problem: ConvProblem) -> dict[str, int]:
    """The definition that fixes the filter's size at compile time; empty for sizes not in `FILTER_SIZES`."""
    return {"FILTER_SIZE": problem.r} if problem.r == problem.s and problem.r in FILTER_SIZES else {}


def has_tiles(problem: ConvProblem, *, has_halo: bool) -> bool:
    """Whether `plan_tiles` finds any tile, without a search for the best: one filter per thread needs least memory."""
    return any(
        _channel_bytes(problem, width, height, 1, has_halo) <= SHARED_BYTES for width, height in _TILES_SMALLEST_FIRST
    )


def plan_tiles(problem: ConvProblem, *, has_halo: bool) -> TilePlan | None:
    """The tile with the most filters, then the fewest wasted threads; None where nothing fits shared memory."""
    for filters in (8, 1) if problem.k > 1 else (1,):  # of FILTERS
        fitting = [
            (ceil(problem.q / width) * width * ceil(problem.p / height) * height, width, height)
            for width, height in _TILES
            if _channel_bytes(problem, width, height, filters, has_halo) <= SHARED_BYTES
        ]
        if fitting:
            _, width, height = min(fitting, key=lambda tile: tile[0])
            channel_bytes = _channel_bytes(problem, width, height, filters, has_halo)
            channels = max(1, min(problem.c, STAGE_BYTES // channel_bytes))
            return TilePlan(width, height, filters, channels, channels * channel_bytes)
    return None


def _channel_bytes(problem: ConvProblem, width: int, height: int, filters: int, has_halo: bool) -> int:
    rows, columns = (height + problem.r - 1, width + problem.s - 1) if has_halo else (height, width)
    return 4 * (filters * problem.r * problem.s + rows * columns)


def constant_filters(problem: ConvProblem) -> int:
    """Filters that fit constant memory at a time; 0 where not even one fits."""
    fitting = min(problem.k, CONSTANT_BYTES // (problem.gemm_k * problem.dtype.itemsize_bytes))
    return fitting if fitting < 8 or fitting == problem.k else fitting - fitting % 8
