"""The features that a tree looks at: numbers computed from a problem alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from struct import Struct
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.table import SIZES, output_plane, sizes_of

FEATURES: Final = (
    "dtype",
    "is_nhwc",
    "log2_n",
    "log2_c",
    "log2_h",
    "log2_w",
    "log2_k",
    "log2_r",
    "log2_s",
    "log2_groups",
    "stride",
    "dilation",
    "log2_pixels",
    "log2_gemm_m",
    "log2_gemm_n",
    "log2_gemm_k",
    "log2_flops",
    "log2_bytes",
    "log2_x_bytes",
    "log2_weight_bytes",
    "log2_y_bytes",
    "log2_intensity",
    "log2_filters_per_depth",
    "log2_x_per_weight",
    "log2_tiles_64",
    "log2_tiles_128",
    "log2_steps",
    "fill_m",
    "fill_n_64",
    "fill_n_128",
    "fill_winograd",
    "fill_fft",
    "aligned_c",
    "aligned_k",
    "aligned_pixels",
)
"""Names in order; the order is part of the format of a trained tree, so a change retires every tree.

dtype : position in `DTYPES`. pixels : p q. intensity : flops a byte. filters_per_depth : k / c. x_per_weight : bytes of
x to bytes of the weight. tiles_T : output tiles of T x T of the implicit GEMM, all groups. steps : gemm_k in tiles of
32, over the tiles of 64. fill_* : useful share of padded work, for GEMM tiles of 128 rows, of 64 and 128 columns,
Winograd tiles of 2 x 2 outputs, and FFT tiles of 32 x 32 inputs. aligned_* : largest power of two up to 64 that
divides, as log2; trees trained when it was up to 8 decide as they did, since no threshold of theirs is above 3.
"""

DTYPES: Final = (DType.FLOAT32, DType.TF32, DType.FLOAT16, DType.BFLOAT16)
"""The code of a dtype is its place here."""

Kind = tuple[DType, Layout]

_DTYPE_CODES: Final = {dtype: (float(code), dtype.itemsize_bytes) for code, dtype in enumerate(DTYPES)}
"""As floats, like the table of alignments: a walk compares a float in half the time of an integer."""
_NHWC: Final = Layout.NHWC  # before Python 3.12 a class's member is looked up as slowly as two logarithms are taken
_FLOAT32: Final = Struct(f"{len(FEATURES)}f")
MOST_ALIGNED: Final = 64
"""Larger powers of two that divide a size count as this one."""

_ALIGNMENT: Final = tuple(float((size & -size).bit_length() - 1) for size in (MOST_ALIGNED, *range(1, MOST_ALIGNED)))
"""log2 of the largest power of two up to `MOST_ALIGNED` that divides a size, by the size modulo `MOST_ALIGNED`."""
_ALIGNMENTS: Final = np.array(_ALIGNMENT)
_ITEMSIZES: Final = np.array([dtype.itemsize_bytes for dtype in DTYPES])


def features(problem: ConvProblem) -> tuple[float, ...]:
    """The values of `FEATURES`, each rounded to float32 as scikit-learn does before it compares.

    Parameters
    ----------
    problem : ConvProblem

    Returns
    -------
    tuple of float, as long as `FEATURES`
    """
    return _FLOAT32.unpack(_FLOAT32.pack(*describe(problem)[0]))


def describe(problem: ConvProblem) -> tuple[tuple[float, ...], float, int]:
    """`features` before they are rounded, and the operations and bytes of the problem, computed on the way."""
    code, itemsize = _DTYPE_CODES[problem.dtype]
    is_nhwc = 1.0 if problem.layout is _NHWC else 0.0
    return _described(problem, code, itemsize, is_nhwc, log2, _larger, _ALIGNMENT)


def _larger(one: int, other: int) -> int:
    """The larger of two numbers, in half the time of `max`."""
    return one if one > other else other


def _described(
    of: Any, code: Any, itemsize: Any, is_nhwc: Any, log2: Any, larger: Any, alignment: Any
) -> tuple[tuple[Any, ...], Any, Any]:
    """`describe` for one problem, or for many whose sizes are arrays, with the functions that take either.

    Operations are a float, since these products overflow arrays of integers: exact below 2**53, and rounded above it as
    Python rounds where it divides integers or takes logarithms.

    Notes
    -----
    One body that calls only these: advice on a layer that nobody has asked about spends a third of its time here.
    """
    n, c, h, w, k, r, s, p, q, groups = of.n, of.c, of.h, of.w, of.k, of.r, of.s, of.p, of.q, of.groups
    pixels = p * q
    gemm_m, gemm_n, gemm_k = n * pixels, k // groups, c // groups * r * s
    outputs = gemm_m * k
    x_bytes, weight_bytes, y_bytes = n * c * h * w * itemsize, k * gemm_k * itemsize, outputs * itemsize
    flops, n_bytes = 2.0 * outputs * gemm_k, x_bytes + weight_bytes + y_bytes
    log_flops, log_bytes = log2(flops), log2(n_bytes)
    m_128, n_64, n_128 = -(-gemm_m // 128), -(-gemm_n // 64), -(-gemm_n // 128)
    tiles_64, tiles_128 = -(-gemm_m // 64) * n_64 * groups, m_128 * n_128 * groups
    rows, columns = larger(33 - r, 1), larger(33 - s, 1)
    values = (
        code,
        is_nhwc,
        log2(n),
        log2(c),
        log2(h),
        log2(w),
        log2(k),
        log2(r),
        log2(s),
        log2(groups),
        larger(of.stride_h, of.stride_w),
        larger(of.dilation_h, of.dilation_w),
        log2(pixels),
        log2(gemm_m),
        log2(gemm_n),
        log2(gemm_k),
        log_flops,
        log_bytes,
        log2(x_bytes),
        log2(weight_bytes),
        log2(y_bytes),
        log_flops - log_bytes,
        log2(k / c),
        log2(x_bytes / weight_bytes),
        log2(tiles_64),
        log2(tiles_128),
        log2(-(-gemm_k // 32) / tiles_64),
        gemm_m / (m_128 * 128),
        gemm_n / (n_64 * 64),
        gemm_n / (n_128 * 128),
        p / (p + p % 2) * (q / (q + q % 2)),
        p / (-(-p // rows) * rows) * (q / (-(-q // columns) * columns)),
        alignment[c % MOST_ALIGNED],
        alignment[k % MOST_ALIGNED],
        alignment[h * w % MOST_ALIGNED],
    )
    return values, flops, n_bytes


def feature_matrix(problems: Sequence[ConvProblem]) -> np.ndarray:
    """`features` of many problems.

    Returns
    -------
    float32 array of shape (n_problems, n_features)
    """
    return Quantities(sizes_of(problems), *codes_of(problems)).features()


def kinds_of(problems: Sequence[ConvProblem]) -> dict[Kind, np.ndarray]:
    """Indices of the problems of each dtype and layout, in the order of their names."""
    by_kind: dict[Kind, list[int]] = {}
    for place, problem in enumerate(problems):
        by_kind.setdefault((problem.dtype, problem.layout), []).append(place)
    return {kind: np.array(places) for kind, places in sorted(by_kind.items())}


def code_of(dtype: DType, layout: Layout) -> tuple[int, bool]:
    """The dtype's place in `DTYPES`, and whether the layout is NHWC."""
    return DTYPES.index(dtype), layout is Layout.NHWC


def codes_of(problems: Sequence[ConvProblem]) -> tuple[np.ndarray, np.ndarray]:
    """`code_of` each problem's dtype and layout, as arrays."""
    dtypes = np.array([_DTYPE_CODES[problem.dtype][0] for problem in problems], np.int64)
    return dtypes, np.array([problem.layout is Layout.NHWC for problem in problems], bool)


class Quantities:
    """`describe` of many problems.

    Parameters
    ----------
    sizes : int64 array of shape (N, 16)
        As in `data.table`.
    dtype : int or int array of shape (N,)
        Places in `DTYPES`.
    is_nhwc : bool or bool array of shape (N,)

    Attributes
    ----------
    flops : float64 array of shape (N,)
    bytes : int64 array of shape (N,)
    """

    def __init__(self, sizes: np.ndarray, dtype: int | np.ndarray, is_nhwc: bool | np.ndarray) -> None:
        p, q = output_plane(sizes)
        columns = SimpleNamespace(**dict(zip(SIZES, sizes.T, strict=True)), p=p, q=q)
        self._values, self.flops, self.bytes = _described(
            columns, dtype, _ITEMSIZES[dtype], is_nhwc, np.log2, np.maximum, _ALIGNMENTS
        )

    def roofline_ms(
        self, flops_per_ms: float | np.ndarray, bytes_per_ms: float | np.ndarray, least_ms: float | np.ndarray
    ) -> np.ndarray:
        """`models.costs.roofline_ms` of every problem, by one roofline for all or one for each."""
        longest: np.ndarray = np.maximum(np.maximum(self.flops / flops_per_ms, self.bytes / bytes_per_ms), least_ms)
        return longest

    def features(self) -> np.ndarray:
        """`features` of every problem, float32 array of shape (N, n_features)."""
        matrix = np.empty((len(FEATURES), len(self.flops)), np.float32)
        for row, values in zip(matrix, self._values, strict=True):
            row[:] = values
        return matrix.T
