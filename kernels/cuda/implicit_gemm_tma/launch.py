"""Launcher of the four sources of this folder, one for each kind of tile."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.compile import load_kernel
from conv_advisor.kernels.cuda.implicit_gemm_tma import maps, small, split, straight
from conv_advisor.kernels.cuda.implicit_gemm_tma import plan as plans
from conv_advisor.kernels.cuda.implicit_gemm_tma.encoding import encoded
from conv_advisor.kernels.cuda.implicit_gemm_tma.limits import by_patches
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import THREADS, Tile, row_bytes_of, stages_of
from conv_advisor.kernels.cuda.implicit_gemm_tma.plan import AnyTile
from conv_advisor.kernels.cuda.implicit_gemm_tma.small import SmallTile
from conv_advisor.kernels.cuda.implicit_gemm_tma.split import SplitTile
from conv_advisor.kernels.cuda.implicit_gemm_tma.straight import StraightTile
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.division import divider, magic
from conv_advisor.kernels.cuda.parts.epilogue import addresses, defines_of
from conv_advisor.kernels.cuda.parts.launching import Start, launch_of, prepare_start, with_within
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.overlap import overlaps
from conv_advisor.kernels.cuda.parts.source import Source
from conv_advisor.kernels.variant import Launch

_KEPT: Final = 256
"""Sets of maps that a launch caches: one for each set of operands that launches rotate over, as layers of one shape do.
With one too few, every launch would encode its maps anew."""


def prepare(problem: ConvProblem, device: Device, _workspace_limit_bytes: int) -> Launch:
    """One launch, with the cut that the plan chooses."""
    problem = by_patches(problem)
    return launch(problem, device, plans.plan_cut(problem, device))


def launch(problem: ConvProblem, device: Device, cut: Cut[AnyTile], channels: int | None = None) -> Launch:
    """One launch with this cut; y is the first of so many channels, by default of no more than it has."""
    problem, channels = by_patches(problem), channels or problem.k
    source, defines = plans.build_of(cut, problem)
    kernel = load_kernel(source, source.name, problem.dtype, **defines, **defines_of(problem.epilogue))

    def into(channels: int) -> Launch:
        if isinstance(cut.tile, SmallTile):
            return _launch_small(kernel, problem, device, cut.tile, channels)
        if isinstance(cut.tile, SplitTile):
            return _launch_split(kernel, problem, device, Cut(cut.tile, cut.cluster), channels)
        if isinstance(cut.tile, StraightTile):
            return _launch_straight(kernel, problem, Cut(cut.tile, cut.cluster), channels)
        return _launch_large(kernel, problem, device, Cut(cut.tile, cut.cluster), channels)

    return into(channels) if problem.epilogue.residual else with_within(into, channels)


def _launch_large(kernel: Any, problem: ConvProblem, device: Device, cut: Cut[Tile], channels: int) -> Launch:
    tile, is_split = cut.tile, cut.cluster > 1
    start = prepare_start(
        kernel,
        (plans.blocks_of(cut, problem, device), 1, 1),
        THREADS,
        tile.shared_bytes,
        (*sizes_of_layer(problem, channels), *plans.tiles_of(tile, problem)),
        cluster=cut.cluster,
        overlaps=overlaps(plans.SOURCE),
        is_structure=True,
    )
    of_outputs = (
        maps.y_map(problem, tile.box_row_bytes(problem.dtype), channels, is_split=is_split),
        DType.FLOAT32 if problem.dtype is DType.TF32 else problem.dtype,
    )
    described: tuple[tuple[maps.Map, DType], ...] = (
        (maps.x_map(problem, tile.bp), problem.dtype),
        (maps.weight_map(problem, tile.bf), problem.dtype),
        *([of_outputs] * (1 + problem.epilogue.residual)),
    )

    maps_at = kept_maps(described)

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        of_ends = addresses(problem.epilogue, ends)
        residual = of_ends[-1:] if problem.epilogue.residual else ()
        start(*maps_at(x.data.ptr, weight.data.ptr, y.data.ptr, *residual), *of_ends)

    return Launch(run, by_address=True)


def _launch_small(kernel: Any, problem: ConvProblem, device: Device, tile: SmallTile, channels: int) -> Launch:
    arrangement = small.arranged(tile, problem, device.processors or 1)
    across, _ = plans.tiles_of(tile, problem)
    start = prepare_start(
        kernel,
        (int(arrangement.columns), int(arrangement.rows), 1),
        tile.threads,
        int(arrangement.shared_bytes),
        (
            *sizes_of_layer(problem, channels),
            across,
            arrangement.filters,
            stages_of(problem),
            arrangement.slots,
            arrangement.is_kept,
            arrangement.recycles,
        ),
        overlaps=overlaps(small.SOURCE),
        is_structure=True,
    )
    return _storing_itself(start, problem, tile.bp, int(arrangement.filters))


def _launch_split(kernel: Any, problem: ConvProblem, device: Device, cut: Cut[SplitTile], channels: int) -> Launch:
    arrangement = split.arranged(cut.tile, cut.cluster, problem, device.processors or 1)
    chunks = ceil_div(problem.c * problem.dtype.itemsize_bytes, row_bytes_of(problem))
    sizes = (
        *sizes_of_layer(problem, channels),
        arrangement.pixels,
        arrangement.filters,
        *divmod(stages_of(problem), cut.cluster),
        arrangement.slots,
    )
    start = _start_sharing(kernel, split.SOURCE, cut, arrangement, (*sizes, *_shares(problem, arrangement, chunks)))
    return _storing_itself(start, problem, int(arrangement.pixels), int(arrangement.filters))


def _launch_straight(kernel: Any, problem: ConvProblem, cut: Cut[StraightTile], channels: int) -> Launch:
    arrangement = straight.arranged(cut.tile, cut.cluster, problem)
    of_block = (*divmod(int(arrangement.steps), cut.cluster), straight.pieces_of(problem))
    sizes = (
        *sizes_of_layer(problem, channels),
        problem.h,
        problem.w,
        arrangement.pixels,
        arrangement.filters,
        *of_block,
    )
    pieces = problem.c // straight.PIECE
    start = _start_sharing(kernel, straight.SOURCE, cut, arrangement, (*sizes, *_shares(problem, arrangement, pieces)))
    return launch_of(start, problem.epilogue)


def _start_sharing(
    kernel: Any,
    source: Source,
    cut: Cut[SplitTile] | Cut[StraightTile],
    arrangement: split.Arrangement | straight.Arrangement,
    sizes: tuple[int, ...],
) -> Start:
    """The start of a source whose blocks may share gemm_k: a cluster for every tile."""
    return prepare_start(
        kernel,
        (int(arrangement.down) * cut.cluster, int(arrangement.columns), 1),
        cut.tile.threads,
        int(arrangement.shared_bytes),
        sizes,
        cluster=cut.cluster,
        overlaps=overlaps(source),
        is_structure=True,
    )


def _shares(problem: ConvProblem, tiling: split.Tiling, units_of_tap: int) -> tuple[int, ...]:
    """The last fields of `Sizes` in these sources: a block's part of a tile, and divisors, also the units of a tap."""
    divisors = (problem.p * problem.q, problem.q, units_of_tap, problem.s)
    of_divisors = (number for divisor in divisors for number in (divisor, *divider(int(divisor))))
    return tiling.owned, magic(int(tiling.owned), 16), *of_divisors


def _storing_itself(start: Start, problem: ConvProblem, pixels: int, filters: int) -> Launch:
    """The launch of a kernel whose threads store y; x and weight are loaded by maps, a tile's pixels and filters."""
    of_weight = maps.weight_map(problem, filters)
    maps_at = kept_maps(((maps.x_map(problem, pixels), problem.dtype), (of_weight, problem.dtype)))

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        start(*maps_at(x.data.ptr, weight.data.ptr), y.data.ptr, *addresses(problem.epilogue, ends))

    return Launch(run, by_address=True)


def sizes_of_layer(problem: ConvProblem, channels: int) -> tuple[int, ...]:
    """The first fields of `Sizes` in every source here; y is some of so many channels."""
    return (
        *(problem.c, problem.k, problem.r, problem.s),
        *(maps.pixels_of(problem), problem.p * problem.q, problem.q, channels),
        *(problem.stride_h, problem.stride_w, problem.pad_h, problem.pad_w, problem.dilation_h, problem.dilation_w),
    )


def kept_maps(described: tuple[tuple[maps.Map, DType], ...]) -> Callable[..., tuple[Any, ...]]:
    """A function that encodes the maps for given addresses, cached since operands do not move while a network runs."""

    @lru_cache(_KEPT)
    def maps_at(*pointers: int) -> tuple[Any, ...]:
        return tuple(encoded(*tensor, pointer) for tensor, pointer in zip(described, pointers, strict=True))

    return maps_at
