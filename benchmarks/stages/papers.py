"""The papers' tables of kernel times: cuConv's 3 to 5, the cuDNN study's 2 to 6, all on a Tesla V100, in µs.

Delays between kernels, which the study lists, are left out: a replayed graph has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from conv_advisor.data.problem import ConvProblem, DType

V100_MHZ: Final = 1530
"""Boost clock of the SXM2 part; NVIDIA's data sheet."""


@dataclass(frozen=True)
class Printed:
    """One algorithm on one layer of a table.

    Parameters
    ----------
    paper, table : str
    layer : str
        Its short form.
    variant : str
        Our variant, or cuDNN's, of that algorithm.
    kernels : mapping of str to float
        Name to µs, in order.
    dtype : DType
    """

    paper: str
    table: str
    layer: str
    variant: str
    kernels: Mapping[str, float]
    dtype: DType = DType.FLOAT32

    @property
    def total_us(self) -> float:
        """Sum over the kernels."""
        return sum(self.kernels.values())

    @property
    def problem(self) -> ConvProblem:
        """The layer in the table's precision, NCHW."""
        return ConvProblem.parse(self.layer, dtype=self.dtype)


_CUCONV: Final = "cuConv"
_STUDY: Final = "cuDNN study"
_IMPLICIT: Final = "cudnn.implicit_gemm"
_PRECOMPUTED: Final = "cudnn.implicit_precomp_gemm"
_TENSOR: Final = "cudnn.implicit_precomp_gemm_tc"
_NONFUSED: Final = "cudnn.winograd_nonfused"


def _cuconv(table: str, layer: str, variant: str, **kernels: float) -> Printed:
    return Printed(_CUCONV, table, layer, variant, kernels)


def _study(table: str, layer: str, variant: str, dtype: DType = DType.FLOAT32, **kernels: float) -> Printed:
    return Printed(_STUDY, table, layer, variant, kernels, dtype)


PRINTED: Final[tuple[Printed, ...]] = (
    _cuconv("3", "7-1-1-256-832", "cuda.cuconv", scalar_prods=58.56),
    _cuconv("3", "7-1-1-256-832", _IMPLICIT, implicit_convolve_sgemm=128.13),
    _cuconv("3", "7-1-1-256-832", _PRECOMPUTED, computeOffsets=1.98, scudnn_128x64=105.31),
    _cuconv("3", "14-1-1-1024-256", "cuda.cuconv", scalar_prods=73.86),
    _cuconv("3", "14-1-1-1024-256", _IMPLICIT, implicit_convolve_sgemm=47.87),
    _cuconv("3", "14-1-1-1024-256", _PRECOMPUTED, computeOffsets=2.00, scudnn_128x64=43.23),
    _cuconv("3", "27-1-1-256-64", "cuda.cuconv", scalar_prods=22.53),
    _cuconv("3", "27-1-1-256-64", _IMPLICIT, implicit_convolve_sgemm=19.20),
    _cuconv("3", "27-1-1-256-64", _PRECOMPUTED, computeOffsets=1.89, scudnn_128x64=22.40),
    _cuconv("4", "7-1-3-384-192", "cuda.cuconv", scalar_prods=52.86, sum=4.93),
    _cuconv(
        "4", "7-1-3-384-192", _NONFUSED, ForwardData=8.06, ForwardFilter=17.44, sgemm_128x64=69.31, ForwardOutput=10.82
    ),
    _cuconv("4", "7-1-3-384-192", _PRECOMPUTED, computeOffsets=1.98, scudnn_128x64=201.47),
    _cuconv("4", "13-1-3-384-384", "cuda.cuconv", scalar_prods=461.37, sum=5.31),
    _cuconv(
        "4",
        "13-1-3-384-384",
        _NONFUSED,
        ForwardData=22.75,
        ForwardFilter=35.10,
        sgemm_128x64=242.56,
        ForwardOutput=27.14,
    ),
    _cuconv("4", "13-1-3-384-384", _PRECOMPUTED, computeOffsets=2.11, scudnn_128x64=386.97),
    _cuconv("5", "7-1-5-128-48", "cuda.cuconv", scalar_prods=16.80, sum=5.70),
    _cuconv(
        "5", "7-1-5-128-48", _NONFUSED, ForwardData=13.82, ForwardFilter=9.15, sgemm_128x64=34.91, ForwardOutput=16.92
    ),
    _cuconv("5", "7-8-5-128-48", "cuda.cuconv", scalar_prods=107.58, sum=9.02),
    _cuconv(
        "5", "7-8-5-128-48", _NONFUSED, ForwardData=13.89, ForwardFilter=9.73, sgemm_128x64=35.36, ForwardOutput=17.60
    ),
    _study("2", "7-1-1-192-832", _IMPLICIT, implicit_convolve_sgemm=78.35),
    _study("2", "7-1-1-192-832", _PRECOMPUTED, computeOffsets=2.40, scudnn_128x64=107.97),
    _study("2", "14-64-1-32-528", _IMPLICIT, implicit_convolve_sgemm=80.96),
    _study("2", "14-64-1-32-528", _PRECOMPUTED, computeOffsets=2.46, scudnn_128x32=128.48),
    _study("2", "27-64-1-64-384", _IMPLICIT, implicit_convolve_sgemm=426.18),
    _study("2", "27-64-1-64-384", _PRECOMPUTED, computeOffsets=2.43, scudnn_128x64=213.80),
    _study(
        "3", "14-1-3-256-128", _NONFUSED, ForwardData=9.50, ForwardFilter=9.15, sgemm_128x64=62.34, ForwardOutput=10.02
    ),
    _study("3", "14-1-3-256-128", _PRECOMPUTED, computeOffsets=2.27, scudnn_128x64=142.00),
    _study(
        "3",
        "224-16-3-64-3",
        _NONFUSED,
        ForwardData=53.73,
        ForwardFilter=4.83,
        sgemm_128x128=741.43,
        ForwardOutput=1059.42,
    ),
    _study("3", "224-16-3-64-3", _PRECOMPUTED, computeOffsets=2.78, scudnn_128x64=435.05),
    _study(
        "3",
        "14-128-3-256-128",
        _NONFUSED,
        ForwardData=51.04,
        ForwardFilter=9.12,
        sgemm_128x64=233.93,
        ForwardOutput=82.27,
    ),
    _study("3", "14-128-3-256-128", _PRECOMPUTED, computeOffsets=2.40, scudnn_128x64=923.51),
    _study(
        "4", "14-16-5-64-32", _NONFUSED, ForwardData=11.23, ForwardFilter=4.80, sgemm_128x64=21.50, ForwardOutput=13.54
    ),
    _study(
        "4",
        "14-16-5-64-32",
        "cudnn.fft",
        flip_filter=5.31,
        r2c_x=10.56,
        r2c_filter=6.75,
        gemm_pointers=1.76,
        cgemm=21.63,
        c2r=10.75,
    ),
    _study(
        "4",
        "14-16-5-64-32",
        "cudnn.fft_tiling",
        r2c_filter=23.00,
        r2c_x=17.44,
        gcgemm=40.00,
        c2r=16.96,
    ),
    _study("4", "14-16-5-64-32", "cudnn.gemm", im2col4d=52.99, sgemm=61.89),
    _study(
        "4",
        "7-128-5-128-48",
        _NONFUSED,
        ForwardData=61.41,
        ForwardFilter=12.48,
        sgemm_128x64=40.03,
        ForwardOutput=105.35,
    ),
    _study(
        "4",
        "14-128-5-64-32",
        "cudnn.fft",
        flip_filter=5.44,
        r2c_x=11.74,
        r2c_filter=17.31,
        gemm_pointers=1.86,
        cgemm=40.87,
        c2r=28.93,
    ),
    _study("5", "13-8-1-256-64", _IMPLICIT, DType.FLOAT16, hhgemm=22.0),
    _study(
        "5",
        "13-8-1-256-64",
        _TENSOR,
        DType.FLOAT16,
        nchwToNhwc=4.1,
        computeOffsets=2.1,
        h884_256x64=12.7,
        nhwcToNchw=4.32,
    ),
    _study("5", "14-8-1-256-512", _IMPLICIT, DType.FLOAT16, hhgemm=100.0),
    _study(
        "5",
        "14-8-1-256-512",
        _TENSOR,
        DType.FLOAT16,
        nchwToNhwc=5.57,
        computeOffsets=2.0,
        h884_256x64=29.15,
        nhwcToNchw=4.6,
    ),
    _study(
        "6",
        "55-64-3-64-16",
        "cudnn.winograd_nonfused_tc",
        DType.FLOAT16,
        ForwardData=34.18,
        ForwardFilter=3.2,
        h884gemm=259.87,
        ForwardOutput=140.1,
    ),
    _study(
        "6",
        "55-64-3-64-16",
        _TENSOR,
        DType.FLOAT16,
        nchwToNhwc=28.1,
        computeOffsets=1.95,
        h884_256x64=121.12,
        nhwcToNchw=72.42,
    ),
    _study(
        "6",
        "56-64-3-256-256",
        "cudnn.winograd_nonfused_tc",
        DType.FLOAT16,
        ForwardData=491.0,
        ForwardFilter=2.73,
        h884gemm=1047.0,
        ForwardOutput=547.22,
    ),
    _study(
        "6",
        "56-64-3-256-256",
        _TENSOR,
        DType.FLOAT16,
        nchwToNhwc=257.54,
        computeOffsets=2.28,
        h884_256x64=2502.0,
        nhwcToNchw=281.34,
    ),
)
"""The rows whose variant runs on Hopper; cuDNN's fused Winograd does not."""
