"""Cuts of the implicit GEMM of few filters on a CPU: its loads, planes and sums as they are, products by loops."""

from __future__ import annotations

import shutil
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from typing import Final

import pytest

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.few_outputs import plan as plans
from conv_advisor.kernels.cuda.few_outputs.plan import Cut
from conv_advisor.kernels.tolerance import tolerance
from tests.kernels import host_cuda

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

ENDS: Final = Epilogue(bias=True, residual=True, activation=Activation.RELU)
LAYERS: Final = (
    "17x37-2-3x3-3-64-stride1x1-pad1x1-dilation1x1-groups1",
    "9x11-3-3x3-1-200-stride1x1-pad1x1-dilation1x1-groups1",
    "12x40-1-5x5-4-36-stride1x1-pad2x2-dilation1x1-groups1",
    "21x18-1-9x9-3-34-stride1x1-pad4x4-dilation1x1-groups1",
    "13x9-2-4x4-1-42-stride1x1-pad1x1-dilation1x1-groups1",
    "19x35-2-1x1-2-72-stride1x1-pad0x0-dilation1x1-groups1",
    "11x16-2-7x7-1-9-stride1x1-pad3x3-dilation1x1-groups1",
    "6x20-2-2x5-8-8-stride1x1-pad1x0-dilation1x1-groups1",
    "5x7-2-1x1-4-11-stride1x1-pad2x3-dilation1x1-groups1",
    "9x14-1-3x3-8-68-stride1x1-pad1x1-dilation1x1-groups1",
)
"""Every width of a load, filters that go in one piece and in several, tiles that end with y and behind it."""


def cases_of(place: int) -> list[tuple[Cut, ConvProblem]]:
    """Three cuts of each layer in one precision of two bytes and one of four, one of them with all that may follow."""
    dtypes = ((DType.FLOAT16, DType.FLOAT32), (DType.BFLOAT16, DType.TF32))[place % 2]
    cases = []
    for dtype in dtypes:
        problem = ConvProblem.parse(LAYERS[place], dtype=dtype, layout=Layout.NHWC)
        cuts = plans.cuts_of(problem, host_cuda.DEVICE)
        for turn in range(3):
            cut = cuts[(len(LAYERS) * turn + place) * 13 % len(cuts)]
            cases.append((cut, replace(problem, epilogue=ENDS) if turn == place % 3 else problem))
    return cases


CASES: Final = [case for place in range(len(LAYERS)) for case in cases_of(place)]


def error_of(cut: Cut, problem: ConvProblem) -> float:
    """The error of one cut, in a process in which CuPy's name is taken by its stand-in."""
    from conv_advisor.kernels.cuda.few_outputs.launch import launch

    return host_cuda.launch_error(launch(problem, host_cuda.DEVICE, cut), problem)


@pytest.fixture(scope="module")
def errors(pool: ProcessPoolExecutor) -> list[Future[float]]:
    """The error of every case, all asked for at once."""
    return [pool.submit(error_of, *case) for case in CASES]


@pytest.mark.parametrize("place", range(len(CASES)), ids=lambda place: f"{CASES[place][0]}-{CASES[place][1].key}")
def test_a_cut_is_right(errors: list[Future[float]], place: int) -> None:
    assert errors[place].result() <= tolerance(CASES[place][1])
