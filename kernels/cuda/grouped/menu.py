"""Costs of the cuts of the grouped convolution: constants that were fitted to measured times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from conv_advisor.data.problem import DType, Layout


@dataclass(frozen=True)
class Costs:
    """Costs in clocks, except ``launch_us``.

    Parameters
    ----------
    launch_us : float
    block, tile, chunk, step, product : float
        Latency of a block: once, and for each tile of pixels, chunk of channels, step of eight words of gemm_k, and
        instruction of a step.
    thread_x, thread_weight, thread_y : float
        Latency of a thread's copies and outputs.
    x, weight, fragments, products, y, x_byte : float
        Time that each copy, row of fragments, instruction, output and byte takes of a busy multiprocessor.
    """

    launch_us: float
    block: float
    tile: float
    chunk: float
    step: float
    product: float
    thread_x: float
    thread_weight: float
    thread_y: float
    x: float
    weight: float
    fragments: float
    products: float
    y: float
    x_byte: float


_HALF: Final = {
    # Fitted before the kernel issued loads ahead of stores; later fits, to the cuts of 390 layers, chose no better.
    Layout.NCHW: Costs(
        launch_us=0.9,
        block=1900,
        tile=1500,
        chunk=1720,
        step=30,
        product=4,
        thread_x=150,
        thread_weight=100,
        thread_y=6.67,
        x=0.43,
        weight=0.15,
        fragments=0.4,
        products=1.6,
        y=0.15,
        x_byte=0,
    ),
    Layout.NHWC: Costs(
        launch_us=1.67,
        block=1540,
        tile=1730,
        chunk=1860,
        step=0,
        product=2.27,
        thread_x=16,
        thread_weight=27.5,
        thread_y=14.6,
        x=0.725,
        weight=0.23,
        fragments=0.52,
        products=1.29,
        y=0.159,
        x_byte=0,
    ),
}
H200: Final[Mapping[DType, Mapping[Layout, Costs]]] = {
    DType.FLOAT32: {
        Layout.NCHW: Costs(
            launch_us=0.961,
            block=1270,
            tile=2080,
            chunk=1510,
            step=51,
            product=0.877,
            thread_x=45.7,
            thread_weight=51.6,
            thread_y=0,
            x=0.0417,
            weight=0,
            fragments=1.6,
            products=1.78,
            y=0.205,
            x_byte=0.0187,
        ),
        Layout.NHWC: Costs(
            launch_us=1.25,
            block=894,
            tile=1940,
            chunk=1750,
            step=20.9,
            product=1.79,
            thread_x=88.8,
            thread_weight=39.9,
            thread_y=11.8,
            x=0.157,
            weight=0.0875,
            fragments=1.25,
            products=1.47,
            y=0.277,
            x_byte=0.00987,
        ),
    },
    DType.TF32: {
        Layout.NCHW: Costs(
            launch_us=1.13,
            block=1590,
            tile=1750,
            chunk=1500,
            step=23.9,
            product=6.54,
            thread_x=32.7,
            thread_weight=43.7,
            thread_y=0,
            x=0.12,
            weight=0,
            fragments=0.92,
            products=1.21,
            y=0.169,
            x_byte=0.0126,
        ),
        Layout.NHWC: Costs(
            launch_us=1.09,
            block=944,
            tile=2250,
            chunk=1500,
            step=41.2,
            product=4.41,
            thread_x=92.9,
            thread_weight=23.3,
            thread_y=0,
            x=0.18,
            weight=0.13,
            fragments=0.511,
            products=1.53,
            y=0.326,
            x_byte=0.00717,
        ),
    },
    DType.FLOAT16: _HALF,
    DType.BFLOAT16: _HALF,
}
COSTS: Final[Mapping[str, Mapping[DType, Mapping[Layout, Costs]]]] = {"nvidia-h200": H200}
"""By the device that they were fitted on."""
