"""What a teacher looks at beside a problem's features: what the plans of our own kernels expect of it.

A kernel's cut of a problem changes its time by leaps, which sizes alone show only to a model that has seen many
neighbours. A tree does without hints: asking the plans takes a thousand times as long as a walk down its branches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import log2
from typing import Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.table import sizes_of
from conv_advisor.kernels.cuda.forecast import KERNELS, forecast
from conv_advisor.kernels.cuda.parts.offers import VALUES
from conv_advisor.models.tree.features import Kind, Quantities, code_of, kinds_of

HINTS: Final = (
    *(f"log2_{kernel}_roofline" for kernel in KERNELS),
    *(f"log2_{one}_{other}" for one, other in combinations(KERNELS, 2)),
    *(f"log2_{kernel}_{value}" for kernel in KERNELS for value in VALUES[1:]),
)
"""Names in order: a kernel's expected time against the roofline and against another's, then what its cut is."""

_ABSENT: Final = -9.0
"""Value where a kernel does not apply: below every other."""

_MILLISECOND: Final = np.array([np.inf, np.inf, 1.0])
"""A roofline that is always 1 ms."""


def hint_matrix(problems: Sequence[ConvProblem], rooflines: Mapping[Kind, np.ndarray], device: Device) -> np.ndarray:
    """`hints` of many problems, of any dtypes and layouts.

    Parameters
    ----------
    problems : sequence of ConvProblem
    rooflines : mapping of (DType, Layout) to float array of shape (3,)
        Where there is none, times are against 1 ms.
    device : Device

    Returns
    -------
    float32 array of shape (n_problems, n_hints)
    """
    sizes = sizes_of(problems)
    matrix = np.empty((len(problems), len(HINTS)), np.float32)
    for kind, rows in kinds_of(problems).items():
        expected = forecast(sizes[rows], *kind, device)
        matrix[rows] = hints(Quantities(sizes[rows], *code_of(*kind)), rooflines.get(kind, _MILLISECOND), expected)
    return matrix


def hints(quantities: Quantities, roofline: np.ndarray, expected: Mapping[str, np.ndarray]) -> np.ndarray:
    """`HINTS` of many problems on a device; all the same on a device that our kernels have no plans for.

    Parameters
    ----------
    quantities : Quantities
        Of N problems.
    roofline : float array of shape (3,)
        As `models.costs.roofline_ms` takes it.
    expected : mapping of str to float64 array
        As `kernels.cuda.forecast.forecast` gives it.

    Returns
    -------
    float32 array of shape (N, n_hints)
    """
    cuts = [np.log2(values) for values in expected.values()]
    times = [values[:, 0] - log2(1000) for values in cuts]
    columns = [time - np.log2(quantities.roofline_ms(*roofline.tolist())) for time in times]
    columns += [one - other for one, other in combinations(times, 2)]
    columns += [values[:, place] for values in cuts for place in range(1, len(VALUES))]
    matrix = np.stack(columns, axis=1)
    return np.where(np.isfinite(matrix), matrix, _ABSENT).astype(np.float32)
