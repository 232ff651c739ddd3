"""What a bound on the error of one layer means for a network: sums that round to nearest, and sums that truncate.

    python -m benchmarks.rounding

Tensor cores truncate as they add in float32, so that all their errors are towards zero. Here both ways of adding are
emulated on the host, in a chain of 3x3 convolutions with ReLU, random weights, and an average over all pixels behind
it, as classifiers have. Nothing of a GPU is measured.

Source: Fasi, Higham, Mikaitis, Pranesh 2021, Numerical behavior of NVIDIA tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

CHANNELS: Final = 64
PIXELS: Final = 14
LAYERS: Final = 12
STEP: Final = 8
"""Products that are added to a sum at once, exactly: those of one instruction for tf32."""

Floats = np.ndarray
"""float64, holding values that are float32 where they are results."""
Round = Callable[[Floats], Floats]


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
    kept: Floats = np.where(is_beyond, np.nextafter(rounded, np.float32(0)), rounded).astype(np.float64)
    return kept


def errors(add: Round, layers: int = LAYERS, channels: int = CHANNELS) -> Errors:
    """The errors of sums that round as `add` does after every `STEP` products.

    Parameters
    ----------
    add : callable (float64 array) -> float64 array
    layers, channels : int
    """
    random = np.random.default_rng(0)
    shape = (channels, channels * 9)
    weights = [nearest(random.standard_normal(shape) * np.sqrt(2 / shape[1])) for _ in range(layers)]
    y = exact = nearest(random.uniform(0, 1, (channels, PIXELS, PIXELS)))
    for weight in weights:
        y = np.maximum(_convolve(weight, y, add), 0)
        exact = np.maximum(_convolve(weight, exact), 0)
    x, weight = nearest(random.uniform(-1, 1, exact.shape)), nearest(random.uniform(-1, 1, shape))
    return Errors(
        _error(_convolve(weight, x, add), _convolve(weight, x)),
        _error(y, exact),
        _error(y.mean((1, 2)), exact.mean((1, 2))),
    )


def _convolve(weight: Floats, x: Floats, add: Round | None = None) -> Floats:
    """A 3x3 convolution with same padding of one image; in float64 where nothing says how to add."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    taps = [padded[:, row : row + PIXELS, column : column + PIXELS] for row in range(3) for column in range(3)]
    columns = np.stack(taps, axis=1).reshape(weight.shape[1], PIXELS * PIXELS)
    if add is None:
        exact: Floats = weight @ columns
        return exact.reshape(-1, PIXELS, PIXELS)
    sums = np.zeros((len(weight), columns.shape[1]))
    for first in range(0, len(columns), STEP):
        sums = add(sums + weight[:, first : first + STEP] @ columns[first : first + STEP])
    return sums.reshape(-1, PIXELS, PIXELS)


def _error(y: Floats, exact: Floats) -> float:
    return float(np.abs(y - exact).max() / np.abs(exact).max())


def main() -> None:
    """Print a line for each way to add, and one for how far they are apart."""
    rounded, cut = errors(nearest), errors(truncated)
    print(f"| {LAYERS} layers | one layer | the last | averages |\n|---|---|---|---|")
    for name, found in (("to nearest", rounded), ("truncated", cut)):
        print(f"| {name} | " + " | ".join(f"{each:.1e}" for each in found) + " |")
    print("| times | " + " | ".join(f"{b / a:.0f}" for a, b in zip(rounded, cut, strict=True)) + " |")


if __name__ == "__main__":
    main()
