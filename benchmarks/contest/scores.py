"""What the rows say: wins, geometric means, targets, and how far a layer is from its roofline; pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.contest.rows import Row
from conv_advisor.data.problem import ConvProblem

N_CONFIGURATIONS: Final = 602
"""86 layers at seven batches: those that cuConv (arXiv:2103.16234) measured."""

COLUMNS: Final = (
    ("float32", "nchw"),
    ("tf32", "nchw"),
    ("float16", "nchw"),
    ("bfloat16", "nchw"),
    ("float16", "nhwc"),
    ("bfloat16", "nhwc"),
    ("tf32", "nhwc"),
    ("float32", "nhwc"),
)
"""Dtype and layout of the lines of the table."""


@dataclass(frozen=True)
class Target:
    """What our variants should reach over the 602 configurations; None where there is no target.

    Parameters
    ----------
    wins, one_image_wins : float
        Shares.
    gain : float
        Geometric mean of cuDNN against the better of both.
    one_image, one_image_best : float
        cuDNN against ours at batch 1: geometric mean, and the best layer.
    """

    wins: float | None = None
    gain: float | None = None
    one_image: float | None = None
    one_image_best: float | None = None
    one_image_wins: float | None = None


TARGETS: Final[Mapping[tuple[str, str], Target]] = {
    ("float32", "nchw"): Target(0.70, 1.5, 3.0, 8.0, 0.95),
    ("tf32", "nchw"): Target(0.60, 1.4, 2.0),
    ("float16", "nchw"): Target(0.60, 1.5, 2.0, one_image_wins=0.90),
    ("bfloat16", "nchw"): Target(0.60, 1.5, 2.0),
    ("float16", "nhwc"): Target(0.65, 1.2, 1.5),
    ("bfloat16", "nhwc"): Target(0.65, 1.2, 1.5),
    ("tf32", "nhwc"): Target(gain=1.15),
    ("float32", "nhwc"): Target(gain=1.5),
}


@dataclass(frozen=True)
class Score:
    """What ours reached over some rows.

    Parameters
    ----------
    rows : int
        Rows with a time of cuDNN, which are compared. A row without a time of ours is a loss, with cuDNN the better.
    without_ours : int
        Compared rows without a time of ours.
    wins, gain, one_image, one_image_best, one_image_wins
        As in `Target`; not a number where there are no such rows.
    """

    rows: int
    without_ours: int
    wins: float
    gain: float
    one_image: float
    one_image_best: float
    one_image_wins: float


def score(rows: Iterable[Row]) -> Score:
    """Wins and means over rows; those without a time of cuDNN do not count."""
    compared = [row for row in rows if row.cudnn is not None]
    one_image = [row for row in compared if row.problem.n == 1]
    ratios = [row.speedup for row in one_image if row.speedup is not None]
    return Score(
        rows=len(compared),
        without_ours=sum(row.ours is None for row in compared),
        wins=_share(row.is_win for row in compared),
        gain=geometric_mean([max(1.0, row.speedup or 0.0) for row in compared]),
        one_image=geometric_mean(ratios),
        one_image_best=max(ratios, default=math.nan),
        one_image_wins=_share(row.is_win for row in one_image),
    )


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean; not a number where there are no values."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else math.nan


def _share(flags: Iterable[bool]) -> float:
    every = list(flags)
    return sum(every) / len(every) if every else math.nan


def batch_class(n: int) -> str:
    """The class of batches that the breakdown counts together."""
    return next((name for name, most in (("1", 1), ("8-16", 16), ("32-64", 64)) if n <= most), "128-256")


def breakdown(rows: Iterable[Row]) -> dict[tuple[int, str], list[Row]]:
    """Rows by filter size and batch class, in order."""
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.problem.r, row.problem.n)):
        groups.setdefault((row.problem.r, batch_class(row.problem.n)), []).append(row)
    return groups


def missing(rows: Iterable[Row], problems: Iterable[ConvProblem]) -> dict[tuple[str, str], list[ConvProblem]]:
    """The problems without a row, by dtype and layout."""
    there = {row.problem for row in rows}
    gaps: dict[tuple[str, str], list[ConvProblem]] = {}
    for problem in problems:
        if problem not in there:
            gaps.setdefault((str(problem.dtype), str(problem.layout)), []).append(problem)
    return gaps


@dataclass(frozen=True)
class Peaks:
    """What the device can do at best.

    Parameters
    ----------
    flops : dict of str to float
        Operations a second of each dtype, a multiply-add counted as two.
    bytes_per_s : float
    launch_s : float
        Least time of a kernel that does anything.

    Notes
    -----
    Defaults are an H200's. float32: 67e12, NVIDIA's data sheet of the H200 SXM without tensor cores. float16 and
    bfloat16: 790e12, an 8192-cubed product through cuBLAS on such a device; the data sheet says 989e12. tf32: half of
    that, as in the data sheet. Bandwidth: 4.3e12, a large copy on such a device; the data sheet says 4.8e12. Launch:
    1.5e-6, what a kernel without its main loop takes in a replayed graph.
    """

    flops: Mapping[str, float]
    bytes_per_s: float = 4.3e12
    launch_s: float = 1.5e-6


H200: Final = Peaks({"float32": 67e12, "tf32": 395e12, "float16": 790e12, "bfloat16": 790e12})


@dataclass(frozen=True)
class Roofline:
    """The least time of a layer, ms, and what sets it: ``arithmetic``, ``memory`` or ``launch``."""

    arithmetic_ms: float
    memory_ms: float
    launch_ms: float

    @property
    def least_ms(self) -> float:
        """The largest of the three."""
        return max(self.arithmetic_ms, self.memory_ms, self.launch_ms)

    @property
    def bound(self) -> str:
        """Which of the three is the largest."""
        named = {"arithmetic": self.arithmetic_ms, "memory": self.memory_ms, "launch": self.launch_ms}
        return max(named, key=named.__getitem__)


def roofline(problem: ConvProblem, peaks: Peaks = H200) -> Roofline:
    """Operations of the direct algorithm over the peak, and bytes over the bandwidth.

    Winograd and FFT need fewer operations, and three tf32 products for one of float32 have a peak above that of
    float32: these may be faster than this.
    """
    return Roofline(
        1e3 * problem.flops / peaks.flops[str(problem.dtype)],
        1e3 * problem.bytes / peaks.bytes_per_s,
        1e3 * peaks.launch_s,
    )
