"""Every tile whose operands go straight to registers, on a CPU.

Products are made by loops, and no cluster has more than one block; no GPU is needed.
"""

from __future__ import annotations

import shutil
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Final

import pytest

from conv_advisor.data.epilogue import PLAIN, Activation, Epilogue
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.implicit_gemm_tma import straight
from conv_advisor.kernels.cuda.implicit_gemm_tma.straight import StraightTile
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.tolerance import tolerance
from tests.kernels import host_cuda
from tests.kernels.accelerator import GPU

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

ENDS: Final = Epilogue(bias=True, residual=True, activation=Activation.RELU)
LAYERS: Final = (
    "7-2-1-40-200",
    "3-1-1-8-8",
    "13-1-3-24-40",
    "9x7-2-3x5-72-16-stride2x1-pad1x2",
    "5-3-3-136-48-dilation2x2",
)
"""Tiles that end behind the last pixel and filter; gemm_k that ends within a step, and within or behind the steps that
are asked for ahead."""


def problem_of(name: str, place: int) -> ConvProblem:
    dtype = (DType.FLOAT16, DType.BFLOAT16)[place % 2]
    return ConvProblem.parse(name, dtype=dtype, layout=Layout.NHWC, epilogue=(PLAIN, ENDS)[place // 2 % 2])


CASES: Final = [(tile, problem_of(name, place)) for place, tile in enumerate(straight.TILES) for name in LAYERS]


def error_of(tile: StraightTile, problem: ConvProblem) -> float:
    """Run one cut on random operands from a y full of NaN, and compare with float64."""
    from conv_advisor.kernels.cuda.implicit_gemm_tma.launch import launch

    return host_cuda.launch_error(launch(problem, GPU, Cut(tile, 1)), problem)


@pytest.fixture(scope="module")
def errors(pool: ProcessPoolExecutor) -> list[Future[float]]:
    """The error of every case, all asked for at once."""
    return [pool.submit(error_of, *case) for case in CASES]


@pytest.mark.parametrize("place", range(len(CASES)), ids=lambda place: f"{CASES[place][0]}-{CASES[place][1].key}")
def test_a_straight_tile_is_right(errors: list[Future[float]], place: int) -> None:
    assert errors[place].result() <= tolerance(CASES[place][1])
