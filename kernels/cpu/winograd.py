"""Winograd F(2×2, 3×3): 16 products where the definition takes 36.

Tiles of 4×4 inputs, two apart, give 2×2 outputs: y = Aᵀ [ (G w Gᵀ) ⊙ (Bᵀ x B) ] A, the product in the middle summed
over channels as 16 matrix products (K, C) × (C, tiles). x is first copied into its four phases of stride 2,
zero-padded, so that element (i, j) of all tiles, rows joined, is one vector without gaps; each row of tiles has one
tile more than it needs.

A NaN or an infinity in the input spreads over all four outputs of every tile that sees it, and an infinity turns into
NaN, because each transformed element is a difference of inputs.
"""

from __future__ import annotations

import numpy as np

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cpu.compile import FLOATS, FLOATS_4D, INT, OUT_FLOATS, compiled, ints
from conv_advisor.kernels.cpu.epilogue import Output
from conv_advisor.kernels.cpu.plans import LANES, Plan, winograd_tiles
from conv_advisor.kernels.cpu.tensors import Array, Run, allocate, copy, flat, nchw, split_phases
from conv_advisor.kernels.cpu.threads import Threads, one_blas_thread

_BT = ((0, 2, -1), (1, 2, 1), (2, 1, -1), (1, 3, -1))
"""Rows of Bᵀ: first element, second element, and the sign of the second."""


def prepare(problem: ConvProblem, plan: Plan, threads: Threads) -> Run:
    """Allocate scratch; the result computes y from x, weight, and the tensors that the epilogue adds."""
    scratch = allocate(plan)
    rows, columns = winograd_tiles(problem)
    planes = scratch["planes"][:-LANES].reshape(plan.images, problem.c, 2, 2, rows + 1, columns)
    u = scratch["weight"]
    alone = Threads(1)

    def run(x: Array, weight: Array, y: Array, bias: Array | None, residual: Array | None) -> None:
        x, weight, output = nchw(problem, x), nchw(problem, weight), Output.of(problem, y, bias, residual)
        if "taps" in scratch:
            copy(weight, scratch["taps"], threads)
            weight = scratch["taps"]
        flat_u = u.reshape(-1)
        threads.over(problem.k, 40 * u[0].size, lambda first, last: _transform_weight(weight, flat_u, first, last))
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, problem.n, plan.images):
                images = slice(first, first + plan.images)
                _convolve_images(x[images], output.images(images))

    def _convolve_images(x: Array, output: Output) -> None:
        split_phases(x, planes[: len(x)], (problem.pad_h, problem.pad_w), ([0, 1], [0, 1]), threads)
        sums = scratch["y"][: len(x)] if "y" in scratch else output.y
        for top in range(0, rows, plan.rows):
            _convolve_band(sums, output, top, min(plan.rows, rows - top))

    def _convolve_band(sums: Array, output: Output, top: int, count: int) -> None:
        images, depth, tiles = len(sums), problem.c, len(sums) * count * columns
        v = scratch["tiles"].reshape(-1)[: 16 * depth * tiles]
        m = scratch["products"].reshape(-1)[: 16 * problem.k * tiles]
        out, strides = flat(sums)
        band = slice(2 * top, 2 * (top + count))
        sizes = (images, problem.k, problem.p, problem.q, columns)

        def transform(first: int, last: int) -> None:
            _transform_input(scratch["planes"], v, (images, depth, rows, columns), (top, count), first, last)

        def multiply(first: int, last: int) -> None:
            products = m.reshape(16, -1, tiles)[:, first:last]
            np.matmul(u[:, first:last], v.reshape(16, depth, tiles), out=products)
            _transform_output(m, out, strides, sizes, (top, count), first, last)
            part = output.filters(slice(first, last)).rows(band)
            part.write(part.y if sums is output.y else sums[:, first:last, band], alone)

        threads.over(depth, 48 * depth * tiles, transform)
        threads.over(problem.k, 32 * problem.k * (depth + 1) * tiles, multiply)

    return run


@compiled(FLOATS, FLOATS, FLOATS, *[OUT_FLOATS] * 4)
def _three_to_four(w0: Array, w1: Array, w2: Array, u0: Array, u1: Array, u2: Array, u3: Array) -> None:
    """Multiply by G: three vectors to four."""
    half = np.float32(0.5)
    u0[:] = w0
    for c in range(len(w0)):
        u1[c] = half * (w0[c] + w1[c] + w2[c])
    for c in range(len(w0)):
        u2[c] = half * (w0[c] - w1[c] + w2[c])
    u3[:] = w2


@compiled(FLOATS_4D, OUT_FLOATS, INT, INT)
def _transform_weight(weight: Array, u: Array, first: int, last: int) -> None:
    """U = G w Gᵀ for the filters from first to last; u is (16, K, C)."""
    filters, depth = weight.shape[:2]
    taps = np.empty((3, 3, depth), np.float32)
    rows = np.empty((3, 4, depth), np.float32)
    for k in range(first, last):
        for c in range(depth):
            for r in range(3):
                for s in range(3):
                    taps[s, r, c] = weight[k, c, r, s]
        for s in range(3):
            _three_to_four(taps[s, 0], taps[s, 1], taps[s, 2], rows[s, 0], rows[s, 1], rows[s, 2], rows[s, 3])
        for i in range(4):
            u0 = u[(4 * i * filters + k) * depth :][:depth]
            u1 = u[((4 * i + 1) * filters + k) * depth :][:depth]
            u2 = u[((4 * i + 2) * filters + k) * depth :][:depth]
            u3 = u[((4 * i + 3) * filters + k) * depth :][:depth]
            _three_to_four(rows[0, i], rows[1, i], rows[2, i], u0, u1, u2, u3)


@compiled(FLOATS, OUT_FLOATS, ints(4), ints(2), INT, INT)
def _transform_input(
    planes: Array, v: Array, sizes: tuple[int, int, int, int], band: tuple[int, int], first: int, last: int
) -> None:
    """V = Bᵀ x B for the channels from first to last; v is (16, C, tiles), sizes are images, channels, rows, columns.

    The band is its first row of tiles and its number of rows.
    """
    images, channels, rows, columns = sizes
    top, count = band
    plane = (rows + 1) * columns
    length = count * columns
    for c in range(first, last):
        for image in range(images):
            base = (image * channels + c) * 4 * plane + top * columns
            for i in range(4):
                i0, i1, sign_i = _BT[i]
                for j in range(4):
                    j0, j1, sign_j = _BT[j]
                    row0 = base + i0 % 2 * 2 * plane + i0 // 2 * columns
                    row1 = base + i1 % 2 * 2 * plane + i1 // 2 * columns
                    column0 = j0 % 2 * plane + j0 // 2
                    column1 = j1 % 2 * plane + j1 // 2
                    x00, x01 = planes[row0 + column0 :][:length], planes[row0 + column1 :][:length]
                    x10, x11 = planes[row1 + column0 :][:length], planes[row1 + column1 :][:length]
                    start = (((4 * i + j) * channels + c) * images + image) * length
                    out = v[start : start + length]
                    si, sj = np.float32(sign_i), np.float32(sign_j)
                    for t in range(length):
                        out[t] = (x00[t] + sj * x01[t]) + si * (x10[t] + sj * x11[t])


@compiled(FLOATS, OUT_FLOATS, ints(4), ints(5), ints(2), INT, INT)
def _transform_output(
    m: Array,
    y: Array,
    strides: tuple[int, int, int, int],
    sizes: tuple[int, int, int, int, int],
    band: tuple[int, int],
    first: int,
    last: int,
) -> None:
    """Y = Aᵀ M A for the filters from first to last; m is (16, K, tiles), sizes are images, filters, p, q, columns."""
    image_stride, filter_stride, row_stride, stride = strides
    images, filters, p, q, columns = sizes
    top, count = band
    length = count * columns
    step = 4 * filters * images * length
    # Row a of Aᵀ times column j of M, for all tiles: sums[a, j].
    sums = np.empty((2, 4, length), np.float32)
    for k in range(first, last):
        for image in range(images):
            for j in range(4):
                start = ((j * filters + k) * images + image) * length
                m0, m1 = m[start:][:length], m[start + step :][:length]
                m2, m3 = m[start + 2 * step :][:length], m[start + 3 * step :][:length]
                upper, lower = sums[0, j], sums[1, j]
                for t in range(length):
                    upper[t] = m0[t] + m1[t] + m2[t]
                for t in range(length):
                    lower[t] = m1[t] - m2[t] - m3[t]
            for row in range(2 * top, min(p, 2 * (top + count))):
                t0 = (row // 2 - top) * columns
                s0, s1 = sums[row % 2, 0, t0:], sums[row % 2, 1, t0:]
                s2, s3 = sums[row % 2, 2, t0:], sums[row % 2, 3, t0:]
                place = image * image_stride + k * filter_stride + row * row_stride
                if stride == 1:
                    out = y[place : place + q]
                    for t in range(q // 2):
                        out[2 * t] = s0[t] + s1[t] + s2[t]
                        out[2 * t + 1] = s1[t] - s2[t] - s3[t]
                else:
                    for t in range(q // 2):
                        y[place + 2 * t * stride] = s0[t] + s1[t] + s2[t]
                        y[place + (2 * t + 1) * stride] = s1[t] - s2[t] - s3[t]
                if q % 2 == 1:
                    t = q // 2
                    y[place + (q - 1) * stride] = s0[t] + s1[t] + s2[t]
