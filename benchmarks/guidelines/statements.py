"""What the seed papers found, as numbers: each measured again, with the bounds within which it still holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.guidelines.findings import (
    FFTS,
    WINOGRADS,
    Book,
    crossover,
    cuconv_speedups,
    direct_beats_winograd,
    fft_gain_with_batch,
    half_against_full,
    margin_over_next,
    mean_speedup,
    rank_of,
    ratio_of,
    share,
    share_above_workspace,
    share_behind,
    share_fastest,
    spread_of_fft,
)
from benchmarks.guidelines.following import Verdict, verdict_of
from benchmarks.guidelines.study import GEMM, PRECOMPUTED, WINOGRAD_NONFUSED
from benchmarks.guidelines.study import with_tensor_cores as tc
from benchmarks.measured import is_where
from conv_advisor.data.errors import NotEnoughData
from conv_advisor.models.costs import Costs


def at_least(claimed: float) -> Callable[[float], Verdict]:
    """Holds from nine tenths of the claimed number on, in part from half of it on."""
    return lambda value: verdict_of(value, 0.9 * claimed, 0.5 * claimed)


def at_most(holds_to: float, in_part_to: float) -> Callable[[float], Verdict]:
    """Holds up to one bound, in part up to another."""
    return lambda value: verdict_of(-value, -holds_to, -in_part_to)


def about(claimed: float) -> Callable[[float], Verdict]:
    """Holds within a factor of 1.25, in part within one of 2."""
    return lambda value: verdict_of(min(value / claimed, claimed / value), 1 / 1.25, 1 / 2)


@dataclass(frozen=True)
class Statement:
    """One finding of a paper.

    Parameters
    ----------
    source, quote : str
    said : str
        The paper's number; where it uses words, the number that we take for them.
    measure : callable
        The same number from what was measured here; NaN, or NotEnoughData, where it was not.
    judge : callable
        The verdict on it.
    unit : str
        ``%`` for a share, ``×`` for a ratio, or nothing.
    """

    source: str
    quote: str
    said: str
    measure: Callable[[Book], float]
    judge: Callable[[float], Verdict]
    unit: str = "%"

    def value(self, book: Book) -> float:
        """What was measured; NaN where nothing was."""
        try:
            return self.measure(book)
        except NotEnoughData:
            return math.nan


def _rows(costs: Costs, filters: Sequence[int], batches: Sequence[int] = ()) -> np.ndarray:
    return is_where(costs, filters=filters, batches=batches)


def _fastest(
    dtype: str, variants: Sequence[str], filters: Sequence[int], batches: Sequence[int] = ()
) -> Callable[[Book], float]:
    return lambda book: share_fastest(book.of(dtype), variants, _rows(book.of(dtype), filters, batches))


_STUDY: Final = "cuDNN study, "
_LARGE: Final = (64, 128, 256)


def _half_faster(claimed: int, which: str, filters: Sequence[int]) -> Statement:
    return Statement(
        _STUDY + "III-C",
        f"16-bit FP is faster than 32-bit FP in {claimed} % of the {which}",
        f"{claimed} %",
        lambda book: half_against_full(book, filters),
        at_least(claimed / 100),
    )


STATEMENTS: Final = (
    Statement(
        _STUDY + "III-A",
        "the parameter which influences the most on performance is the filter size (its place among five)",
        "1",
        lambda book: rank_of(book.of("float32"), "filter size"),
        at_most(1, 2),
        "",
    ),
    Statement(
        _STUDY + "abstract",
        "… and the number of inputs (the place of the batch among the other four, filter size known)",
        "1",
        lambda book: rank_of(book.of("float32"), "batch", is_beside_filter=True),
        at_most(1, 2),
        "",
    ),
    Statement(
        _STUDY + "III-A.1",
        "1×1: GEMM-impl-precomp is the fastest in 72.4 % of the cases",
        "72.4 %",
        _fastest("float32", [PRECOMPUTED], [1]),
        at_least(0.724),
    ),
    Statement(
        _STUDY + "III-A.1",
        "1×1: the explicit variant of GEMM is usually over 20 % slower than the fastest",
        "most",
        lambda book: share_behind(book.of("float32"), [GEMM], _rows(book.of("float32"), [1]), 1.2),
        lambda value: verdict_of(value, 0.5, 0.25),
    ),
    Statement(
        _STUDY + "III-A.1",
        "1×1: the two FFT variants are not competitive (they are the fastest in)",
        "0 %",
        _fastest("float32", FFTS, [1]),
        at_most(0.01, 0.05),
    ),
    Statement(
        _STUDY + "III-A.2",
        "3×3: the Winograd variants are the fastest in 74.6 % of the configurations",
        "74.6 %",
        _fastest("float32", WINOGRADS, [3]),
        at_least(0.746),
    ),
    Statement(
        _STUDY + "III-A.3",
        "5×5: Winograd non-fused is the fastest in 57.1 % of the configurations",
        "57.1 %",
        _fastest("float32", [WINOGRAD_NONFUSED], [5]),
        at_least(0.571),
    ),
    Statement(
        _STUDY + "III-A.3",
        "5×5, batch 64 and larger: for most the FFT variants show the highest performance",
        "most",
        _fastest("float32", FFTS, [5], _LARGE),
        lambda value: verdict_of(value, 0.5, 0.25),
    ),
    Statement(
        _STUDY + "II-C.2",
        "the improvement of FFT increases with the number of inputs (5×5: its ratio at batch 1 over that at 256)",
        "> 1",
        fft_gain_with_batch,
        lambda value: verdict_of(value, 1.05, 0.95),
        "×",
    ),
    Statement(
        _STUDY + "III-B",
        "16 bit, 1×1, batch 32 or larger: GEMM-impl-precomp-TC is always the fastest",
        "100 %",
        _fastest("float16", [tc(PRECOMPUTED)], [1], (32, *_LARGE)),
        at_least(1.0),
    ),
    Statement(
        _STUDY + "III-B",
        "… with an average speedup of 1.2× over the following variant",
        "1.2×",
        lambda book: margin_over_next(
            book.of("float16"), tc(PRECOMPUTED), _rows(book.of("float16"), [1], (32, *_LARGE))
        ),
        at_least(1.2),
        "×",
    ),
    _half_faster(76, "cases", (1, 3, 5)),
    _half_faster(92, "3×3", (3,)),
    _half_faster(70, "1×1", (1,)),
    Statement(
        _STUDY + "III-C",
        "… and only in 46 % of the 5×5",
        "46 %",
        lambda book: half_against_full(book, [5]),
        about(0.46),
    ),
    Statement(
        _STUDY + "III",
        "limiting the temporary allocation to 1 GB affects < 4 % of the algorithm/configuration cases (float32)",
        "< 4 %",
        lambda book: share_above_workspace(book.of("float32")),
        at_most(0.04, 0.08),
    ),
    Statement(
        "cuConv, 4.1",
        "our implementation is faster than the best cuDNN variant in 8.31 % of the configurations",
        "8.31 %",
        lambda book: share(cuconv_speedups(book) > 1),
        at_least(0.0831),
    ),
    Statement(
        "cuConv, 4.1",
        "1×1, batch 1: the average speedup is 1.23×",
        "1.23×",
        lambda book: mean_speedup(cuconv_speedups(book, [1], [1])),
        at_least(1.23),
        "×",
    ),
    Statement(
        "cuConv, 4.1",
        "… with a maximum of 2.29×",
        "2.29×",
        lambda book: float(cuconv_speedups(book, [1], [1]).max(initial=0)) or math.nan,
        at_least(2.29),
        "×",
    ),
    Statement(
        "cuConv, 4.1",
        "5×5, batch 1: an average speedup of 1.36×",
        "1.36×",
        lambda book: mean_speedup(cuconv_speedups(book, [5], [1])),
        at_least(1.36),
        "×",
    ),
    Statement(
        "cuConv, 4.1",
        "this advantage is reduced as the batch size increases (its speedup at batch 1 over that at 16)",
        "> 1",
        lambda book: (
            mean_speedup(cuconv_speedups(book, batches=[1])) / mean_speedup(cuconv_speedups(book, batches=[16]))
        ),
        lambda value: verdict_of(value, 1.05, 0.95),
        "×",
    ),
    Statement(
        "course, 3.1",
        "input layers, 3×3: CUDA's direct implementation outperformed the Winograd implementation",
        "100 %",
        lambda book: direct_beats_winograd(book, is_deep=False),
        at_least(1.0),
    ),
    Statement(
        "course, 3.2",
        "feature layers: so it did, attaining ×17 where Winograd attained ×3 over the serial code",
        "100 %",
        lambda book: direct_beats_winograd(book, is_deep=True),
        at_least(1.0),
    ),
    Statement(
        "course, 3.3",
        "for large filters FFT is better, but for small filters direct is still faster (FFT from this size on)",
        "64",
        crossover,
        about(64),
        "",
    ),
    Statement(
        "course, 3.3",
        "filter size is not a direct factor in FFT's complexity (its longest time over its shortest)",
        "1.6×",
        spread_of_fft,
        at_most(2.0, 4.0),
        "×",
    ),
    Statement(
        "Convolutions in CUDA",
        "filter in constant memory: better (naive over constant)",
        "> 1",
        lambda book: ratio_of(book, "cuda.direct_naive", "cuda.direct_constant"),
        lambda value: verdict_of(value, 1.05, 0.95),
        "×",
    ),
    Statement(
        "Convolutions in CUDA",
        "the bigger win is reading each input once, by a tile with its halo (constant over tiled)",
        "> 1",
        lambda book: ratio_of(book, "cuda.direct_constant", "cuda.direct_tiled_halo"),
        lambda value: verdict_of(value, 1.05, 0.95),
        "×",
    ),
    Statement(
        "Convolutions in CUDA",
        "the halo left to the cache: a trade-off (full halo over cached)",
        "≈ 1",
        lambda book: ratio_of(book, "cuda.direct_tiled_halo", "cuda.direct_tiled_cached"),
        about(1.0),
        "×",
    ),
)
