"""What the tree looks at: numbers computed from a problem alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from struct import Struct
from typing import Final

import numpy as np

from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.table import output_plane, sizes_of

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

_DTYPE_CODES: Final = {dtype: (code, dtype.itemsize_bytes) for code, dtype in enumerate(DTYPES)}
_FLOAT32: Final = Struct(f"{len(FEATURES)}f")
MOST_ALIGNED: Final = 64
"""Larger powers of two that divide a size are not told apart."""

_ALIGNMENT: Final = tuple((size & -size).bit_length() - 1 for size in (MOST_ALIGNED, *range(1, MOST_ALIGNED)))
"""log2 of the largest power of two up to `MOST_ALIGNED` that divides, by the size modulo that."""


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


def describe(problem: ConvProblem) -> tuple[tuple[float, ...], int, int]:
    """`features` before they are rounded, and the operations and bytes of the problem, computed on the way.

    Notes
    -----
    One body without calls but of log2: advice on a layer that nobody has asked for spends a third of its time here.
    """
    n, c, h, w, k, r, s = problem.n, problem.c, problem.h, problem.w, problem.k, problem.r, problem.s
    stride_h, stride_w = problem.stride_h, problem.stride_w
    dilation_h, dilation_w = problem.dilation_h, problem.dilation_w
    groups, (code, itemsize) = problem.groups, _DTYPE_CODES[problem.dtype]
    p = (h + 2 * problem.pad_h - dilation_h * (r - 1) - 1) // stride_h + 1
    q = (w + 2 * problem.pad_w - dilation_w * (s - 1) - 1) // stride_w + 1
    gemm_m, gemm_n, gemm_k = n * p * q, k // groups, c // groups * r * s
    x_bytes, weight_bytes, y_bytes = n * c * h * w * itemsize, k * gemm_k * itemsize, gemm_m * k * itemsize
    flops, n_bytes = 2 * gemm_m * k * gemm_k, x_bytes + weight_bytes + y_bytes
    log_flops, log_bytes = log2(flops), log2(n_bytes)
    tiles_64, tiles_128 = -(-gemm_m // 64) * -(-gemm_n // 64), -(-gemm_m // 128) * -(-gemm_n // 128)
    rows, columns = max(33 - r, 1), max(33 - s, 1)
    pixels = h * w
    values = (
        code,
        problem.layout is Layout.NHWC,
        log2(n),
        log2(c),
        log2(h),
        log2(w),
        log2(k),
        log2(r),
        log2(s),
        log2(groups),
        stride_h if stride_h > stride_w else stride_w,
        dilation_h if dilation_h > dilation_w else dilation_w,
        log2(p * q),
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
        log2(tiles_64 * groups),
        log2(tiles_128 * groups),
        log2(-(-gemm_k // 32) / (tiles_64 * groups)),
        gemm_m / (-(-gemm_m // 128) * 128),
        gemm_n / (-(-gemm_n // 64) * 64),
        gemm_n / (-(-gemm_n // 128) * 128),
        p / (-(-p // 2) * 2) * (q / (-(-q // 2) * 2)),
        p / (-(-p // rows) * rows) * (q / (-(-q // columns) * columns)),
        _ALIGNMENT[c % MOST_ALIGNED],
        _ALIGNMENT[k % MOST_ALIGNED],
        _ALIGNMENT[pixels % MOST_ALIGNED],
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
    """The places of the problems of each dtype and layout, in the order of their names."""
    found: dict[Kind, list[int]] = {}
    for place, problem in enumerate(problems):
        found.setdefault((problem.dtype, problem.layout), []).append(place)
    return {kind: np.array(places) for kind, places in sorted(found.items())}


def code_of(dtype: DType, layout: Layout) -> tuple[int, bool]:
    """Its place in `DTYPES`, and whether it is NHWC."""
    return _DTYPE_CODES[dtype][0], layout is Layout.NHWC


def codes_of(problems: Sequence[ConvProblem]) -> tuple[np.ndarray, np.ndarray]:
    """`code_of` each problem's dtype and layout, as arrays."""
    dtypes = np.array([_DTYPE_CODES[problem.dtype][0] for problem in problems], np.int64)
    return dtypes, np.array([problem.layout is Layout.NHWC for problem in problems], bool)


class Quantities:
    """What features of many problems are made of, each an array.

    Flops are floats, since these products overflow integers: exact below 2**53, and above it rounded as Python rounds
    where it divides integers or takes logarithms.

    Parameters
    ----------
    sizes : int64 array of shape (N, 14)
        As in `data.table`.
    dtype : int or int array of shape (N,)
        Places in `DTYPES`.
    is_nhwc : bool or bool array of shape (N,)
    """

    def __init__(self, sizes: np.ndarray, dtype: int | np.ndarray, is_nhwc: bool | np.ndarray) -> None:
        self.dtype, self.is_nhwc, self.columns = dtype, is_nhwc, sizes.T
        n, c, h, w, k, r, s, *_, groups = sizes.T
        self.p, self.q = output_plane(sizes)
        self.gemm_m, self.gemm_n, self.gemm_k = n * self.p * self.q, k // groups, c // groups * r * s
        itemsize = np.array([dtype.itemsize_bytes for dtype in DTYPES])[dtype]
        self.x_bytes, self.weight_bytes = n * c * h * w * itemsize, k * self.gemm_k * itemsize
        self.y_bytes = self.gemm_m * k * itemsize
        self.bytes = self.x_bytes + self.weight_bytes + self.y_bytes
        self.flops = 2.0 * self.gemm_m * k * self.gemm_k

    def roofline_ms(
        self, flops_per_ms: float | np.ndarray, bytes_per_ms: float | np.ndarray, least_ms: float | np.ndarray
    ) -> np.ndarray:
        """`models.costs.roofline_ms` of every problem, by one roofline or each by its own."""
        found: np.ndarray = np.maximum(np.maximum(self.flops / flops_per_ms, self.bytes / bytes_per_ms), least_ms)
        return found

    def features(self) -> np.ndarray:
        """`features` of every problem, float32 array of shape (N, n_features)."""
        n, c, h, w, k, r, s, stride_h, stride_w, _, _, dilation_h, dilation_w, groups = self.columns
        p, q, gemm_m, gemm_n, gemm_k = self.p, self.q, self.gemm_m, self.gemm_n, self.gemm_k
        log_flops, log_bytes = np.log2(self.flops), np.log2(self.bytes)
        tiles_64, tiles_128 = (_tiles(gemm_m, tile) * _tiles(gemm_n, tile) * 1.0 * groups for tile in (64, 128))
        values = np.empty((len(FEATURES), len(n)), np.float64)
        values[0], values[1] = self.dtype, self.is_nhwc
        values[2:10] = np.log2(np.stack((n, c, h, w, k, r, s, groups)))
        values[10], values[11] = np.maximum(stride_h, stride_w), np.maximum(dilation_h, dilation_w)
        values[12:16] = np.log2(np.stack((p * q, gemm_m, gemm_n, gemm_k)))
        values[16], values[17] = log_flops, log_bytes
        values[18:21] = np.log2(np.stack((self.x_bytes, self.weight_bytes, self.y_bytes)))
        values[21] = log_flops - log_bytes
        values[22:27] = np.log2(
            np.stack((k / c, self.x_bytes / self.weight_bytes, tiles_64, tiles_128, _tiles(gemm_k, 32) / tiles_64))
        )
        values[27], values[28], values[29] = _fill(gemm_m, 128), _fill(gemm_n, 64), _fill(gemm_n, 128)
        values[30] = _fill(p, 2) * _fill(q, 2)
        values[31] = _fill(p, np.maximum(33 - r, 1)) * _fill(q, np.maximum(33 - s, 1))
        values[32], values[33], values[34] = _alignment(c), _alignment(k), _alignment(h * w)
        return values.T.astype(np.float32)


def _tiles(size: np.ndarray, tile: int) -> np.ndarray:
    return -(-size // tile)


def _fill(size: np.ndarray, tile: int | np.ndarray) -> np.ndarray:
    filled: np.ndarray = size / (-(-size // tile) * tile)
    return filled


def _alignment(size: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.log2(np.minimum(size & -size, MOST_ALIGNED))
    return found
