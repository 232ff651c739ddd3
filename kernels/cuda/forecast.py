"""What the plans of our implicit GEMMs expect of many problems at once: their models of the time, in arrays.

The plans that choose the cut of one problem are asked here for the cuts of a million, which a teacher wants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import DType, Layout
from conv_advisor.kernels.cuda.implicit_gemm import choice as implicit_gemm
from conv_advisor.kernels.cuda.implicit_gemm import plan as plain
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import plan as packed
from conv_advisor.kernels.cuda.parts.offers import VALUES, Offers, values_of_cheapest
from conv_advisor.kernels.cuda.parts.shapes import Array, Shapes
from conv_advisor.kernels.cuda.pointwise import plan as pointwise

_PLANS: Final[dict[str, tuple[Callable[[Shapes, Device], Array], Offers]]] = {
    "pointwise": (pointwise.computes, pointwise.offers),
    "implicit_gemm": (plain.computes, implicit_gemm.offers),
    "packed": (packed.computes, packed.offers),
}
"""For which problems, and the cuts to choose from."""

KERNELS: Final = tuple(_PLANS)
"""Whose plans are asked: packed is that of ``cuda.implicit_gemm_nhwc`` and ``cuda.implicit_gemm_transposed``."""

_AT_A_TIME: Final = 2**9
"""Problems whose arrays are in memory together."""


def forecast(sizes: Array, dtype: DType, layout: Layout, device: Device) -> dict[str, Array]:
    """What the plans expect on a device.

    Parameters
    ----------
    sizes : int64 array of shape (N, 14)
        As in `data.table`.
    dtype : DType
    layout : Layout
    device : Device

    Returns
    -------
    dict of str to float64 array of shape (N, len(VALUES))
        By `KERNELS`; NaN where one does not apply, as none does on a device whose multiprocessors are unknown.
    """
    found = {kernel: np.full((len(sizes), len(VALUES)), np.nan) for kernel in KERNELS}
    if device.kind != "cuda" or not device.processors:
        return found
    for first in range(0, len(sizes), _AT_A_TIME):
        some = Shapes.of_table(sizes[first : first + _AT_A_TIME], dtype, layout)
        for kernel, (computes, offers) in _PLANS.items():
            mine = np.flatnonzero(computes(some, device))
            if len(mine):
                found[kernel][first + mine] = values_of_cheapest(offers(some.take(mine), device), len(mine))
    chunked = ~np.isnan(found["packed"][:, 0])
    found["packed"][chunked, 0] *= packed.launches_of(Shapes.of_table(sizes[chunked], dtype, layout))
    return found
