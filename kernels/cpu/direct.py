"""Direct convolution: every product of the definition, summed in its order.

x is copied once into zero-padded planes, one per phase of the stride. Each tap of the filter is then a constant offset
from the output, and a whole plane of outputs, rows joined, is one long vector: y[i] = Σ_j weight[j] ·
x[offset[j] + i] over the gemm_k channels and taps j. The outputs between two rows are computed and dropped. With four
filters and four taps at a time, 16 multiply-adds share 4 loads of x, and 4 loads and stores of partial sums that stay
in the L1 cache.

NaN and infinities spread as IEEE 754 says; padding zeros are multiplied like any other input.
"""

from __future__ import annotations

import numpy as np

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cpu.compile import FLOATS, INT, INTS, OUT_FLOATS, compiled, ints
from conv_advisor.kernels.cpu.epilogue import Output
from conv_advisor.kernels.cpu.plans import LANES, Plan, split_planes
from conv_advisor.kernels.cpu.tensors import Array, Run, allocate, copy, flat, nchw, split_phases
from conv_advisor.kernels.cpu.threads import Threads

_BLOCK = 512  # outputs that one call of a tile computes: 8 KiB of partial sums
_FILTERS = 4


def prepare(problem: ConvProblem, plan: Plan, threads: Threads) -> Run:
    """Allocate scratch; the result computes y from x, weight, and the tensors that the epilogue adds."""
    scratch = allocate(plan)
    rows, columns = split_planes(problem)
    image_shape = (problem.c, problem.stride_h, problem.stride_w, rows, columns)
    planes = scratch["planes"][:-LANES].reshape(plan.images, *image_shape)
    scratch["offsets"][:] = _offsets(problem, image_shape).ravel()
    phases = (
        _phases(problem.r, problem.dilation_h, problem.stride_h),
        _phases(problem.s, problem.dilation_w, problem.stride_w),
    )
    y_sizes = (problem.groups, problem.gemm_n, problem.p, problem.q)
    plane_sizes = (columns, planes[0].size, planes[0].size // problem.groups, LANES)
    tasks_an_image = _tasks_an_image(problem, columns)

    def run(x: Array, weight: Array, y: Array, bias: Array | None, residual: Array | None) -> None:
        if "weight" in scratch:
            widened = scratch["weight"].reshape(problem.k, -1, problem.r, problem.s)
            copy(nchw(problem, weight), widened, threads)
        taps = scratch.get("weight", weight).reshape(-1)
        output = Output.of(problem, y, bias, residual)
        for first in range(0, problem.n, plan.images):
            images = slice(first, first + plan.images)
            input_images, output_images = nchw(problem, x)[images], output.images(images)
            split_phases(input_images, planes[: len(input_images)], (problem.pad_h, problem.pad_w), phases, threads)
            sums = scratch["y"][: len(input_images)] if "y" in scratch else output_images.y
            _convolve_images(taps, sums, len(input_images))
            output_images.write(sums, threads)

    def _convolve_images(taps: Array, sums: Array, images: int) -> None:
        out, strides = flat(sums)

        def convolve(first: int, last: int) -> None:
            _convolve(scratch["planes"], scratch["offsets"], taps, out, strides, y_sizes, plane_sizes, first, last)

        threads.over(tasks_an_image * images, problem.flops // problem.n * images, convolve)

    return run


def _offsets(problem: ConvProblem, image_shape: tuple[int, ...]) -> Array:
    """Offset of the input of each channel and tap of a group, counted from the output's own place in a plane."""
    channel = np.arange(problem.c // problem.groups)[:, None, None]
    row = np.arange(problem.r)[:, None] * problem.dilation_h
    column = np.arange(problem.s) * problem.dilation_w
    phase_row, row = row % problem.stride_h, row // problem.stride_h
    phase_column, column = column % problem.stride_w, column // problem.stride_w
    return np.ravel_multi_index(np.broadcast_arrays(channel, phase_row, phase_column, row, column), image_shape)


def _phases(taps: int, dilation: int, stride: int) -> list[int]:
    return sorted({tap * dilation % stride for tap in range(taps)})


def _tasks_an_image(problem: ConvProblem, columns: int) -> int:
    blocks = -(-((problem.p - 1) * columns + problem.q) // _BLOCK)
    return problem.groups * blocks * -(-problem.gemm_n // _FILTERS)


@compiled(FLOATS, INT, INTS, FLOATS, INT, INT, OUT_FLOATS, INT)
def _four_filters(
    x: Array, base: int, offsets: Array, weight: Array, first: int, depth: int, sums: Array, length: int
) -> None:
    """Add to four rows of sums, _BLOCK apart, the products of four filters, `depth` apart in weight."""
    whole_fours = depth - depth % 4
    for j in range(0, whole_fours, 4):
        x0 = x[base + offsets[j] : base + offsets[j] + length]
        x1 = x[base + offsets[j + 1] : base + offsets[j + 1] + length]
        x2 = x[base + offsets[j + 2] : base + offsets[j + 2] + length]
        x3 = x[base + offsets[j + 3] : base + offsets[j + 3] + length]
        i0 = first + j
        i1 = i0 + depth
        i2 = i1 + depth
        i3 = i2 + depth
        a0, a1, a2, a3 = weight[i0], weight[i0 + 1], weight[i0 + 2], weight[i0 + 3]
        b0, b1, b2, b3 = weight[i1], weight[i1 + 1], weight[i1 + 2], weight[i1 + 3]
        c0, c1, c2, c3 = weight[i2], weight[i2 + 1], weight[i2 + 2], weight[i2 + 3]
        d0, d1, d2, d3 = weight[i3], weight[i3 + 1], weight[i3 + 2], weight[i3 + 3]
        for i in range(length):
            v0, v1, v2, v3 = x0[i], x1[i], x2[i], x3[i]
            sums[i] = sums[i] + a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3
            sums[_BLOCK + i] = sums[_BLOCK + i] + b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3
            sums[2 * _BLOCK + i] = sums[2 * _BLOCK + i] + c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3
            sums[3 * _BLOCK + i] = sums[3 * _BLOCK + i] + d0 * v0 + d1 * v1 + d2 * v2 + d3 * v3
    for j in range(whole_fours, depth):
        x0 = x[base + offsets[j] : base + offsets[j] + length]
        a0, b0 = weight[first + j], weight[first + depth + j]
        c0, d0 = weight[first + 2 * depth + j], weight[first + 3 * depth + j]
        for i in range(length):
            sums[i] += a0 * x0[i]
            sums[_BLOCK + i] += b0 * x0[i]
            sums[2 * _BLOCK + i] += c0 * x0[i]
            sums[3 * _BLOCK + i] += d0 * x0[i]


@compiled(FLOATS, INT, INTS, FLOATS, INT, INT, OUT_FLOATS, INT)
def _one_filter(
    x: Array, base: int, offsets: Array, weight: Array, first: int, depth: int, sums: Array, length: int
) -> None:
    """Add the products of one filter to `sums`."""
    whole_fours = depth - depth % 4
    for j in range(0, whole_fours, 4):
        x0 = x[base + offsets[j] : base + offsets[j] + length]
        x1 = x[base + offsets[j + 1] : base + offsets[j + 1] + length]
        x2 = x[base + offsets[j + 2] : base + offsets[j + 2] + length]
        x3 = x[base + offsets[j + 3] : base + offsets[j + 3] + length]
        i0 = first + j
        a0, a1, a2, a3 = weight[i0], weight[i0 + 1], weight[i0 + 2], weight[i0 + 3]
        for i in range(length):
            sums[i] = sums[i] + a0 * x0[i] + a1 * x1[i] + a2 * x2[i] + a3 * x3[i]
    for j in range(whole_fours, depth):
        x0 = x[base + offsets[j] : base + offsets[j] + length]
        a0 = weight[first + j]
        for i in range(length):
            sums[i] += a0 * x0[i]


@compiled(FLOATS, INTS, FLOATS, OUT_FLOATS, ints(4), ints(4), ints(4), INT, INT)
def _convolve(
    planes: Array,
    offsets: Array,
    weight: Array,
    y: Array,
    y_strides: tuple[int, int, int, int],
    y_sizes: tuple[int, int, int, int],
    plane_sizes: tuple[int, int, int, int],
    first: int,
    last: int,
) -> None:
    """Compute the tasks from first to last: a task is up to four filters on one block of outputs of one image."""
    image_stride, filter_stride, row_stride, stride = y_strides
    groups, filters, p, q = y_sizes
    columns, image_size, group_size, lanes = plane_sizes
    depth = len(offsets)
    fours = (filters + _FILTERS - 1) // _FILTERS
    extent = (p - 1) * columns + q
    blocks = (extent + _BLOCK - 1) // _BLOCK
    sums = np.empty(_FILTERS * _BLOCK, np.float32)
    for task in range(first, last):
        group_block, four = divmod(task, fours)
        image_group, block = divmod(group_block, blocks)
        image, group = divmod(image_group, groups)
        start = block * _BLOCK
        length = min(_BLOCK, extent - start)
        rounded = (length + lanes - 1) // lanes * lanes
        base = image * image_size + group * group_size + start
        k0 = group * filters + four * _FILTERS
        count = min(_FILTERS, filters - four * _FILTERS)
        sums[:] = 0
        if count == _FILTERS:
            _four_filters(planes, base, offsets, weight, k0 * depth, depth, sums, rounded)
        else:
            for k in range(count):
                _one_filter(planes, base, offsets, weight, (k0 + k) * depth, depth, sums[k * _BLOCK :], rounded)
        for row in range(start // columns, (start + length - 1) // columns + 1):
            left = max(0, start - row * columns)
            # A block may start past the outputs of its first row.
            right = max(left, min(q, start + length - row * columns))
            for k in range(count):
                row_sums = sums[k * _BLOCK + row * columns + left - start :][: right - left]
                place = image * image_stride + (k0 + k) * filter_stride + row * row_stride + left * stride
                if stride == 1:
                    y[place : place + right - left] = row_sums
                else:
                    for column in range(right - left):
                        y[place + column * stride] = row_sums[column]
