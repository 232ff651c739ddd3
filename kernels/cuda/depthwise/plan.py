"""Which cut a depthwise convolution gets: the candidates, and their expected times."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeVar

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.depthwise import cost
from conv_advisor.kernels.cuda.depthwise.cut import (
    MOST_SHARED_BYTES,
    WINDOWS,
    Channels,
    Cut,
    Plain,
    Planes,
    Scale,
    Staged,
    Window,
    copy_of,
    multiplier_of,
    window_of,
)
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.candidates import AT_A_TIME, Candidates, row_of, take
from conv_advisor.kernels.cuda.parts.shapes import Array, Shapes
from conv_advisor.kernels.cuda.parts.source import BorneSpill, Defines, Source

Tiles = tuple[tuple[int, ...], ...]
T = TypeVar("T", Planes, Staged, Channels)

_PLANES: Final[dict[tuple[int, int], Tiles]] = {
    (9, 1): ((2, 1), (7, 1), (2, 2), (4, 2), (7, 2), (2, 4), (4, 4), (7, 4), (2, 7), (2, 8)),
    (9, 2): ((2, 1), (4, 1), (7, 1), (2, 2), (4, 2), (7, 2)),
    (25, 1): ((1, 1), (2, 2), (4, 2), (2, 4), (4, 4), (2, 8)),
    (25, 2): ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2)),
    (49, 1): ((1, 1), (2, 1), (4, 2), (2, 4), (4, 4)),
    (49, 2): ((1, 1), (2, 1), (4, 2)),
}
"""Outputs of a thread (rows, columns), by the most taps and the stride."""
_STAGED: Final[dict[tuple[int, int], Tiles]] = {
    (4, 9): (
        *((4, 2, 1, 2), (4, 4, 1, 2), (4, 7, 1, 2), (4, 4, 2, 2)),
        *((2, 1, 1, 4), (2, 2, 2, 3), (2, 4, 2, 2), (1, 2, 2, 4)),
    ),
    (4, 25): ((2, 1, 1, 2), (2, 4, 1, 2), (2, 2, 2, 2), (2, 4, 2, 2), (1, 2, 2, 2), (1, 4, 2, 2)),
    (4, 49): ((1, 1, 1, 2), (1, 2, 2, 2), (1, 4, 2, 2), (1, 4, 4, 1)),
    (2, 9): (
        *((4, 2, 1, 2), (4, 4, 1, 2), (4, 7, 1, 2), (4, 2, 2, 2), (4, 4, 2, 2)),
        *((2, 1, 1, 4), (2, 2, 2, 3), (2, 4, 2, 2)),
    ),
    (2, 25): ((2, 1, 1, 2), (2, 4, 1, 2), (2, 2, 2, 2), (2, 4, 2, 2), (4, 4, 2, 1)),
    (2, 49): ((2, 1, 1, 1), (2, 2, 2, 1), (2, 4, 1, 1), (2, 4, 2, 1)),
}
"""Channels, output rows and columns of a thread, blocks of a multiprocessor, by bytes of an element and most taps."""
_CHANNELS: Final[dict[int, Tiles]] = {
    4: (
        *((4, 1, 1, 2), (4, 1, 2, 2), (4, 2, 2, 1), (4, 4, 2, 1), (4, 7, 1, 1)),
        *((2, 1, 1, 4), (2, 2, 2, 2), (2, 4, 4, 1), (1, 2, 2, 3)),
    ),
    2: (
        *((8, 1, 1, 1), (8, 1, 2, 1), (4, 1, 2, 2), (4, 2, 2, 2), (4, 4, 2, 1), (4, 7, 1, 1)),
        *((2, 1, 1, 4), (2, 2, 2, 3), (1, 2, 2, 3)),
    ),
}
"""The same for the kernel without shared memory and up to 9 taps, by bytes of an element."""
_KIND_IS_OF: Final = ("r", "s", "stride_h", "stride_w", "dilation_h", "dilation_w")
PITCHES: Final = (32, 64, 128)
MOST_REPEATS: Final = 8


def _taps_of(window: Window) -> int:
    return next(taps for taps in (9, 25, 49) if window[0] * window[1] <= taps)


def planes_tiles(window: Window) -> Tiles:
    """Output tiles that a thread may have in nchw, each with `Planes.staged`."""
    r, s, stride, dilation = window
    if r * s == 1:
        return ((1, 1, 0), (2, 2, 0), (4, 2, 0))
    tiles = _PLANES[_taps_of(window), stride]
    if dilation > 1:
        tiles = ((1, 1), (4, 1))
    elif min(r, s) == 1:
        tiles = ((2, 1), (4, 2), (2, 4)) if stride == 1 else ((2, 1), (2, 2))
    return (*((*tile, staged) for tile in tiles for staged in (1, 2)), (2, 2, 0))


def staged_tiles(window: Window, itemsize: int) -> Tiles:
    """Channels and output tiles that a thread may have in nhwc, and blocks of a multiprocessor."""
    if window[:2] == (1, 1):
        return ()
    if window[3] > 1 and window[0] * window[1] > 9:
        return ((1, 1, 1, 2), (2, 1, 1, 1))
    if window[3] > 1 or min(window[:2]) == 1:
        return ((1, 1, 1, 2), (2, 1, 1, 2), (2, 4, 1, 2), (2, 2, 2, 1))
    tiles = _STAGED[itemsize, _taps_of(window)]
    # With stride 2, strips of four two-byte channels need more registers than two blocks leave.
    return (
        tiles
        if (itemsize, window[2]) != (2, 2)
        else tuple(tile for tile in tiles if (tile[0], tile[2]) != (4, 1) or tile[1] < 4)
    )


def channels_tiles(window: Window, itemsize: int) -> Tiles:
    """As `staged_tiles`, for the kernel that does not stage channels."""
    if window[:2] == (1, 1):
        return ((16 // itemsize, 1, 1, 2), (16 // itemsize, 2, 2, 2), (1, 2, 2, 2))
    if window[3] > 1:
        return ((1, 1, 1, 1),)
    if window[0] * window[1] > 9 or min(window[:2]) == 1:
        return ((1, 1, 1, 1), (1, 2, 2, 1))
    return _CHANNELS[itemsize]


def _repeats_of(problems: Shapes, tp: Array) -> tuple[Array, Array]:
    """Numbers of tiles of ``tp`` rows per thread, in ascending order, and which of them are not duplicates.

    Arrays of shape (n_problems, n_tiles, 6).
    """
    tiles = ceil_div(problems.p[:, None], tp)
    strips = (tiles, np.full_like(tiles, 4), np.full_like(tiles, 3), np.full_like(tiles, 2), np.full_like(tiles, 1))
    choices = [np.minimum(MOST_REPEATS, ceil_div(tiles, count)) for count in strips]
    repeats = np.sort(np.stack((*choices, np.minimum(2, tiles)), axis=-1), axis=-1)
    return repeats, np.diff(repeats, axis=-1, prepend=0) > 0


def _planes(problems: Shapes, window: Window, device: Device) -> Candidates[Planes]:
    """The cuts of nchw that fit; where some of a problem's cuts use shared memory, only those."""
    tp, tq, staged = np.array(planes_tiles(window)).T
    repeats, is_new = _repeats_of(problems, tp)
    owner, tile, repeat, size = np.nonzero(np.broadcast_to(is_new[..., None], (*is_new.shape, 2)))
    cut = Planes(tp[tile], tq[tile], staged[tile], np.array((64, 128))[size], repeats[owner, tile, repeat])
    is_fitting = cut.shared_bytes(problems.take(owner)) <= MOST_SHARED_BYTES
    has_staged = np.zeros(len(problems), bool)
    has_staged[owner[is_fitting & (cut.staged > 0)]] = True
    rows = np.flatnonzero(is_fitting & ((cut.staged > 0) | ~has_staged[owner]))
    return _timed(problems, owner[rows], take(cut, rows), window, device)


def _staged(problems: Shapes, window: Window, device: Device) -> Candidates[Staged] | None:
    """The cuts of nhwc that fit and stage x in shared memory; None where the window has none."""
    itemsize, tiles = problems.dtype.itemsize_bytes, staged_tiles(window, problems.dtype.itemsize_bytes)
    if not tiles:
        return None
    vec, tp, tq, blocks = np.array(tiles).T
    repeats, is_new = _repeats_of(problems, tp)
    is_aligned = (copy_of(problems)[:, None] >= np.maximum(4, vec * itemsize)) & (multiplier_of(problems) == 1)[:, None]
    is_wanted = np.broadcast_to((is_new & is_aligned[..., None])[..., None, None], (*is_new.shape, len(PITCHES), 2))
    owner, tile, repeat, pitch, size = np.nonzero(is_wanted)
    cut = Staged(
        *(vec[tile], tp[tile], tq[tile], blocks[tile], np.array(PITCHES)[pitch], np.array((128, 256))[size]),
        repeats[owner, tile, repeat],
    )
    rows = np.flatnonzero(cut.shared_bytes(problems.take(owner)) <= MOST_SHARED_BYTES)
    return _timed(problems, owner[rows], take(cut, rows), window, device)


def _channels(problems: Shapes, window: Window, device: Device) -> Candidates[Channels]:
    """The cuts of nhwc without shared memory."""
    itemsize = problems.dtype.itemsize_bytes
    vec, tp, tq, blocks = np.array(channels_tiles(window, itemsize)).T
    repeats, is_new = _repeats_of(problems, tp)
    is_aligned = (problems.c[:, None] % vec == 0) & ((vec == 1) | (multiplier_of(problems)[:, None] == 1))
    is_wanted = np.broadcast_to((is_new & is_aligned[..., None])[..., None, None], (*is_new.shape, 2, 2))
    owner, tile, repeat, lane, size = np.nonzero(is_wanted)
    few, all_lanes = np.maximum(1, 128 // (vec * itemsize))[tile], problems.k[owner] // vec[tile]
    cut = Channels(
        *(vec[tile], tp[tile], tq[tile], blocks[tile], np.where(lane > 0, all_lanes, few)),
        *(np.array((64, 128))[size], repeats[owner, tile, repeat]),
    )
    return _timed(problems, owner, cut, window, device)


def _timed(problems: Shapes, owner: Array, cut: T, window: Window, device: Device) -> Candidates[T]:
    return Candidates(owner, cut, cost.expect(cut, problems.take(owner), window, device))


def _by_kind(problems: Shapes) -> dict[Window | Scale | Plain, list[int]]:
    """Indices of the problems of each window, and of those with only one cut."""
    columns = [getattr(problems, name).tolist() for name in _KIND_IS_OF]
    kinds: dict[Window | Scale | Plain, list[int]] = {}
    is_whole = (problems.p == problems.h) & (problems.q == problems.w)
    for place, sizes in enumerate(zip(*columns, is_whole.tolist(), multiplier_of(problems).tolist(), strict=True)):
        kinds.setdefault(_kind_of(*sizes), []).append(place)
    return kinds


@cache
def _kind_of(*sizes: int) -> Window | Scale | Plain:
    """The window of a layer, or its only cut.

    Sizes are `_KIND_IS_OF`, whether a plane of y is as large as one of x, and the filters of a channel.
    """
    r, s, stride_h, stride_w, dilation_h, dilation_w, is_whole, multiplier = sizes
    if is_whole and (r, s, stride_h, stride_w, multiplier) == (1, 1, 1, 1, 1):
        return Scale()
    return window_of(r, s, (stride_h, stride_w), (dilation_h, dilation_w)) or Plain()


def candidates(problems: Shapes, window: Window, device: Device) -> list[Candidates[Any]]:
    """The cuts of problems of one window, one table per kernel; of equally fast cuts the first is chosen."""
    if problems.layout is Layout.NCHW:
        return [_planes(problems, window, device)]
    staged = _staged(problems, window, device)
    return [*([staged] if staged else []), _channels(problems, window, device)]


def plan_cuts(problems: Shapes, device: Device) -> list[Cut]:
    """For each problem the cut that the model expects to be fastest.

    Parameters
    ----------
    problems : Shapes
        Layers that ``cuda.depthwise`` computes.
    device : Device
    """
    return [cut for batch in problems.parts(AT_A_TIME) for cut in _cheapest(batch, device)]


def _cheapest(problems: Shapes, device: Device) -> list[Cut]:
    """`plan_cuts` for few enough problems to plan together."""
    chosen: list[Cut] = [Plain()] * len(problems)
    least_us = np.full(len(problems), np.inf)
    for kind, places in _by_kind(problems).items():
        if isinstance(kind, Scale | Plain):
            for place in places:
                chosen[place] = kind
            continue
        for of_kernel in candidates(problems.take(np.array(places)), kind, device):
            for row in of_kernel.firsts().tolist():
                place = places[of_kernel.owner[row]]
                if of_kernel.us[row] < least_us[place]:
                    least_us[place], chosen[place] = of_kernel.us[row], row_of(of_kernel.cut, row)
    return chosen


def plan_cut(problem: ConvProblem, device: Device) -> Cut:
    """`plan_cuts` for one problem."""
    (cut,) = plan_cuts(Shapes.of(problem), device)
    return cut


def expected(problem: ConvProblem, device: Device) -> dict[Cut, float]:
    """The cuts of one problem, and the expected time of each in us; 0 where there is only one cut."""
    problems = Shapes.of(problem)
    ((kind, _),) = _by_kind(problems).items()
    if isinstance(kind, Scale | Plain):
        return {kind: 0.0}
    return {cut: us for of_kernel in candidates(problems, kind, device) for cut, us in of_kernel.expected().items()}


def planes_defines(_dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions of the nchw source."""
    return tuple(
        Planes(tp, tq, staged, 0).defines(window, pairs)
        for window in WINDOWS
        for tp, tq, staged in planes_tiles(window)
        for pairs in ((0, 1, 2) if staged and tq * window[2] % 2 == 0 else (0,))
    )


def staged_defines(dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions of the nhwc source that stages x."""
    itemsize = dtype.itemsize_bytes
    return tuple(
        Staged(vec, tp, tq, blocks, pitch, 0).defines(window, copy)
        for window in WINDOWS
        for vec, tp, tq, blocks in staged_tiles(window, itemsize)
        for copy in (16, 8, 4)
        for pitch in PITCHES
        if vec * itemsize <= copy
    )


def channels_defines(dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions of the nhwc source without staging."""
    return tuple(
        Channels(vec, tp, tq, blocks, 0, 0).defines(window)
        for window in WINDOWS
        for vec, tp, tq, blocks in channels_tiles(window, dtype.itemsize_bytes)
    )


PLANES_SOURCE: Final = Source("depthwise", planes_defines)
ANY_SOURCE: Final = Source("depthwise_any")
CHANNELS_SOURCE: Final = Source("depthwise_channels", channels_defines)
_FULL: Final = (
    "the bound of two blocks leaves 128 registers, of which twenty-five taps of two channels and their sums need all"
)
STAGED_SOURCE: Final = Source(
    "depthwise_nhwc",
    staged_defines,
    spills=(
        BorneSpill(
            *("depthwise_staged", "sm_90", 12, _FULL),
            storage="BFLOAT16",
            defines=(("FILTER_R", 5), ("STRIDE", 2), ("TP", 4), ("TQ", 2)),
        ),
    ),
)
SOURCES: Final = (PLANES_SOURCE, ANY_SOURCE, CHANNELS_SOURCE, STAGED_SOURCE)
