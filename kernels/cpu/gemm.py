"""Convolution as a matrix product: im2col into columns, then BLAS.

y (K, P·Q) = weight (K, gemm_k) × columns (gemm_k, P·Q), for a band of output rows at a time so that the columns are
still in cache when BLAS reads them. The threads share many bands, or the filters or columns of a single band. A 1×1
filter needs no columns: x is that matrix already.

NaN and infinities spread as IEEE 754 says; padding zeros are multiplied like any other input.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cpu.epilogue import Output
from conv_advisor.kernels.cpu.plans import Plan
from conv_advisor.kernels.cpu.tensors import Array, Run, allocate, copy, nchw
from conv_advisor.kernels.cpu.threads import Threads, one_blas_thread


def prepare(problem: ConvProblem, plan: Plan, threads: Threads) -> Run:
    """Allocate scratch; the result computes y from x, weight, and the tensors that the epilogue adds."""
    scratch = allocate(plan)
    groups, filters, depth = problem.groups, problem.gemm_n, problem.gemm_k
    if "padded" in scratch:
        inside = scratch["padded"][:, problem.pad_h :, problem.pad_w :][:, : problem.h, : problem.w]
        windows = _windows(problem, scratch["padded"])
        slots = len(scratch["columns"])
    alone = Threads(1)

    def run(x: Array, weight: Array, y: Array, bias: Array | None, residual: Array | None) -> None:
        x, output = nchw(problem, x), Output.of(problem, y, bias, residual)
        if "weight" in scratch:
            widened = scratch["weight"].reshape(problem.k, -1, problem.r, problem.s)
            copy(nchw(problem, weight), widened, threads)
        matrix = scratch.get("weight", weight).reshape(groups, filters, depth)
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
            for image in range(problem.n):
                _convolve_image(x[image], matrix, output.images(image))

    def _convolve_image(x: Array, matrix: Array, output: Output) -> None:
        if "padded" not in scratch:
            _multiply(matrix, x.reshape(groups, depth, -1), output.y.reshape(groups, filters, -1), threads)
            output.write(output.y, threads)
            return
        copy(x, inside, threads)

        def convolve_slots(first: int, last: int, slot_threads: Threads = alone) -> None:
            for top in range(problem.p * first // slots, problem.p * last // slots, plan.rows):
                bottom = min(top + plan.rows, problem.p * last // slots)
                band = slice(top, bottom)
                _convolve_band(windows[:, :, :, band], matrix, output.rows(band), first, slot_threads)

        if slots > 1:
            threads.over(slots, problem.flops // problem.n, convolve_slots)
        else:
            convolve_slots(0, 1, threads)

    def _convolve_band(window: Array, matrix: Array, output: Output, slot: int, slot_threads: Threads) -> None:
        y = output.y
        columns = scratch["columns"][slot, : window.size].reshape(window.shape)
        copy(window, columns, slot_threads)
        shape = (groups, filters, y[0].size)
        if "product" in scratch:
            product = scratch["product"][slot, : y.size].reshape(shape)
        else:
            # A band of whole rows: each filter's part of y is contiguous, one plane apart from the next filter's.
            product = as_strided(y, shape, (y.strides[0] * filters, y.strides[0], y.itemsize))
        _multiply(matrix, columns.reshape(groups, depth, -1), product, slot_threads)
        output.write(product.reshape(y.shape) if "product" in scratch else y, slot_threads)

    return run


def _multiply(matrix: Array, columns: Array, out: Array, threads: Threads) -> None:
    flops = 2 * out.size * columns.shape[1]
    if out.shape[1] >= out.shape[2]:
        threads.over(
            out.shape[1],
            flops,
            lambda first, last: np.matmul(matrix[:, first:last], columns, out=out[:, first:last]),
        )
    else:
        threads.over(
            out.shape[2],
            flops,
            lambda first, last: np.matmul(matrix, columns[..., first:last], out=out[..., first:last]),
        )


def _windows(problem: ConvProblem, padded: Array) -> Array:
    """The inputs of every product: a view of the padded planes (C, H, W) as (C, R, S, P, Q)."""
    plane, row, element = padded.strides
    return as_strided(
        padded,
        (problem.c, problem.r, problem.s, problem.p, problem.q),
        (
            plane,
            row * problem.dilation_h,
            element * problem.dilation_w,
            row * problem.stride_h,
            element * problem.stride_w,
        ),
        writeable=False,
    )
