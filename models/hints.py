"""What a teacher looks at beside a problem's features: what the plans of our own kernels expect of it.

How a kernel cuts a problem decides its time by leaps, which sizes alone show only to whoever has seen many neighbours.
A tree does without: to ask the plans takes a thousand times as long as a walk down its branches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import log2
from typing import Final

import numpy as np

from data.measurement import Device
from data.problem import ConvProblem, DType, Layout
from kernels.cuda.forecast import KERNELS, VALUES, forecast
from models.costs import roofline_ms

HINTS: Final = (
    *(f"log2_{kernel}_roofline" for kernel in KERNELS),
    *(f"log2_{one}_{other}" for one, other in combinations(KERNELS, 2)),
    *(f"log2_{kernel}_{value}" for kernel in KERNELS for value in VALUES[1:]),
)
"""Names in order: a kernel's expected time against the roofline and against another's, then what its cut is."""

_ABSENT: Final = -9.0
"""Where a kernel does not apply: below all that is."""


def hint_matrix(
    problems: Sequence[ConvProblem], rooflines: Mapping[tuple[DType, Layout], np.ndarray], device: Device
) -> np.ndarray:
    """`HINTS` of many problems on a device; of one that our kernels have no plans for all are the same.

    Parameters
    ----------
    problems : sequence of ConvProblem
    rooflines : mapping of (DType, Layout) to float array of shape (3,)
        As `models.costs.roofline_ms` takes them. Where there is none, times are against 1 ms.
    device : Device

    Returns
    -------
    float32 array of shape (n_problems, n_hints)
    """
    kinds = {kind: roofline.tolist() for kind, roofline in rooflines.items()}
    least_ms = [
        roofline_ms(problem, kinds[problem.dtype, problem.layout]) if (problem.dtype, problem.layout) in kinds else 1.0
        for problem in problems
    ]
    cuts = [np.log2(values) for values in forecast(problems, device).values()]
    times = [values[:, 0] - log2(1000) for values in cuts]
    columns = [time - np.log2(least_ms) for time in times]
    columns += [one - other for one, other in combinations(times, 2)]
    columns += [values[:, place] for values in cuts for place in range(1, len(VALUES))]
    hints = np.stack(columns, axis=1)
    return np.where(np.isfinite(hints), hints, _ABSENT).astype(np.float32)
