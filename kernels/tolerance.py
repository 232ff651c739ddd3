"""How far a result may be from the reference: computed from the problem alone, without any arrays."""

from __future__ import annotations

from math import sqrt
from typing import Final

from conv_advisor.data.problem import ConvProblem, DType

_EPS32: Final = 2.0**-23
_BASE: Final = {DType.FLOAT32: 2.0**-17, DType.TF32: 2.0**-9, DType.FLOAT16: 2.0**-9, DType.BFLOAT16: 2.0**-6}


def tolerance(problem: ConvProblem) -> float:
    """The largest `comparison.max_error` that a correct kernel may show on random operands.

    Returns
    -------
    tolerance : float
        base + 4 · 2⁻²³ · √gemm_k.

    Notes
    -----
    Summing gemm_k random products one after the other in float32 errs by about 2⁻²⁴ · gemm_k · σ / 2 (each partial sum,
    of size √j · σ, is rounded), and the largest of many results is about 4 · √gemm_k · σ: the error on this metric
    grows as √gemm_k, and 4 · 2⁻²³ leaves room for the largest of many errors and for the transforms of FFT and
    Winograd.

    The base is the part of the error that does not shrink with gemm_k. float32: the transforms of Winograd F(4,3) err
    by up to 3e-6. float16 and bfloat16: inputs are exact in the reference and the result is rounded once, by up to 2⁻¹¹
    and 2⁻⁸ of it; Winograd F(2,3) on tensor cores, which rounds its transformed operands to the dtype, errs by 9e-4 and
    8e-3. tf32: both inputs are cut to 11 bits, which errs by up to 2⁻⁹, and F(2,3) errs by 9e-4. F(4,3) with operands
    rounded like that exceeds the tolerance, at 1e-2 and 8e-2.

    A kernel that omits one tap of one channel everywhere errs by about 3 / (4 √gemm_k). That is above the tolerance up
    to a gemm_k of 300,000 (float32), 100,000 (tf32, float16) and 2,000 (bfloat16).
    """
    return _BASE[problem.dtype] + 4 * _EPS32 * sqrt(problem.gemm_k)
