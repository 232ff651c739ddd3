"""Costs of the cuts of a depthwise convolution: constants that were fitted to measured times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from conv_advisor.kernels.cuda.depthwise.cut import Channels, Planes, Staged, Tiled
from conv_advisor.kernels.cuda.parts.shapes import Array

MOST_OUTPUTS: Final = 64
"""Outputs of a thread's tile."""


@dataclass(frozen=True)
class Costs:
    """Times of one kernel with one size of element.

    Parameters
    ----------
    launch_us, block_us : float
        Time of a launch, and of a block without its instructions.
    chain : float
        Latency of a lone thread's instructions, relative to its share of a busy multiprocessor's slots.
    bytes_per_us : float
    blend : float
        Exponent with which slots, latency and memory add up; at infinity only the largest counts.
    waste : float
        Weight of a wasted byte relative to a needed one.
    slots, product, load, element, output, filter, copy : float
        Instructions of a thread: a fixed number, and one number per unit of each of its counts.
    factors : mapping from (int, int) to float
        Correction of the instructions, by outputs of a tile and by `Planes.staged` (0 for nhwc).
    """

    launch_us: float
    block_us: float
    chain: float
    bytes_per_us: float
    blend: float
    waste: float
    slots: float
    product: float
    load: float
    element: float
    output: float
    filter: float
    copy: float
    factors: Mapping[tuple[int, int], float]

    @cached_property
    def factor_table(self) -> Array:
        """The factors as an array indexed by outputs of a tile and `Planes.staged`."""
        table = np.ones((MOST_OUTPUTS + 1, 3))
        for (outputs, staged), factor in self.factors.items():
            table[outputs, staged] = factor
        return table


H200: Final[Mapping[tuple[type[Tiled], int], Costs]] = {
    (Planes, 2): Costs(
        launch_us=0.731,
        block_us=0.216,
        chain=2.36,
        bytes_per_us=9.03e6,
        blend=1.73,
        waste=0.416,
        slots=177,
        product=0.962,
        load=12.5,
        element=1.4,
        output=1.71,
        filter=2.24,
        copy=41,
        factors={
            (1, 0): 1.67,
            (1, 1): 0.96,
            (1, 2): 1.09,
            (2, 1): 0.99,
            (2, 2): 1.16,
            (4, 0): 0.95,
            (4, 1): 1.11,
            (4, 2): 0.99,
            (7, 1): 0.70,
            (7, 2): 0.95,
            (8, 0): 0.80,
            (8, 1): 0.78,
            (8, 2): 0.90,
            (14, 1): 0.99,
            (14, 2): 0.67,
            (16, 1): 0.92,
            (16, 2): 0.72,
            (28, 1): 0.91,
            (28, 2): 0.63,
        },
    ),
    (Planes, 4): Costs(
        launch_us=0.609,
        block_us=0.202,
        chain=2.77,
        bytes_per_us=6.58e6,
        blend=1.59,
        waste=1.28,
        slots=262,
        product=1.43,
        load=4.22,
        element=1.8,
        output=1.78,
        filter=2.62,
        copy=23.4,
        factors={
            (1, 0): 1.94,
            (1, 1): 0.92,
            (1, 2): 1.11,
            (2, 1): 0.93,
            (2, 2): 1.10,
            (4, 0): 0.88,
            (4, 1): 1.01,
            (4, 2): 0.96,
            (7, 1): 0.70,
            (7, 2): 0.95,
            (8, 0): 0.97,
            (8, 1): 0.68,
            (8, 2): 0.95,
            (14, 1): 0.66,
            (14, 2): 0.93,
            (16, 1): 0.75,
            (16, 2): 0.95,
            (28, 1): 0.72,
            (28, 2): 0.69,
        },
    ),
    (Staged, 2): Costs(
        launch_us=0.712,
        block_us=0.198,
        chain=2,
        bytes_per_us=6.72e6,
        blend=1.72,
        waste=0.387,
        slots=109,
        product=0.744,
        load=1.11,
        element=1.44,
        output=6.66,
        filter=2.75,
        copy=66,
        factors={(1, 0): 1.58, (2, 0): 1.02, (4, 0): 1.21, (7, 0): 0.98, (8, 0): 1.00},
    ),
    (Channels, 2): Costs(
        launch_us=0.674,
        block_us=0.362,
        chain=2.47,
        bytes_per_us=6.07e6,
        blend=1.98,
        waste=1.25,
        slots=204,
        product=1.43,
        load=13.9,
        element=0.585,
        output=1.16,
        filter=1.14,
        copy=13.1,
        factors={(1, 0): 1.37, (2, 0): 0.97, (4, 0): 0.94, (7, 0): 0.59, (8, 0): 0.86},
    ),
    (Staged, 4): Costs(
        launch_us=0.805,
        block_us=0.217,
        chain=2.49,
        bytes_per_us=3.57e6,
        blend=1.96,
        waste=0.382,
        slots=129,
        product=0.901,
        load=1.05,
        element=1.95,
        output=1.31,
        filter=1.88,
        copy=48.1,
        factors={(1, 0): 1.42, (2, 0): 0.93, (4, 0): 1.08, (7, 0): 0.86, (8, 0): 1.03, (16, 0): 1.14},
    ),
    (Channels, 4): Costs(
        launch_us=0.782,
        block_us=0.26,
        chain=2.17,
        bytes_per_us=7.69e6,
        blend=1.61,
        waste=0.427,
        slots=133,
        product=0.924,
        load=6.85,
        element=1.42,
        output=2.05,
        filter=2.74,
        copy=14.5,
        factors={(1, 0): 1.41, (2, 0): 1.12, (4, 0): 1.09, (7, 0): 0.58, (8, 0): 1.46, (16, 0): 1.40},
    ),
}
"""By kernel and size of an element."""
COSTS: Final[Mapping[str, Mapping[tuple[type[Tiled], int], Costs]]] = {"nvidia-h200": H200}
"""By the device that they were fitted on."""
