"""How a depthwise convolution is cut: a thread's tile, a block's share, and what each is expected to take."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.parts.division import division

MOST_SHARED_BYTES: Final = 96 * 1024
"""Of a block: what every capability from 8.0 on has."""
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


def window_of(problem: ConvProblem) -> Window | None:
    """The one of `WINDOWS`; None where there is none."""
    dilations = {problem.dilation_h if problem.r > 1 else 0, problem.dilation_w if problem.s > 1 else 0} - {0} or {1}
    strides = {problem.stride_h, problem.stride_w}
    if len(dilations) > 1 or len(strides) > 1:
        return None
    window = (problem.r, problem.s, strides.pop(), dilations.pop())
    return window if window in WINDOWS else None


def copy_of(problem: ConvProblem) -> int:
    """Bytes of a copy of channels to shared memory: the most that their number allows; 2 where there is none."""
    return next(size for size in (16, 8, 4, 2) if problem.c * problem.dtype.itemsize_bytes % size == 0)


def multiplier_of(problem: ConvProblem) -> int:
    """Filters of a channel."""
    return problem.k // problem.c


def divider(divisor: int) -> tuple[int, int]:
    """Magic and shift with which the kernels divide values below 2^31."""
    is_power_of_2 = divisor & (divisor - 1) == 0  # by which they only shift
    return (0, divisor.bit_length() - 1) if is_power_of_2 else division(divisor)


@dataclass(frozen=True)
class Planes:
    """A cut of nchw: `tp` x `tq` outputs a thread, of whole planes or of a band of rows of one.

    Parameters
    ----------
    tp, tq : int
    staged : int
        0: nothing, 1: x, 2: x and y go through shared memory.
    threads : int
        That a block has at most.
    repeats: int
        Tiles below one another of a thread.
    """

    tp: int
    tq: int
    staged: int
    threads: int
    repeats: int = 1

    @property
    def strip(self) -> int:
        """Rows of a thread."""
        return self.tp * self.repeats

    def pairs_of(self, problem: ConvProblem) -> int:
        """How elements are loaded in twos: not, from an even column on, or from an odd one on."""
        is_even = problem.w % 2 == 0 and self.tq * problem.stride_w % 2 == 0
        is_even = is_even and (problem.stride_w > 1 or (problem.q % 2 == 0 and self.tq % 2 == 0))
        return 1 + problem.pad_w % 2 if is_even and self.staged else 0

    def defines(self, window: Window, pairs: int) -> dict[str, int]:
        """What the source is compiled with."""
        return {**_window_defines(window), "TP": self.tp, "TQ": self.tq, "STAGED": self.staged, "PAIRS": pairs}

    def share_of(self, problem: ConvProblem) -> tuple[int, int]:
        """Planes of a block, and rows of each."""
        tiles_p, tiles_q = ceil(problem.p / self.strip), ceil(problem.q / self.tq)
        planes = self.threads // (tiles_p * tiles_q)
        multiplier = multiplier_of(problem)
        if planes >= multiplier:
            return min(planes // multiplier, problem.n * problem.c) * multiplier, problem.p
        bands = ceil(tiles_p / max(1, self.threads // tiles_q))
        return 1, self.strip * ceil(tiles_p / bands)

    def grid_of(self, problem: ConvProblem) -> tuple[int, int]:
        """Blocks, and threads of each."""
        planes, rows = self.share_of(problem)
        tasks = planes * ceil(rows / self.strip) * ceil(problem.q / self.tq)
        threads = min(self.threads, 32 * ceil(tasks / 32))
        return ceil(problem.n * problem.k / planes) * ceil(problem.p / rows), threads

    def shared_elements(self, problem: ConvProblem) -> tuple[int, int]:
        """Of the run of x and of that of y, each with what its first vector has before it."""
        planes, rows = self.share_of(problem)
        vector = 16 // problem.dtype.itemsize_bytes
        taken = problem.h
        if rows < problem.p:
            taken = min(problem.h, (rows - 1) * problem.stride_h + (problem.r - 1) * problem.dilation_h + 1)
        x = ceil(planes / multiplier_of(problem)) * taken * problem.w + 2 * self.slack_of(problem)
        y = planes * rows * problem.q
        of_x, of_y = (vector * (ceil(count / vector) + 1) if self.staged > i else 0 for i, count in enumerate((x, y)))
        return of_x, of_y

    def slack_of(self, problem: ConvProblem) -> int:
        """Elements around the run of x that may be read: what a tile has outside a plane."""
        vector = 16 // problem.dtype.itemsize_bytes
        return vector * ceil((problem.pad_w + 2 + self.tq * problem.stride_w) / vector)

    def shared_bytes(self, problem: ConvProblem) -> int:
        """Dynamic shared memory of a block."""
        return sum(self.shared_elements(problem)) * problem.dtype.itemsize_bytes


@dataclass(frozen=True)
class Channels:
    """A cut of nhwc: `tp` x `tq` outputs of `vec` channels a thread, `repeats` times.

    Parameters
    ----------
    vec, tp, tq : int
    blocks : int
        That a multiprocessor's registers must have room for.
    lanes : int
        Threads that are neighbours over channels, at most.
    threads : int
        Of a block.
    repeats : int
        Tiles below one another.
    """

    vec: int
    tp: int
    tq: int
    blocks: int
    lanes: int
    threads: int
    repeats: int = 1

    @property
    def strip(self) -> int:
        """Rows of a thread."""
        return self.tp * self.repeats

    def defines(self, window: Window) -> dict[str, int]:
        """What the source is compiled with."""
        return {**_window_defines(window), "TP": self.tp, "TQ": self.tq, "VEC": self.vec, "BLOCKS": self.blocks}

    def lanes_of(self, problem: ConvProblem) -> tuple[int, int]:
        """Threads of a part of the channels, and parts."""
        vectors = problem.k // self.vec
        parts = ceil(vectors / self.lanes)
        return ceil(vectors / parts), parts

    def tiles_of(self, problem: ConvProblem) -> tuple[int, int]:
        """Tiles of an image's rows, each of all repeats, and of its columns."""
        return ceil(problem.p / self.strip), ceil(problem.q / self.tq)

    def grid_of(self, problem: ConvProblem) -> tuple[int, int]:
        """Blocks, and threads of each."""
        lanes, parts = self.lanes_of(problem)
        tiles_p, tiles_q = self.tiles_of(problem)
        tasks = problem.n * parts * tiles_p * tiles_q * lanes
        return ceil(tasks / self.threads), self.threads


@dataclass(frozen=True)
class Staged:
    """A cut of nhwc whose x goes through shared memory: `tp` x `tq` outputs of `vec` channels a thread.

    Parameters
    ----------
    vec, tp, tq : int
    blocks : int
        That a multiprocessor's registers must have room for.
    pitch : int
        Bytes of a pixel in shared memory.
    threads : int
        Of a block, at most.
    repeats : int
        Tiles below one another of a thread.
    """

    vec: int
    tp: int
    tq: int
    blocks: int
    pitch: int
    threads: int
    repeats: int = 1

    @property
    def strip(self) -> int:
        """Rows of a thread."""
        return self.tp * self.repeats

    def defines(self, window: Window, copy: int) -> dict[str, int]:
        """What the source is compiled with."""
        return {
            **Channels(self.vec, self.tp, self.tq, self.blocks, 0, 0).defines(window),
            "COPY": copy,
            "PITCH": self.pitch,
        }

    def lanes_of(self, problem: ConvProblem) -> tuple[int, int]:
        """Copies of a pixel of a part of the channels, and parts."""
        copies = problem.c * problem.dtype.itemsize_bytes // copy_of(problem)
        parts = ceil(copies / (self.pitch // copy_of(problem)))
        return ceil(copies / parts), parts

    def vectors_of(self, problem: ConvProblem) -> int:
        """Threads that are neighbours over channels."""
        return self.lanes_of(problem)[0] * copy_of(problem) // (problem.dtype.itemsize_bytes * self.vec)

    def share_of(self, problem: ConvProblem) -> tuple[int, int]:
        """Rows and columns of y of a block."""
        room = max(1, self.threads // self.vectors_of(problem))
        tiles_p, tiles_q = ceil(problem.p / self.strip), ceil(problem.q / self.tq)
        across = ceil(tiles_q / ceil(tiles_q / room))
        down = max(1, room // across)
        return self.strip * ceil(tiles_p / ceil(tiles_p / down)), self.tq * across

    def bands_of(self, problem: ConvProblem) -> tuple[int, int]:
        """Shares of an image's rows and of its columns."""
        rows, columns = self.share_of(problem)
        return ceil(problem.p / rows), ceil(problem.q / columns)

    def taken_of(self, problem: ConvProblem) -> tuple[int, int]:
        """Rows and columns of x of a block, padding and what lies beyond it included."""
        rows, columns = self.share_of(problem)
        _, _, stride, dilation = window_of(problem) or (1, 1, 1, 1)
        return (rows - 1) * stride + (problem.r - 1) * dilation + 1, (columns - 1) * stride + (
            problem.s - 1
        ) * dilation + 1

    def grid_of(self, problem: ConvProblem) -> tuple[int, int]:
        """Blocks, and threads of each."""
        (rows, columns), (bands_p, bands_q) = self.share_of(problem), self.bands_of(problem)
        tasks = rows // self.strip * (columns // self.tq) * self.vectors_of(problem)
        return problem.n * self.lanes_of(problem)[1] * bands_p * bands_q, min(self.threads, 32 * ceil(tasks / 32))

    def shared_bytes(self, problem: ConvProblem) -> int:
        """Dynamic shared memory of a block."""
        rows, columns = self.taken_of(problem)
        return self.pitch * rows * columns


@dataclass(frozen=True)
class Scale:
    """Of 1x1 filters: a vector of 16 bytes a thread."""


@dataclass(frozen=True)
class Plain:
    """One output a thread, whatever the problem."""


Cut = Planes | Channels | Staged | Scale | Plain


def _window_defines(window: Window) -> dict[str, int]:
    return dict(zip(("FILTER_R", "FILTER_S", "STRIDE", "DILATION"), window, strict=True))
