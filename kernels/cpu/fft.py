"""Convolution by the convolution theorem: the spectra of x and of the weight, multiplied and summed over channels.

The weight's spectrum is conjugated, since a layer correlates. The cost does not depend on the size of the filter. A
stride takes every stride-th output of the stride-1 result; a dilation spreads the taps before they are transformed.

A NaN or an infinity in the input makes every output of its image NaN, and in the weight every output of its filter:
each output depends on the whole spectrum.
"""

from __future__ import annotations

from math import log2, prod

import scipy.fft

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cpu.compile import COMPLEX_3D, INT, OUT_COMPLEX_3D, compiled
from conv_advisor.kernels.cpu.epilogue import Output
from conv_advisor.kernels.cpu.plans import Plan
from conv_advisor.kernels.cpu.tensors import Array, Run, allocate, copy, nchw
from conv_advisor.kernels.cpu.threads import Threads

_BLOCK = 512  # frequencies at a time: 16 KiB of partial sums stay in the L1 cache
_FILTERS = 4


def prepare(problem: ConvProblem, plan: Plan, threads: Threads) -> Run:
    """Allocate scratch; the result computes y from x, weight, and the tensors that the epilogue adds."""
    scratch = allocate(plan)
    height, width = scratch["x"].shape[2:]
    bottom, right = problem.pad_h + problem.h, problem.pad_w + problem.w
    image_room = scratch["x"][:, :, problem.pad_h : bottom, problem.pad_w : right]
    filter_room = scratch["weight"][:, :, :: problem.dilation_h, :: problem.dilation_w][..., : problem.r, : problem.s]

    def run(x: Array, weight: Array, y: Array, bias: Array | None, residual: Array | None) -> None:
        x, weight, output = nchw(problem, x), nchw(problem, weight), Output.of(problem, y, bias, residual)
        for first in range(0, problem.n, plan.images):
            images = slice(first, first + plan.images)
            _convolve_images(x[images], weight, output.images(images))

    def _convolve_images(x: Array, weight: Array, output: Output) -> None:
        x_spectra = _spectra(x, scratch["x"], image_room)
        for first in range(0, problem.k, plan.filters):
            filters = slice(first, first + plan.filters)
            _convolve_filters(x_spectra, weight[filters], output.filters(filters))

    def _convolve_filters(x_spectra: Array, weight: Array, output: Output) -> None:
        weight_spectra = _spectra(weight, scratch["weight"], filter_room)
        spectra = _multiply(x_spectra, weight_spectra).reshape(*output.y.shape[:2], height, -1)
        full = scipy.fft.irfft2(spectra, s=(height, width), workers=_workers(2 * spectra.size))
        output.write(full[:, :, :: problem.stride_h, :: problem.stride_w][:, :, : problem.p, : problem.q], threads)

    def _spectra(tensor: Array, padded: Array, room: Array) -> Array:
        copy(tensor, room[: len(tensor)], threads)
        used = padded[: len(tensor)]
        spectra: Array = scipy.fft.rfft2(used, workers=_workers(used.size))
        return spectra.reshape(*spectra.shape[:2], -1)

    def _workers(elements: int) -> int:
        return threads.worth(int(2.5 * log2(height * width) * elements))

    def _multiply(x_spectra: Array, weight_spectra: Array) -> Array:
        shape = (len(x_spectra), len(weight_spectra), x_spectra.shape[2])
        products = scratch["y"].reshape(-1)[: prod(shape)].reshape(shape)
        threads.over(
            shape[0] * -(-shape[1] // _FILTERS),
            8 * products.size * problem.c,
            lambda first, last: _accumulate(x_spectra, weight_spectra, products, first, last),
        )
        return products

    return run


@compiled(COMPLEX_3D, COMPLEX_3D, OUT_COMPLEX_3D, INT, INT)
def _accumulate(x: Array, weight: Array, products: Array, first: int, last: int) -> None:
    """Sum x · conj(weight) over channels, for tasks first to last; a task is up to four filters of one image."""
    filters, depth, size = weight.shape
    fours = (filters + _FILTERS - 1) // _FILTERS
    for task in range(first, last):
        image, four = divmod(task, fours)
        for start in range(0, size, _BLOCK):
            stop = min(size, start + _BLOCK)
            for k in range(four * _FILTERS, min(filters, (four + 1) * _FILTERS)):
                sums = products[image, k, start:stop]
                sums[:] = 0
                for c in range(depth):
                    x_block, weight_block = x[image, c, start:stop], weight[k, c, start:stop]
                    for i in range(stop - start):
                        sums[i] += x_block[i] * weight_block[i].conjugate()
