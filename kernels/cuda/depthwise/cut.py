"""How a depthwise convolution is cut: the tile of a thread, and the share of a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.shapes import Ints, Problems

MOST_SHARED_BYTES: Final = 96 * 1024
"""Shared memory of a block that every compute capability from 8.0 on has."""
MOST_THREADS: Final = 256

SQUARES: Final = ((3, 3), (5, 5), (7, 7))
LINES: Final = ((1, 3), (3, 1), (1, 5), (5, 1), (1, 7), (7, 1))
WINDOWS: Final = (
    *((r, s, stride, 1) for r, s in (*SQUARES, *LINES) for stride in (1, 2)),
    *((r, s, 1, 2) for r, s in ((3, 3), (5, 5), *LINES)),
    (1, 1, 2, 1),
)
"""Filter rows and columns, stride and dilation that the tiled kernels are compiled for."""

Window = tuple[int, int, int, int]


def window_of(r: int, s: int, strides: tuple[int, int], dilations: tuple[int, int]) -> Window | None:
    """The matching window of `WINDOWS`; None where there is none."""
    used_dilations = {dilation for taps, dilation in zip((r, s), dilations, strict=True) if taps > 1} or {1}
    if len(used_dilations) > 1 or strides[0] != strides[1]:
        return None
    window = (r, s, strides[0], used_dilations.pop())
    return window if window in WINDOWS else None


def window(problem: ConvProblem) -> Window:
    """The window of a problem that has a tiled cut."""
    tiled = window_of(
        *(problem.r, problem.s, (problem.stride_h, problem.stride_w), (problem.dilation_h, problem.dilation_w))
    )
    assert tiled is not None, "a tiled cut has one"  # noqa: S101 - for mypy
    return tiled


def copy_of(problems: Problems) -> Ints:
    """Bytes of a copy of channels to shared memory: the most that alignment allows; 2 where nothing is copied."""
    bytes_of_pixel = problems.c * problems.dtype.itemsize_bytes
    return np.minimum(16, bytes_of_pixel & -bytes_of_pixel)


def multiplier_of(problems: Problems) -> Ints:
    """Filters per channel."""
    return problems.k // problems.c


@dataclass(frozen=True)
class Planes:
    """A cut of nchw: `tp` x `tq` outputs per thread; a block has whole planes, or a band of rows of one plane.

    Parameters
    ----------
    tp, tq : int
    staged : int
        What goes through shared memory: 0 nothing, 1 x, 2 x and y.
    threads : int
        Threads of a block, at most.
    repeats: Ints
        Tiles of a thread, one below the other.
    """

    tp: Ints
    tq: Ints
    staged: Ints
    threads: Ints
    repeats: Ints = 1

    @property
    def strip(self) -> Ints:
        """Rows of a thread."""
        return self.tp * self.repeats

    def pairs_of(self, problems: Problems) -> Ints:
        """How elements are loaded in pairs: 0 not at all, 1 from an even column on, 2 from an odd column on."""
        is_even = (problems.w % 2 == 0) & (self.tq * problems.stride_w % 2 == 0)
        is_even = is_even & ((problems.stride_w > 1) | ((problems.q % 2 == 0) & (self.tq % 2 == 0)))
        return np.where(is_even & np.greater(self.staged, 0), 1 + problems.pad_w % 2, 0)

    def defines(self, window: Window, pairs: int) -> dict[str, int]:
        """The source's definitions for this cut."""
        return {**_window_defines(window), "TP": self.tp, "TQ": self.tq, "STAGED": self.staged, "PAIRS": pairs}

    def share_of(self, problems: Problems) -> tuple[Ints, Ints]:
        """Planes of a block, and rows of each plane."""
        tiles_p, tiles_q = ceil_div(problems.p, self.strip), ceil_div(problems.q, self.tq)
        planes, multiplier = self.threads // (tiles_p * tiles_q), multiplier_of(problems)
        bands = ceil_div(tiles_p, np.maximum(1, self.threads // tiles_q))
        is_whole = planes >= multiplier
        whole_planes = np.minimum(planes // multiplier, problems.n * problems.c) * multiplier
        return np.where(is_whole, whole_planes, 1), np.where(
            is_whole, problems.p, self.strip * ceil_div(tiles_p, bands)
        )

    def grid_of(self, problems: Problems) -> tuple[Ints, Ints]:
        """Blocks, and threads of each."""
        planes, rows = self.share_of(problems)
        tasks = planes * ceil_div(rows, self.strip) * ceil_div(problems.q, self.tq)
        threads = np.minimum(self.threads, 32 * ceil_div(tasks, 32))
        return ceil_div(problems.n * problems.k, planes) * ceil_div(problems.p, rows), threads

    def shared_elements(self, problems: Problems) -> tuple[Ints, Ints]:
        """Elements of the runs of x and of y, each with room for elements before the run in its first vector."""
        planes, rows = self.share_of(problems)
        vector = 16 // problems.dtype.itemsize_bytes
        band = np.minimum(problems.h, (rows - 1) * problems.stride_h + (problems.r - 1) * problems.dilation_h + 1)
        x_rows = np.where(rows < problems.p, band, problems.h)
        x = ceil_div(planes, multiplier_of(problems)) * x_rows * problems.w + 2 * self.slack_of(problems)
        runs = (vector * (ceil_div(count, vector) + 1) for count in (x, planes * rows * problems.q))
        of_x, of_y = (np.where(np.greater(self.staged, stage), run, 0) for stage, run in enumerate(runs))
        return of_x, of_y

    def slack_of(self, problems: Problems) -> Ints:
        """Elements before and after the run of x that may be read, since tiles reach beyond a plane."""
        vector = 16 // problems.dtype.itemsize_bytes
        return vector * ceil_div(problems.pad_w + 2 + self.tq * problems.stride_w, vector)

    def shared_bytes(self, problems: Problems) -> Ints:
        """Dynamic shared memory of a block."""
        of_x, of_y = self.shared_elements(problems)
        return (of_x + of_y) * problems.dtype.itemsize_bytes


@dataclass(frozen=True)
class Channels:
    """A cut of nhwc: `tp` x `tq` outputs of `vec` channels per thread, `repeats` times.

    Parameters
    ----------
    vec, tp, tq : int
    blocks : int
        Blocks that a multiprocessor's registers must have room for.
    lanes : int
        Neighbouring threads over channels, at most.
    threads : int
        Threads of a block.
    repeats : int
        Tiles of a thread, one below the other.
    """

    vec: Ints
    tp: Ints
    tq: Ints
    blocks: Ints
    lanes: Ints
    threads: Ints
    repeats: Ints = 1

    @property
    def strip(self) -> Ints:
        """Rows of a thread."""
        return self.tp * self.repeats

    def defines(self, window: Window) -> dict[str, int]:
        """The source's definitions for this cut."""
        return {**_window_defines(window), "TP": self.tp, "TQ": self.tq, "VEC": self.vec, "BLOCKS": self.blocks}

    def lanes_of(self, problems: Problems) -> tuple[Ints, Ints]:
        """Threads per part of the channels, and number of parts."""
        vectors = problems.k // self.vec
        parts = ceil_div(vectors, self.lanes)
        return ceil_div(vectors, parts), parts

    def tiles_of(self, problems: Problems) -> tuple[Ints, Ints]:
        """Tiles over an image's rows, each with all repeats, and over its columns."""
        return ceil_div(problems.p, self.strip), ceil_div(problems.q, self.tq)

    def grid_of(self, problems: Problems) -> tuple[Ints, Ints]:
        """Blocks, and threads of each."""
        lanes, parts = self.lanes_of(problems)
        tiles_p, tiles_q = self.tiles_of(problems)
        tasks = problems.n * parts * tiles_p * tiles_q * lanes
        return ceil_div(tasks, self.threads), self.threads


@dataclass(frozen=True)
class Staged:
    """A cut of nhwc whose x goes through shared memory: `tp` x `tq` outputs of `vec` channels per thread.

    Parameters
    ----------
    vec, tp, tq : int
    blocks : int
        Blocks that a multiprocessor's registers must have room for.
    pitch : int
        Bytes of a pixel in shared memory.
    threads : int
        Threads of a block, at most.
    repeats : int
        Tiles of a thread, one below the other.
    """

    vec: Ints
    tp: Ints
    tq: Ints
    blocks: Ints
    pitch: Ints
    threads: Ints
    repeats: Ints = 1

    @property
    def strip(self) -> Ints:
        """Rows of a thread."""
        return self.tp * self.repeats

    def defines(self, window: Window, copy: int) -> dict[str, int]:
        """The source's definitions for this cut."""
        return {
            **Channels(self.vec, self.tp, self.tq, self.blocks, 0, 0).defines(window),
            "COPY": copy,
            "PITCH": self.pitch,
        }

    def lanes_of(self, problems: Problems) -> tuple[Ints, Ints]:
        """Copies per pixel and part of the channels, and number of parts."""
        copies = problems.c * problems.dtype.itemsize_bytes // copy_of(problems)
        parts = ceil_div(copies, self.pitch // copy_of(problems))
        return ceil_div(copies, parts), parts

    def vectors_of(self, problems: Problems) -> Ints:
        """Neighbouring threads over channels."""
        return self.lanes_of(problems)[0] * copy_of(problems) // (problems.dtype.itemsize_bytes * self.vec)

    def share_of(self, problems: Problems) -> tuple[Ints, Ints]:
        """Rows and columns of y that a block computes."""
        room = np.maximum(1, self.threads // self.vectors_of(problems))
        tiles_p, tiles_q = ceil_div(problems.p, self.strip), ceil_div(problems.q, self.tq)
        across = ceil_div(tiles_q, ceil_div(tiles_q, room))
        down = np.maximum(1, room // across)
        return self.strip * ceil_div(tiles_p, ceil_div(tiles_p, down)), self.tq * across

    def bands_of(self, problems: Problems) -> tuple[Ints, Ints]:
        """Number of block shares over an image's rows and over its columns."""
        rows, columns = self.share_of(problems)
        return ceil_div(problems.p, rows), ceil_div(problems.q, columns)

    def taken_of(self, problems: Problems) -> tuple[Ints, Ints]:
        """Rows and columns of x that a block stages, including padding and positions beyond it."""
        rows, columns = self.share_of(problems)
        taken_rows = (rows - 1) * problems.stride_h + (problems.r - 1) * problems.dilation_h + 1
        return taken_rows, (columns - 1) * problems.stride_w + (problems.s - 1) * problems.dilation_w + 1

    def grid_of(self, problems: Problems) -> tuple[Ints, Ints]:
        """Blocks, and threads of each."""
        (rows, columns), (bands_p, bands_q) = self.share_of(problems), self.bands_of(problems)
        tasks = rows // self.strip * (columns // self.tq) * self.vectors_of(problems)
        blocks = problems.n * self.lanes_of(problems)[1] * bands_p * bands_q
        return blocks, np.minimum(self.threads, 32 * ceil_div(tasks, 32))

    def shared_bytes(self, problems: Problems) -> Ints:
        """Dynamic shared memory of a block."""
        rows, columns = self.taken_of(problems)
        return self.pitch * rows * columns


@dataclass(frozen=True)
class Scale:
    """The cut of 1x1 filters: a vector of 16 bytes per thread."""


@dataclass(frozen=True)
class Plain:
    """One output per thread, for any problem."""


Tiled = Planes | Channels | Staged
Cut = Tiled | Scale | Plain


def _window_defines(window: Window) -> dict[str, int]:
    return dict(zip(("FILTER_R", "FILTER_S", "STRIDE", "DILATION"), window, strict=True))
