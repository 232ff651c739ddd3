"""Which cut a depthwise convolution gets: the menu, and what each of it is expected to take."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Final

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
from conv_advisor.kernels.cuda.parts.source import Defines, Source

Tiles = tuple[tuple[int, ...], ...]

_PLANES: Final[dict[tuple[int, int], Tiles]] = {
    (9, 1): ((2, 1), (7, 1), (2, 2), (4, 2), (7, 2), (2, 4), (4, 4), (7, 4), (2, 7), (2, 8)),
    (9, 2): ((2, 1), (4, 1), (7, 1), (2, 2), (4, 2), (7, 2)),
    (25, 1): ((1, 1), (2, 2), (4, 2), (2, 4), (4, 4), (2, 8)),
    (25, 2): ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2)),
    (49, 1): ((1, 1), (2, 1), (4, 2), (2, 4), (4, 4)),
    (49, 2): ((1, 1), (2, 1), (4, 2)),
}
"""Outputs of a thread, for the most taps and a stride."""
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
"""Channels and outputs of a thread, and blocks of a multiprocessor, for elements of so many bytes and the most taps."""
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
"""The same without shared memory, for up to 9 taps."""
PITCHES: Final = (32, 64, 128)
MOST_REPEATS: Final = 8


def _taps_of(window: Window) -> int:
    return next(taps for taps in (9, 25, 49) if window[0] * window[1] <= taps)


def planes_tiles(window: Window) -> Tiles:
    """Outputs a thread may have in nchw, and what is staged."""
    r, s, stride, dilation = window
    if r * s == 1:
        return ((1, 1, 0), (2, 2, 0), (4, 2, 0))
    tiles = _PLANES[_taps_of(window), stride]
    if dilation > 1:
        tiles = ((1, 1), (4, 1))
    elif min(r, s) == 1:
        tiles = ((2, 1), (4, 2), (2, 4)) if stride == 1 else ((2, 1), (2, 2))
    return (*((*tile, staged) for tile in tiles for staged in (1, 2)), (2, 2, 0))


def staged_tiles(window: Window, item: int) -> Tiles:
    """Channels and outputs a thread may have in nhwc, and blocks of a multiprocessor."""
    if window[:2] == (1, 1):
        return ()
    if window[3] > 1 and window[0] * window[1] > 9:
        return ((1, 1, 1, 2), (2, 1, 1, 1))
    if window[3] > 1 or min(window[:2]) == 1:
        return ((1, 1, 1, 2), (2, 1, 1, 2), (2, 4, 1, 2), (2, 2, 2, 1))
    tiles = _STAGED[item, _taps_of(window)]
    # Strips of four two-byte channels need more registers than two blocks leave where rows are two apart.
    return (
        tiles
        if (item, window[2]) != (2, 2)
        else tuple(tile for tile in tiles if (tile[0], tile[2]) != (4, 1) or tile[1] < 4)
    )


def channels_tiles(window: Window, item: int) -> Tiles:
    """The same where channels are not staged."""
    if window[:2] == (1, 1):
        return ((16 // item, 1, 1, 2), (16 // item, 2, 2, 2), (1, 2, 2, 2))
    if window[3] > 1:
        return ((1, 1, 1, 1),)
    if window[0] * window[1] > 9 or min(window[:2]) == 1:
        return ((1, 1, 1, 1), (1, 2, 2, 1))
    return _CHANNELS[item]


def _repeats_of(problem: ConvProblem, tp: int) -> list[int]:
    tiles = ceil(problem.p / tp)
    return sorted({min(MOST_REPEATS, ceil(tiles / strips)) for strips in (1, 2, 3, 4, tiles)} | {min(2, tiles)})


def _planes(problem: ConvProblem, window: Window) -> Iterator[Planes]:
    for tp, tq, staged in planes_tiles(window):
        for repeats in _repeats_of(problem, tp):
            for threads in (64, 128):
                cut = Planes(tp, tq, staged, threads, repeats)
                if cut.shared_bytes(problem) <= MOST_SHARED_BYTES:
                    yield cut


def _staged(problem: ConvProblem, window: Window) -> Iterator[Cut]:
    item, copy = problem.dtype.itemsize_bytes, copy_of(problem)
    for vec, tp, tq, blocks in staged_tiles(window, item):
        if copy < max(4, vec * item):
            continue
        for repeats in _repeats_of(problem, tp):
            for pitch in PITCHES:
                for threads in (128, 256):
                    cut = Staged(vec, tp, tq, blocks, pitch, threads, repeats)
                    if cut.shared_bytes(problem) <= MOST_SHARED_BYTES:
                        yield cut


def _channels(problem: ConvProblem, window: Window) -> Iterator[Cut]:
    item, multiplier = problem.dtype.itemsize_bytes, multiplier_of(problem)
    for vec, tp, tq, blocks in channels_tiles(window, item):
        if problem.c % vec or (vec > 1 and multiplier > 1):
            continue
        for repeats in _repeats_of(problem, tp):
            for lanes in (max(1, 128 // (vec * item)), problem.k // vec):
                for threads in (64, 128):
                    yield Channels(vec, tp, tq, blocks, lanes, threads, repeats)


def cuts_for(problem: ConvProblem, _device: Device) -> list[Cut]:
    """Those that the problem can have."""
    multiplier, window = multiplier_of(problem), window_of(problem)
    is_pointwise = problem.r == problem.s == 1 and problem.pad_h == problem.pad_w == 0
    if is_pointwise and multiplier == problem.stride_h == problem.stride_w == 1:
        return [Scale()]
    if window is None:
        return [Plain()]
    if problem.layout is Layout.NCHW:
        planes = list(_planes(problem, window))
        return list([cut for cut in planes if cut.staged] or planes)
    staged = list(_staged(problem, window)) if multiplier == 1 else []
    return [*staged, *_channels(problem, window)]


def expected_us(cut: Cut, problem: ConvProblem, device: Device) -> float:
    """A model of the time of a launch, good for choosing among cuts; nothing where there is but one."""
    window = window_of(problem)
    if window is None or isinstance(cut, Scale | Plain):
        return 0.0
    return cost.expected_us(cut, problem, window, device.processors)


def expected(problem: ConvProblem, device: Device) -> dict[Cut, float]:
    """The cuts of one problem, and the time in us that each is expected to take."""
    return {cut: expected_us(cut, problem, device) for cut in cuts_for(problem, device)}


def plan_cut(problem: ConvProblem, device: Device) -> Cut:
    """The cut that the model expects to be fastest."""
    return min(cuts_for(problem, device), key=lambda cut: expected_us(cut, problem, device))


def planes_defines(_dtype: DType) -> tuple[Defines, ...]:
    """What nchw's source is compiled with."""
    return tuple(
        Planes(tp, tq, staged, 0).defines(window, pairs)
        for window in WINDOWS
        for tp, tq, staged in planes_tiles(window)
        for pairs in ((0, 1, 2) if staged and tq * window[2] % 2 == 0 else (0,))
    )


def staged_defines(dtype: DType) -> tuple[Defines, ...]:
    """What nhwc's source is compiled with."""
    item = dtype.itemsize_bytes
    return tuple(
        Staged(vec, tp, tq, blocks, pitch, 0).defines(window, copy)
        for window in WINDOWS
        for vec, tp, tq, blocks in staged_tiles(window, item)
        for copy in (16, 8, 4)
        for pitch in PITCHES
        if vec * item <= copy
    )


def channels_defines(dtype: DType) -> tuple[Defines, ...]:
    """The same where channels are not staged."""
    return tuple(
        Channels(vec, tp, tq, blocks, 0, 0).defines(window)
        for window in WINDOWS
        for vec, tp, tq, blocks in channels_tiles(window, dtype.itemsize_bytes)
    )


PLANES_SOURCE: Final = Source("depthwise", planes_defines)
ANY_SOURCE: Final = Source("depthwise_any")
CHANNELS_SOURCE: Final = Source("depthwise_channels", channels_defines)
STAGED_SOURCE: Final = Source("depthwise_nhwc", staged_defines)
SOURCES: Final = (PLANES_SOURCE, ANY_SOURCE, CHANNELS_SOURCE, STAGED_SOURCE)
