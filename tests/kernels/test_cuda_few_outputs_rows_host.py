"""Cuts of the form of few filters that multiplies rows of taps, on a CPU: products by loops, the rest as it is."""

from __future__ import annotations

import shutil
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import reference
from conv_advisor.kernels.cuda.few_outputs import rows
from conv_advisor.kernels.cuda.few_outputs.rows import RowCut
from conv_advisor.kernels.tolerance import tolerance
from tests.kernels import host_cuda

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

ENDS: Final = Epilogue(bias=True, residual=True, activation=Activation.RELU)
LAYERS: Final = (
    "17x37-2-3x3-3-64-stride1x1-pad1x1-dilation1x1-groups1",
    "9x11-3-3x3-1-200-stride1x1-pad1x1-dilation1x1-groups1",
    "12x40-1-5x5-4-36-stride1x1-pad2x2-dilation1x1-groups1",
    "21x38-1-9x9-3-34-stride1x1-pad4x4-dilation1x1-groups1",
    "13x9-2-4x4-1-42-stride1x1-pad1x1-dilation1x1-groups1",
    "19x35-2-1x1-2-72-stride1x1-pad0x0-dilation1x1-groups1",
    "11x16-2-7x7-1-9-stride1x1-pad3x3-dilation1x1-groups1",
    "6x20-2-2x5-8-8-stride1x1-pad1x0-dilation1x1-groups1",
    "5x7-2-1x1-4-11-stride1x1-pad2x3-dilation1x1-groups1",
    "23x41-2-7x7-1-3-stride1x1-pad3x3-dilation1x1-groups1",
    "23x30-1-5x5-3-1-stride1x1-pad2x2-dilation1x1-groups1",
    "18x50-1-16x16-2-1-stride1x1-pad8x8-dilation1x1-groups1",
    "9x21-2-3x2-1-4-stride1x1-pad1x1-dilation1x1-groups1",
    "9x21-2-4x11-3-6-stride1x1-pad1x5-dilation1x1-groups1",
)
"""Every width of a copy, one chunk of channels and several pieces, odd and even filters, tiles that end behind y."""
CUTS_OF_LAYER: Final = 4


def cases_of(place: int) -> list[tuple[RowCut, ConvProblem]]:
    """Some cuts of each layer, one of them with all that may follow."""
    dtype = (DType.FLOAT16, DType.BFLOAT16)[place % 2]
    problem = ConvProblem.parse(LAYERS[place], dtype=dtype, layout=Layout.NHWC)
    cuts = rows.cuts_of(problem, host_cuda.DEVICE)
    some = [cuts[(len(LAYERS) * turn + place) * 13 % len(cuts)] for turn in range(CUTS_OF_LAYER)]
    return [
        (cut, replace(problem, epilogue=ENDS) if turn == place % CUTS_OF_LAYER else problem)
        for turn, cut in enumerate(some)
    ]


CASES: Final = [case for place in range(len(LAYERS)) for case in cases_of(place)]


def error_of(cut: RowCut, problem: ConvProblem) -> float:
    """The error of one cut, in a process in which CuPy's name is taken by its stand-in."""
    from conv_advisor.kernels.cuda.few_outputs.launch import launch

    return host_cuda.launch_error(launch(problem, host_cuda.DEVICE, cut), problem)


def spoilt_pixels(cut: RowCut, problem: ConvProblem, row: int, column: int) -> list[tuple[int, int]]:
    """Rows and columns of y that are not finite where this pixel of x is infinite."""
    from conv_advisor.kernels.cuda.few_outputs.launch import launch

    x, weight = reference.random_operands(problem, 0)
    x[:, row, column] = np.inf
    y = host_cuda.result_of_launch(launch(problem, host_cuda.DEVICE, cut), problem, x, weight).astype(np.float32)
    return [(p, q) for p in range(problem.p) for q in range(problem.q) if not np.isfinite(y[0, p, q]).all()]


@pytest.fixture(scope="module")
def errors(pool: ProcessPoolExecutor) -> list[Future[float]]:
    """The error of every case, all asked for at once."""
    return [pool.submit(error_of, *case) for case in CASES]


@pytest.mark.parametrize("place", range(len(CASES)), ids=lambda place: f"{CASES[place][0]}-{CASES[place][1].key}")
def test_a_cut_is_right(errors: list[Future[float]], place: int) -> None:
    assert errors[place].result() <= tolerance(CASES[place][1])


@pytest.mark.parametrize("c", [3, 16])
@pytest.mark.parametrize("r", [3, 4])
def test_what_is_infinite_spoils_the_windows_that_it_lies_in_alone(pool: ProcessPoolExecutor, r: int, c: int) -> None:
    problem = ConvProblem(1, c, 9, 40, 2, r, 3, dtype=DType.FLOAT16, layout=Layout.NHWC)
    cut = rows.cuts_of(problem, host_cuda.DEVICE)[0]
    spoilt = pool.submit(spoilt_pixels, cut, problem, 5, 20).result()
    assert spoilt == [(p, q) for p in range(max(0, 5 - r + 1), 6) for q in range(18, 21) if p < problem.p]
