"""How the rounding of one layer affects a network: FFMA against 3xTF32 on tensor cores, emulated on the host.

    python -m benchmarks.rounding

Tensor cores truncate as they accumulate in float32, so all their errors are towards zero. Our kernels let them
accumulate a chain of products from zero, add the chains in registers with rounding to nearest, and at the end
compensate what truncation removed on average. That and FFMA are emulated in a stack of 3x3 convolutions with ReLU and
random weights, followed by an average over all pixels, as in classifiers. No GPU is involved.

Source: Fasi, Higham, Mikaitis, Pranesh 2021, Numerical behavior of NVIDIA tensor cores; Ootomo, Yokota 2022,
arXiv:2203.03341 (parts, and sums outside the tensor cores).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

CHANNELS: Final = 64
PIXELS: Final = 14
LAYERS: Final = 12
STEP: Final = 8
"""Products that are added to a sum at once, exactly: those of one instruction for tf32."""

LOST: Final = (0.192, 0.123)
"""The share of a sum, in units of 2^-23, that truncation cut from it: a constant and what each step of a chain adds, as
measured on an H200 behind ReLU. So the kernels have it in `tf32.cuh`."""
RAISED: Final = (0.25, 0.34657)
"""By what to raise a sum, so that rounding adds such a share on average: a constant, and times the share."""
STAGE: Final = 32
"""Of gemm_k, from zero, where parts are of float16."""
HALF_STEP: Final = 16
"""`STEP` of float16."""
FILTER_LIMIT: Final = 15
FITTED: Final = 12
PIXEL: Final = 14
LEAST: Final = -82
HELD: Final = 30
"""Exponents of scales there: `three_products_of_halves.cuh` says what they limit."""
ZEROS: Final = 0x3F
"""A sum whose last bits are zeros may be a whole number, of which nothing was cut: it stays what it is."""

Floats = np.ndarray
"""float64, holding values that are float32 where they are results."""
Round = Callable[[Floats], Floats]
Multiply = Callable[[Floats, Floats], Floats]
"""weight (K, gemm_k) and columns (gemm_k, pixels) to their product."""


class Errors(NamedTuple):
    """max |y - y64| / max |y64| of one layer on random operands, of a network's last layer, and of its averages."""

    layer: float
    network: float
    averaged: float


def nearest(values: Floats) -> Floats:
    """Round to the nearest float32."""
    return values.astype(np.float32).astype(np.float64)


def truncated(values: Floats) -> Floats:
    """Round to float32 towards zero."""
    rounded = values.astype(np.float32)
    is_beyond = np.abs(rounded.astype(np.float64)) > np.abs(values)
    towards_zero: Floats = np.where(is_beyond, np.nextafter(rounded, np.float32(0)), rounded).astype(np.float64)
    return towards_zero


def cut_to_tf32(values: Floats) -> Floats:
    """The first 11 bits of float32 values, as tensor cores read them."""
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    return bits.view(np.float32).astype(np.float64)


def nearest_tf32(values: Floats) -> Floats:
    """Round float32 values to the nearest tf32, halves away from zero, as our kernels do."""
    bits = values.astype(np.float32).view(np.uint32) + np.uint32(0x1000) & np.uint32(0xFFFFE000)
    return bits.view(np.float32).astype(np.float64)


def fused(weight: Floats, columns: Floats) -> Floats:
    """Add one product after the other to the sum, each time to the nearest: FFMA."""
    sums = np.zeros((len(weight), columns.shape[1]))
    for k, column in enumerate(columns):
        sums = nearest(sums + weight[:, k, None] * column)
    return sums


def raised_by(steps: float) -> float:
    """By what to raise a sum for what truncation cut from its chains of so many steps.

    Rounding adds one unit in the last place to a sum or none: one where its mantissa exceeds 0.5 / factor. That is
    (2 factor - 0.5) / ln 2 on average where mantissas are spread evenly by their logarithm.
    """
    return (RAISED[0] + RAISED[1] * (LOST[0] + LOST[1] * steps)) * 2.0**-23


def mean_steps(count: int, most: int) -> float:
    """Steps of a chain where ``count`` are in chains of ``most`` and a shorter last one, each weighed by its length."""
    last = count % most
    return ((count - last) * most + last**2) / count


def restored(sums: Floats, count: int, most: int) -> Floats:
    """Make up for what truncation cut from sums of so many steps in chains of ``most``."""
    ends_in_zeros = sums.astype(np.float32).view(np.uint32) & np.uint32(ZEROS) == 0
    return np.where(ends_in_zeros, sums, nearest(sums + sums * raised_by(mean_steps(count, most))))


def in_chains(
    weight: Floats, columns: Floats, chain: int, high: Round = nearest_tf32, *, is_restored: bool = False
) -> Floats:
    """Multiply parts of tf32; truncate as products add up from zero over a chain of gemm_k, round as chains add up.

    Parameters
    ----------
    weight, columns : float64 array
    chain : int
        A multiple of `STEP`.
    high : callable
        Gives the first part of a value; the second part is the rest, cut.
    is_restored : bool
        Whether the sums are `restored`.
    """
    left, right = high(weight), high(columns)
    left_low, right_low = cut_to_tf32(weight - left), cut_to_tf32(columns - right)
    sums = np.zeros((len(weight), columns.shape[1]))
    for first in range(0, len(columns), chain):
        steps = [slice(k, min(k + STEP, len(columns))) for k in range(first, min(first + chain, len(columns)), STEP)]
        part = np.zeros_like(sums)
        for step in steps:  # the small products first
            part = truncated(part + left_low[:, step] @ right[step])
            part = truncated(part + left[:, step] @ right_low[step])
        for step in steps:
            part = truncated(part + left[:, step] @ right[step])
        sums = nearest(sums + part)
    return restored(sums, -(-len(columns) // STEP), chain // STEP) if is_restored else sums


def _exponent(values: Floats) -> np.ndarray:
    """floor(log2 of values), of zeros so far below that limits decide."""
    with np.errstate(divide="ignore"):
        exponents: np.ndarray = np.where(values > 0, np.frexp(values)[1] - 1, -1000)
    return exponents


def _flushed(values: Floats) -> Floats:
    """Round to the nearest float32 where subnormal ones are zeros."""
    flushed: Floats = np.where(np.abs(values) < 2.0**-126, 0, nearest(values))
    return flushed


def _halves(values: Floats) -> tuple[Floats, Floats]:
    """Both float16 parts of scaled values."""
    high = values.astype(np.float32).astype(np.float16).astype(np.float64)
    return high, (values - high).astype(np.float32).astype(np.float16).astype(np.float64)


def in_scaled_halves(weight: Floats, columns: Floats, *, is_restored: bool = True) -> Floats:
    """Multiply as `three_products_of_halves.cuh` does, with ``weight`` for its pixels and ``columns`` for its filters.

    Parameters
    ----------
    weight, columns : float64 array
    is_restored : bool
        Whether the sums are `restored`.
    """
    sums = np.zeros((len(weight), columns.shape[1]))
    scale = np.full(columns.shape[1], 126)
    for first in range(0, len(columns), STAGE):
        rows, own = weight[:, first : first + STAGE], columns[first : first + STAGE]
        largest = _exponent(np.abs(own).max(axis=0))
        lowered = np.where(largest + scale >= FILTER_LIMIT, FITTED - largest, scale)
        sums = _flushed(sums * 2.0 ** (lowered - scale))
        scale = lowered
        of_row = np.maximum(_exponent(np.abs(rows).max(axis=1)), LEAST)[:, None]
        left, left_low = _halves(rows * 2.0 ** (PIXEL - of_row))
        right, right_low = _halves(own * 2.0**scale)
        part = np.zeros_like(sums)
        steps = [slice(k, k + HALF_STEP) for k in range(0, len(own), HALF_STEP)]
        for step in steps:
            part = truncated(part + left_low[:, step] @ right[step])
            part = truncated(part + left[:, step] @ right_low[step])
        for step in steps:
            part = truncated(part + left[:, step] @ right[step])
        sums = _flushed(sums + part * 2.0 ** (of_row - PIXEL - HELD))
    if is_restored:
        sums = restored(sums, -(-len(columns) // HALF_STEP), STAGE // HALF_STEP)
    return nearest(sums * 2.0 ** (HELD - scale))


WAYS: Final[dict[str, Multiply]] = {
    "FFMA (round to nearest)": fused,
    "3xTF32, one chain over gemm_k": partial(in_chains, chain=9 * CHANNELS),
    **{f"3xTF32, chains of {chain}": partial(in_chains, chain=chain) for chain in (32, 16, 8)},
    **{
        f"3xTF32, chains of {chain}, compensated": partial(in_chains, chain=chain, is_restored=True)
        for chain in (32, 16, 8)
    },
    "3 products of scaled float16 parts, chains of 32": partial(in_scaled_halves, is_restored=False),
    "3 products of scaled float16 parts, chains of 32, compensated": in_scaled_halves,
    "3xTF32 of truncated parts, chains of 8": partial(in_chains, chain=8, high=cut_to_tf32),
}


def errors(multiply: Multiply, layers: int = LAYERS, channels: int = CHANNELS) -> Errors:
    """The errors of convolutions by one way to multiply.

    Parameters
    ----------
    multiply : callable
    layers, channels : int
    """
    random = np.random.default_rng(0)
    shape = (channels, channels * 9)
    weights = [nearest(random.standard_normal(shape) * np.sqrt(2 / shape[1])) for _ in range(layers)]
    y = exact = nearest(random.uniform(0, 1, (channels, PIXELS, PIXELS)))
    for weight in weights:
        y = np.maximum(_convolve(weight, y, multiply), 0)
        exact = np.maximum(_convolve(weight, exact, np.matmul), 0)
    x, weight = nearest(random.uniform(-1, 1, exact.shape)), nearest(random.uniform(-1, 1, shape))
    return Errors(
        _error(_convolve(weight, x, multiply), _convolve(weight, x, np.matmul)),
        _error(y, exact),
        _error(y.mean((1, 2)), exact.mean((1, 2))),
    )


def _convolve(weight: Floats, x: Floats, multiply: Multiply) -> Floats:
    """A 3x3 convolution with same padding of one image."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    taps = [padded[:, row : row + PIXELS, column : column + PIXELS] for row in range(3) for column in range(3)]
    columns = np.stack(taps, axis=1).reshape(weight.shape[1], PIXELS * PIXELS)
    return multiply(weight, columns).reshape(-1, PIXELS, PIXELS)


def _error(y: Floats, exact: Floats) -> float:
    return float(np.abs(y - exact).max() / np.abs(exact).max())


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each way to add."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rounding", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(arguments)
    print(f"| {LAYERS} layers | one layer | the last | its averages over pixels |\n|---|---|---|---|")
    for name, multiply in WAYS.items():
        print(f"| {name} | " + " | ".join(f"{error:.1e}" for error in errors(multiply)) + " |")


if __name__ == "__main__":
    main()
