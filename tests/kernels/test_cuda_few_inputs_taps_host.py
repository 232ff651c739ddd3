"""Cuts of the form of few input channels whose weight `wgmma` reads, on a CPU: products by loops, the rest as it is."""

from __future__ import annotations

import shutil
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import pytest

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import reference
from conv_advisor.kernels.cuda.few_inputs import plan as plans
from conv_advisor.kernels.cuda.few_inputs import taps
from conv_advisor.kernels.cuda.few_inputs.menu import Cut
from conv_advisor.kernels.tolerance import tolerance
from tests.kernels import host_cuda

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

DEVICE: Final = replace(host_cuda.DEVICE, capability="9.0")
ENDS: Final = Epilogue(bias=True, residual=True, activation=Activation.RELU)
LAYERS: Final = (
    "47x43-1-11x11-64-1-stride4x4-pad0x0-dilation1x1-groups1",
    "47x45-1-11x11-96-2-stride4x4-pad2x2-dilation1x1-groups1",
    "31x37-2-9x9-32-1-stride2x2-pad4x4-dilation1x1-groups1",
    "23x21-1-9x7-136-1-stride2x2-pad3x3-dilation1x1-groups1",
    "13x20-2-9x9-16-1-stride1x1-pad4x4-dilation1x1-groups1",
    "19x23-2-7x11-8-1-stride1x3-pad3x5-dilation1x1-groups1",
    "21x28-2-8x11-40-2-stride3x2-pad1x5-dilation1x1-groups1",
    "17x19-3-11x7-72-1-stride1x1-pad5x3-dilation1x1-groups1",
    "15x18-1-11x11-24-2-stride1x1-pad5x5-dilation1x1-groups1",
    "3x9-2-10x11-16-1-stride2x4-pad9x7-dilation1x1-groups1",
)
"""Two to eight copies of the slots, rows of any length and alignment, every count of steps, padding wider than x."""
CUTS_OF_LAYER: Final = 3


def cuts_of(problem: ConvProblem) -> list[Cut]:
    """The cuts of this form."""
    return [cut for cut in plans.cuts_of(problem, DEVICE) if cut in taps.FORM.cuts]


def cases_of(place: int) -> list[tuple[Cut, ConvProblem]]:
    """Some cuts of each layer, one of them with all that may follow."""
    dtype = (DType.FLOAT16, DType.BFLOAT16)[place % 2]
    problem = ConvProblem.parse(LAYERS[place], dtype=dtype, layout=Layout.NHWC)
    cuts = cuts_of(problem)
    some = [cuts[(len(LAYERS) * turn + place) * 7 % len(cuts)] for turn in range(CUTS_OF_LAYER)]
    return [
        (cut, replace(problem, epilogue=ENDS) if turn == place % CUTS_OF_LAYER else problem)
        for turn, cut in enumerate(some)
    ]


CASES: Final = [case for place in range(len(LAYERS)) for case in cases_of(place)]


def result_of(cut: Cut, problem: ConvProblem, *operands: np.ndarray | None) -> np.ndarray:
    """Run one cut from a y full of NaN, in a process in which CuPy's name is taken by its stand-in."""
    from conv_advisor.kernels.cuda.few_inputs.launch import launch

    return host_cuda.result_of_launch(launch(problem, DEVICE, cut), problem, *operands)


def error_of(cut: Cut, problem: ConvProblem) -> float:
    """The error against float64, on random operands."""
    return host_cuda.ended_error(problem, partial(result_of, cut, problem))


def spoilt_pixels(cut: Cut, problem: ConvProblem, column: int) -> list[int]:
    """Columns of y that are not finite where this column of x is infinite."""
    x, weight = reference.random_operands(problem, 0)
    x[:, :, column] = np.inf
    y = np.moveaxis(result_of(cut, problem, x, weight).astype(np.float32), 2, 0)
    return [q for q in range(problem.q) if not np.isfinite(y[q]).all()]


@pytest.fixture(scope="module")
def errors(pool: ProcessPoolExecutor) -> list[Future[float]]:
    """The error of every case, all asked for at once."""
    return [pool.submit(error_of, *case) for case in CASES]


@pytest.mark.parametrize("place", range(len(CASES)), ids=lambda place: f"{CASES[place][0]}-{CASES[place][1].key}")
def test_a_cut_is_right(errors: list[Future[float]], place: int) -> None:
    assert errors[place].result() <= tolerance(CASES[place][1])


@pytest.mark.parametrize(("s", "c"), [(7, 1), (10, 1), (11, 1), (11, 2)])
def test_what_is_infinite_spoils_the_windows_that_it_lies_in_alone(pool: ProcessPoolExecutor, s: int, c: int) -> None:
    problem = ConvProblem(1, c, 11, 40, 16, 10, s, dtype=DType.FLOAT16, layout=Layout.NHWC)
    spoilt = pool.submit(spoilt_pixels, cuts_of(problem)[0], problem, 20).result()
    assert spoilt == list(range(20 - s + 1, 21))


@pytest.mark.parametrize(("c", "stride"), [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)])
def test_eight_neighbouring_windows_begin_in_different_banks(c: int, stride: int) -> None:
    problem = ConvProblem(1, c, 99, 99, 16, 11, 11, stride, stride, dtype=DType.FLOAT16, layout=Layout.NHWC)
    assert cuts_of(problem)
    for cut in cuts_of(problem):
        stage = taps.Stage.of(cut, problem)
        places = [
            element % taps.CHUNK * stage.copies // taps.CHUNK * stage.copy_bytes + element // taps.CHUNK * 16
            for element in range(0, 8 * stride * c, stride * c)
        ]
        assert all(place % 16 == 0 for place in places)
        assert len({place % taps.LANES_BYTES for place in places}) == 8
