"""Times that plans of our kernels expect for many problems at once: their models of the time, in arrays.

The plans that choose the cut of one problem choose here the cuts of a million problems, as training a model from them
needs; the rules of their variants say which problems they apply to. None computes groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.table import SIZES, problem_of
from conv_advisor.kernels.cuda import few_outputs, implicit_gemm, implicit_gemm_nhwc, implicit_gemm_tma, pointwise
from conv_advisor.kernels.cuda.family import Family
from conv_advisor.kernels.cuda.few_outputs.choice import offers as few_outputs_offers
from conv_advisor.kernels.cuda.implicit_gemm import choice
from conv_advisor.kernels.cuda.implicit_gemm_nhwc.plan import launches_of
from conv_advisor.kernels.cuda.implicit_gemm_nhwc.plan import offers as packed_offers
from conv_advisor.kernels.cuda.implicit_gemm_tma.plan import offers as accelerated_offers
from conv_advisor.kernels.cuda.parts.offers import VALUES, Offers, values_of_cheapest
from conv_advisor.kernels.cuda.parts.shapes import Array, Shapes
from conv_advisor.kernels.cuda.pointwise.plan import offers as pointwise_offers
from conv_advisor.kernels.variant import Rule, left_to_ask

_PLANS: Final[dict[str, tuple[Family, Offers]]] = {
    "pointwise": (pointwise.FAMILY, pointwise_offers),
    "implicit_gemm": (implicit_gemm.FAMILY, choice.offers),
    "packed": (implicit_gemm_nhwc.FAMILY, packed_offers),
    "accelerated": (implicit_gemm_tma.FAMILY, accelerated_offers),
    "few_outputs": (few_outputs.FAMILY, few_outputs_offers),
}
"""The family, whose variants say which problems it computes, and its offers, the cuts to choose from."""

KERNELS: Final = tuple(_PLANS)
"""The kernels that are forecast: packed is that of ``cuda.implicit_gemm_nhwc`` and ``cuda.implicit_gemm_transposed``,
accelerated that of ``cuda.implicit_gemm_tma``."""

PLANNED_AS: Final = {dtype: dtype for dtype in DType} | {DType.BFLOAT16: DType.FLOAT16}
"""For each dtype, the dtype whose plans are used: both half precisions have the same expected times."""

_GROUPS: Final = SIZES.index("groups")

_AT_A_TIME: Final = 2**9
"""Problems per batch, whose arrays are in memory together."""


def forecast(sizes: Array, dtype: DType, layout: Layout, device: Device) -> dict[str, Array]:
    """The values that the plans expect on a device.

    Parameters
    ----------
    sizes : int64 array of shape (N, 16)
        As in `data.table`.
    dtype : DType
    layout : Layout
    device : Device

    Returns
    -------
    dict of str to float64 array of shape (N, len(VALUES))
        By kernel of `KERNELS`; NaN where it does not apply, as on a device whose multiprocessors are unknown.
    """
    values = {kernel: np.full((len(sizes), len(VALUES)), np.nan) for kernel in KERNELS}
    ungrouped = np.flatnonzero(sizes[:, _GROUPS] == 1)
    if device.kind != "cuda" or not device.processors or not len(ungrouped):
        return values
    anything = problem_of(sizes[0].tolist(), dtype, layout)
    rules = {kernel: _left_to_ask(family, anything, device) for kernel, (family, _) in _PLANS.items()}
    for first in range(0, len(ungrouped), _AT_A_TIME):
        rows = ungrouped[first : first + _AT_A_TIME]
        shapes = Shapes.of_table(sizes[rows], dtype, layout)
        problems = [problem_of(row, dtype, layout) for row in sizes[rows].tolist()]
        for kernel, (_, offers) in _PLANS.items():
            mine = _applicable(rules[kernel], problems, device)
            if len(mine):
                values[kernel][rows[mine]] = values_of_cheapest(offers(shapes.take(mine), device), len(mine))
    chunked = ~np.isnan(values["packed"][:, 0])
    values["packed"][chunked, 0] *= launches_of(Shapes.of_table(sizes[chunked], dtype, layout))
    return values


def _left_to_ask(family: Family, problem: ConvProblem, device: Device) -> list[tuple[Rule, ...]]:
    """The rules that depend on the problem, for each variant of a family that runs on the device."""
    rules = [left_to_ask(variant.why_not, problem, device) for variant in family.variants]
    return [parts for parts in rules if parts is not None]


def _applicable(rules: Sequence[tuple[Rule, ...]], problems: Sequence[ConvProblem], device: Device) -> Array:
    """Indices of the problems that any variant computes; a rule is asked about those that none before it refuses."""
    applies = set[int]()
    for parts in rules:
        left = list(range(len(problems)))
        for rule in parts:
            left = [place for place in left if rule(problems[place], device) is None]
        applies.update(left)
    return np.array(sorted(applies), np.int64)
