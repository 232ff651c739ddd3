"""How far each variant's result is from float64: laws learned from every error that was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.models.costs import coded, is_of
from conv_advisor.models.tree.file import TreeModel

if TYPE_CHECKING:
    import pyarrow as pa

    from conv_advisor.data.summary import Summary

SLOPES: Final = (0.0, 0.25, 0.5)
"""Powers of gemm_k that an error may grow with: none where rounding operands or the result decides, a half where sums
in float32 do, and one between them for mixtures."""

COVERED: Final = 0.99
"""Share of the measured errors of a variant that are below its law."""

LEAST_ERRORS: Final = 40
"""Fewer measured errors make no law."""

ROUNDINGS: Final = {DType.FLOAT32: 2.0**-22, DType.TF32: 2.0**-10, DType.FLOAT16: 2.0**-11, DType.BFLOAT16: 2.0**-8}
"""Smaller errors count as these: roundings of operands and results alone come to as much. So PyTorch's convolution in
float32 is no measure for tf32, where its layer happens to run without rounding."""

LEANINGS: Final = {DType.FLOAT32: 2.0**-22, DType.TF32: 2.0**-11, DType.FLOAT16: 2.0**-12, DType.BFLOAT16: 2.0**-9}
"""How far errors may lean to one side, relative to the sum of the exact values: a leaning adds up from layer to
layer. Operands that are cut to tf32, not rounded, lean by 1.3 times 2^-11."""

Laws = dict[str, dict[str, list[float]]]
"""By variant and dtype: log2 of the error at a gemm_k of 1, and the power of gemm_k."""


class ErrorSource(StrEnum):
    """Where an error comes from."""

    MEASURED = "measured"
    """The error of this variant on this very layer, with random operands."""
    PREDICTED = "predicted"
    """By the variant's law: what `COVERED` of its measured errors stay below."""
    ALLOWED = "allowed"
    """Nothing was measured: the tolerance that every variant is verified against."""


def learn_laws(table: pa.Table, device_id: str) -> Laws:
    """The error of each variant in each dtype as a power of gemm_k.

    Parameters
    ----------
    table : pyarrow.Table
        Measurements, in `data.parquet.SCHEMA`.
    device_id : str

    Returns
    -------
    dict of variant to dict of dtype to [intercept, slope]
        error = 2 ** (intercept + slope * log2(gemm_k)), below which `COVERED` of the measured errors are.

    Notes
    -----
    The slope is the one of `SLOPES` whose residuals have the least median size: some variants round on some layers and
    not on others, and least squares follows those few.
    """
    import pyarrow.compute as pc  # advice alone does without Arrow

    counts = pc.and_(pc.greater(table["max_error"], 0.0), pc.less(table["max_error"], 1.0))
    counts = pc.and_(is_of(table, device_id), pc.fill_null(counts, False))
    table = table.select(["variant", "dtype", "c", "groups", "r", "s", "max_error"]).filter(counts)
    error = np.log2(table["max_error"].to_numpy())
    c, groups, r, s = (table[name].to_numpy().astype(np.int64) for name in ("c", "groups", "r", "s"))
    length = np.log2(c // groups * r * s)
    variants, of_variant = coded(table["variant"])
    dtypes, of_dtype = coded(table["dtype"])
    kinds = of_variant * len(dtypes) + of_dtype
    laws: Laws = {}
    for kind in np.unique(kinds).tolist():
        mine = np.flatnonzero(kinds == kind)
        if len(mine) >= LEAST_ERRORS:
            variant, dtype = divmod(kind, len(dtypes))
            laws.setdefault(str(variants[variant]), {})[str(dtypes[dtype])] = _law(length[mine], error[mine])
    return laws


def laws_of(model: TreeModel | None) -> Mapping[str, Mapping[str, Any]]:
    """The laws on a tree's card; none where it was trained before there were any."""
    laws: Mapping[str, Mapping[str, Any]] = model.card.get("errors", {}) if model else {}
    return laws


def expected_error(
    laws: Mapping[str, Mapping[str, Any]], variant: str, problem: ConvProblem
) -> tuple[float, ErrorSource]:
    """What a variant's max |y - y64| / max |y64| stays below on random operands, never above the tolerance."""
    allowed = tolerance(problem)
    law = laws.get(variant, {}).get(DType(problem.dtype).value)
    if law is None:
        return allowed, ErrorSource.ALLOWED
    intercept, slope = law
    predicted = 2.0 ** (intercept + slope * math.log2(problem.gemm_k))
    return min(predicted, allowed), ErrorSource.PREDICTED


def allowed_error(problem: ConvProblem, own_error: float, max_error_ratio: float) -> float:
    """The largest error that a variant may show to be within so many times another's, and the tolerance.

    Parameters
    ----------
    problem : ConvProblem
    own_error : float
        max |y - y64| / max |y64| of what it is held against, such as PyTorch's own convolution.
    max_error_ratio : float
    """
    return min(tolerance(problem), max_error_ratio * max(own_error, ROUNDINGS[problem.dtype]))


def error_of(
    laws: Mapping[str, Mapping[str, Any]], variant: str, problem: ConvProblem, known: Summary | None
) -> tuple[float, ErrorSource]:
    """How far a variant's y is from float64: measured on this layer, else as `expected_error` has it."""
    if known is not None and known.max_error is not None:
        return known.max_error, ErrorSource.MEASURED
    return expected_error(laws, variant, problem)


def _law(length: np.ndarray, error: np.ndarray) -> list[float]:
    candidates = []
    for slope in SLOPES:
        rest = error - slope * length
        off = float(np.median(np.abs(rest - np.median(rest))))
        candidates.append((off, slope, float(np.quantile(rest, COVERED))))
    _, slope, intercept = min(candidates)
    return [round(intercept, 3), slope]
