"""Numbers that the seed papers found, computed from what was measured here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.contest.choice import OURS
from benchmarks.cpu import CpuTimes
from benchmarks.guidelines.study import CUCONV, FFT, FFT_TILING, WINOGRAD, WINOGRAD_NONFUSED
from benchmarks.measured import LEGACY, Known, fastest_ms, is_where, mean_ratio, times_of
from conv_advisor.data.errors import NotEnoughData
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Algorithm
from conv_advisor.models.costs import Costs

FFTS: Final = (FFT, FFT_TILING)
MOST_BEHIND: Final = 10.0
"""A variant that does not run counts as so many times slower than the best."""
WINOGRADS: Final = (WINOGRAD, WINOGRAD_NONFUSED)
PARAMETERS: Final[dict[str, Callable[[ConvProblem], int]]] = {
    "filter size": lambda p: p.r,
    "batch": lambda p: p.n,
    "input size": lambda p: p.h,
    "number of filters": lambda p: p.k,
    "depth": lambda p: p.c,
}


@dataclass(frozen=True)
class Book:
    """Everything that a statement may be about.

    Parameters
    ----------
    known : Known
        The 602 configurations, by dtype and layout.
    course : Costs or None
        The experiments of the course, in float32 and NCHW.
    cpu : CpuTimes or None
        What a CPU took for the experiments of the course.
    """

    known: Known
    course: Costs | None = None
    cpu: CpuTimes | None = None

    def of(self, dtype: str) -> Costs:
        """The 602 configurations in NCHW.

        Raises
        ------
        NotEnoughData
        """
        if (dtype, "nchw") not in self.known:
            raise NotEnoughData(f"nothing in {dtype} nchw")
        return self.known[dtype, "nchw"]

    def experiments(self) -> Costs:
        """The experiments of the course.

        Raises
        ------
        NotEnoughData
        """
        if self.course is None:
            raise NotEnoughData("no experiment of the course")
        return self.course


def share_fastest(costs: Costs, variants: Sequence[str], rows: np.ndarray) -> float:
    """In which share of some configurations one of some variants is as fast as the fastest legacy algorithm."""
    mine, best_ms = fastest_ms(costs, variants)[rows], fastest_ms(costs, LEGACY)[rows]
    return share(np.isfinite(mine) & (mine <= best_ms))


def share_behind(costs: Costs, variants: Sequence[str], rows: np.ndarray, slowdown: float) -> float:
    """In which share of some configurations some variants are at least so far behind the fastest legacy algorithm."""
    return share(fastest_ms(costs, variants)[rows] >= slowdown * fastest_ms(costs, LEGACY)[rows])


def slowdown_knowing(costs: Costs, parameter: str, *, is_beside_filter: bool = False) -> float:
    """Geometric-mean slowdown of the best pair of choices, one up to a bound on one parameter and one above it.

    Parameters
    ----------
    costs : Costs
    parameter : str
        One of `PARAMETERS`.
    is_beside_filter : bool
        Whether each filter size has a bound and two choices of its own.
    """
    times = times_of(costs, LEGACY)
    logs = np.log(np.minimum(times / times.min(axis=1, keepdims=True), MOST_BEHIND))
    values = np.array([PARAMETERS[parameter](problem) for problem in costs.problems])
    sizes = np.array([p.r if is_beside_filter else 0 for p in costs.problems])
    parts = [(logs[sizes == size], values[sizes == size]) for size in np.unique(sizes)]
    return float(np.exp(sum(_least_of_two(*part) for part in parts) / len(values)))


def _least_of_two(logs: np.ndarray, values: np.ndarray) -> float:
    """The least sum of one choice for small values and one for the others, over all bounds between them."""
    below = [values <= bound for bound in np.unique(values)]
    return min(float(logs[rows].sum(axis=0).min() + logs[~rows].sum(axis=0).min()) for rows in below)


def rank_of(costs: Costs, parameter: str, *, is_beside_filter: bool = False) -> float:
    """The place of a parameter among all by `slowdown_knowing`; 1 is the best."""
    names = [name for name in PARAMETERS if not (is_beside_filter and name == "filter size")]
    known = {name: slowdown_knowing(costs, name, is_beside_filter=is_beside_filter) for name in names}
    return 1.0 + sum(value < known[parameter] for value in known.values())


def half_against_full(book: Book, filters: Sequence[int]) -> float:
    """In which share of the configurations of some filter sizes the best float16 is faster than the best float32."""
    half, full = book.of("float16"), book.of("float32")
    times_ms = {_shape(p): time for p, time in zip(full.problems, fastest_ms(full, LEGACY), strict=True)}
    pairs = [
        (time, times_ms[_shape(p)])
        for p, time in zip(half.problems, fastest_ms(half, LEGACY), strict=True)
        if p.r in filters and _shape(p) in times_ms
    ]
    return share(np.array([mine < other for mine, other in pairs]))


def cuconv_speedups(book: Book, filters: Sequence[int] = (1, 3, 5), batches: Sequence[int] = ()) -> np.ndarray:
    """The best legacy algorithm's time over cuConv's; 0 where it does not run."""
    costs = book.of("float32")
    speedups = fastest_ms(costs, LEGACY) / fastest_ms(costs, [CUCONV])
    chosen: np.ndarray = speedups[is_where(costs, filters=filters, batches=batches)]
    return chosen


def mean_speedup(speedups: np.ndarray) -> float:
    """The arithmetic mean, as the papers have it, where it runs; not a number where it never does."""
    there = speedups[speedups > 0]
    return float(there.mean()) if len(there) else math.nan


def margin_over_next(costs: Costs, variant: str, rows: np.ndarray) -> float:
    """Geometric mean of the next legacy algorithm's time over this one's, where this one is the fastest; the same
    algorithm without tensor cores counts as another."""
    others = [name for name in LEGACY if name != variant]
    mine, next_ms = fastest_ms(costs, [variant])[rows], fastest_ms(costs, others)[rows]
    return mean_ratio(next_ms[mine <= next_ms], mine[mine <= next_ms])


def fft_gain_with_batch(book: Book) -> float:
    """The ratio of FFT's time to the best other legacy algorithm's at batch 1, over that at batch 256; 5x5 filters."""
    costs = book.of("float32")
    behind = fastest_ms(costs, FFTS) / fastest_ms(costs, [name for name in LEGACY if name not in FFTS])
    first, last = (behind[is_where(costs, filters=[5], batches=[n])] for n in (1, 256))
    ones = np.ones(1)
    return mean_ratio(first, np.broadcast_to(ones, first.shape)) / mean_ratio(last, np.broadcast_to(ones, last.shape))


def share_above_workspace(costs: Costs) -> float:
    """The share of attempts at legacy algorithms that ended because they need more workspace than the limit."""
    columns = [place for place, name in enumerate(costs.variants) if name in LEGACY]
    refused, times = costs.is_refused[:, columns], costs.time_ms[:, columns]
    is_above = refused & (np.nan_to_num(costs.workspace_bytes[:, columns]) > DEFAULT_WORKSPACE_LIMIT_BYTES)
    tried = is_above | np.isfinite(times)
    return float(is_above.sum() / tried.sum()) if tried.any() else math.nan


def ratio_of(book: Book, above: str, below: str) -> float:
    """Time of one of our kernels over that of another in float32, geometric mean of the 602 where both were timed."""
    costs = book.of("float32")
    known = [costs.variants.index(name) for name in (above, below) if name in costs.variants]
    if len(known) < 2:
        return math.nan
    timed = ~costs.is_pruned[:, known].any(axis=1)
    times = costs.time_ms[timed][:, known]
    return mean_ratio(*np.where(np.isnan(times), np.inf, times).T)


def of_method(*methods: Algorithm) -> list[str]:
    """Our variants of some methods."""
    return [variant for variant in OURS if VARIANTS[variant].algorithm in methods]


def direct_beats_winograd(book: Book, *, is_deep: bool) -> float:
    """In which share of the course's input or feature layers our direct kernels beat our Winograd ones."""
    costs = book.experiments()
    rows = np.array([p.r == 3 and (p.c > 3) == is_deep and p.h <= 1024 and p.c > 1 for p in costs.problems], dtype=bool)
    direct_ms, winograd_ms = (fastest_ms(costs, of_method(m))[rows] for m in (Algorithm.DIRECT, Algorithm.WINOGRAD))
    return share(direct_ms < winograd_ms)


def sweep(costs: Costs, variants: Sequence[str]) -> dict[int, float]:
    """Time of the fastest of some variants by filter size, on the course's plane of 512x512; ms."""
    times_ms = fastest_ms(costs, variants)
    return {p.r: float(t) for p, t in zip(costs.problems, times_ms, strict=True) if (p.h, p.c, p.k) == (512, 1, 1)}


def crossover(book: Book) -> float:
    """The smallest filter of the course's sweep from which on FFT is faster than direct."""
    costs = book.experiments()
    direct_ms, fft_ms = (sweep(costs, of_method(m)) for m in (Algorithm.DIRECT, Algorithm.FFT))
    slower = [size for size in direct_ms if not fft_ms[size] < direct_ms[size]]
    faster = [size for size in direct_ms if size > max(slower, default=0)]
    return float(min(faster, default=math.nan))


def spread_of_fft(book: Book) -> float:
    """FFT's longest time over its shortest in the course's sweep of the filter."""
    times_ms = [time for time in sweep(book.experiments(), of_method(Algorithm.FFT)).values() if math.isfinite(time)]
    return max(times_ms) / min(times_ms) if times_ms else math.nan


def share(flags: np.ndarray) -> float:
    return float(np.mean(flags)) if len(flags) else math.nan


def _shape(problem: ConvProblem) -> tuple[int, ...]:
    return problem.n, problem.r, *(problem.h, problem.w, problem.k, problem.c)
