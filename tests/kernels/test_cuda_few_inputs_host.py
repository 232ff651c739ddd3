"""Cuts of the implicit GEMM of few input channels on a CPU: staging and outputs as they are, products by loops."""

from __future__ import annotations

import shutil
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import pytest

from conv_advisor.data.epilogue import PLAIN, Activation, Epilogue
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import reference
from conv_advisor.kernels.cuda.few_inputs import plan as plans
from conv_advisor.kernels.cuda.few_inputs.menu import HALF_TILES, MMA_TILES, Cut, Tile
from conv_advisor.kernels.tolerance import tolerance
from tests.kernels import host_cuda

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

ENDS: Final = Epilogue(bias=True, residual=True, activation=Activation.RELU)
LAYERS: Final = (
    "20x36-2-7x7-64-3-stride2x2-pad3x3-dilation1x1-groups1",
    "17x19-3-3x3-72-3-stride1x1-pad1x1-dilation1x1-groups1",
    "19x40-2-3x3-16-3-stride2x2-pad1x1-dilation1x1-groups1",
    "18x33-2-3x3-24-3-stride2x2-pad0x0-dilation1x1-groups1",
    "47x44-1-11x11-64-3-stride4x4-pad2x2-dilation1x1-groups1",
    "13x20-2-5x5-32-1-stride1x1-pad2x2-dilation1x1-groups1",
    "9x23-2-4x2-8-2-stride1x3-pad2x1-dilation1x1-groups1",
    "11x28-2-3x9-40-4-stride3x2-pad1x5-dilation1x1-groups1",
    "5x6-3-1x1-96-4-stride1x1-pad0x0-dilation1x1-groups1",
    "2x3-2-3x5-8-3-stride1x1-pad3x7-dilation1x1-groups1",
)
"""Widths that are whole runs of pixels and others, both copies of x and either alone, every chunk count's parity."""
NARROW_LAYERS: Final = (
    "19x40-2-3x3-16-16-stride1x1-pad1x1-dilation1x1-groups1",
    "17x33-2-3x3-8-24-stride2x2-pad1x1-dilation1x1-groups1",
    "9x35-3-5x5-24-8-stride1x1-pad2x2-dilation1x1-groups1",
    "11x18-2-3x3-72-64-stride1x1-pad1x1-dilation1x1-groups1",
    "14x20-2-7x7-40-16-stride2x1-pad3x2-dilation1x1-groups1",
    "13x21-3-1x1-48-40-stride1x1-pad0x0-dilation1x1-groups1",
    "5x6-2-2x3-8-8-stride1x1-pad2x4-dilation1x1-groups1",
    "13x18-2-3x3-24-12-stride1x1-pad1x1-dilation1x1-groups1",
    "15x12-2-5x3-8-6-stride2x2-pad2x1-dilation1x1-groups1",
    "13x22-2-3x3-9-21-stride1x1-pad1x1-dilation1x1-groups1",
    "11x19-2-5x5-14-15-stride1x1-pad2x2-dilation1x1-groups1",
    "12x17-2-3x3-19-26-stride2x2-pad1x1-dilation1x1-groups1",
    "14x20-1-3x3-11-3-stride2x2-pad1x1-dilation1x1-groups1",
    "10x18-1-2x3-42-2-stride1x1-pad0x1-dilation1x1-groups1",
)
"""Odd and even runs, channels and filters, steps with and without a last chunk alone, any count of a warp's filters."""


def cuts_of(place: int, problem: ConvProblem) -> list[Cut]:
    """Three tiles of each layer, in turns, with any of their widths."""
    cuts = plans.cuts_of(problem, host_cuda.DEVICE)
    tiles = list(dict.fromkeys(cut.tile for cut in cuts))
    some = [tiles[(3 * place + turn) % len(tiles)] for turn in range(3)]
    of_some = [[cut for cut in cuts if cut.tile == tile] for tile in some]
    return [each[(place + turn) % len(each)] for turn, each in enumerate(of_some)]


def cases_of(place: int) -> list[tuple[Cut, ConvProblem]]:
    """In one precision of two bytes and one of four, alone and with all that may follow."""
    halves, wide = (DType.FLOAT16, DType.BFLOAT16), (DType.FLOAT32, DType.TF32)
    layer = (*LAYERS, *NARROW_LAYERS)[place]
    problems = [
        ConvProblem.parse(layer, dtype=dtypes[place % 2], layout=layout)
        for dtypes in ((halves, wide) if layer in LAYERS else (halves,))
        for layout in (Layout if layer in LAYERS else (Layout.NHWC,))
    ]
    return [
        (cut, ended)
        for problem in problems
        for cut in cuts_of(place, problem)
        for ended in (problem, replace(problem, epilogue=ENDS))
    ]


CASES: Final = [case for place in range(len(LAYERS + NARROW_LAYERS)) for case in cases_of(place)]


def result_of(cut: Cut, problem: ConvProblem, *operands: np.ndarray | None) -> np.ndarray:
    """Run one cut from a y full of NaN, in a process in which CuPy's name is taken by its stand-in."""
    from conv_advisor.kernels.cuda.few_inputs.launch import launch

    return host_cuda.result_of_launch(launch(problem, host_cuda.DEVICE, cut), problem, *operands)


def error_of(cut: Cut, problem: ConvProblem) -> float:
    """The error against float64, on random operands."""
    return host_cuda.ended_error(problem, partial(result_of, cut, problem))


def spoilt_pixels(cut: Cut, problem: ConvProblem, column: int) -> list[int]:
    """Columns of y that are not finite where this column of x is infinite."""
    x, weight = reference.random_operands(problem, 0)
    columns = 2 if problem.layout is Layout.NHWC else 3
    np.moveaxis(x, columns, 0)[column] = np.inf
    y = np.moveaxis(result_of(cut, problem, x, weight).astype(np.float32), columns, 0)
    return [q for q in range(problem.q) if not np.isfinite(y[q]).all()]


@pytest.fixture(scope="module")
def errors(pool: ProcessPoolExecutor) -> list[Future[float]]:
    """The error of every case, all asked for at once."""
    return [pool.submit(error_of, *case) for case in CASES]


@pytest.mark.parametrize("place", range(len(CASES)), ids=lambda place: f"{CASES[place][0]}-{CASES[place][1].key}")
def test_a_cut_is_right(errors: list[Future[float]], place: int) -> None:
    assert errors[place].result() <= tolerance(CASES[place][1])


@pytest.mark.parametrize("s", [3, 5])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(("dtype", "tiles"), [(DType.FLOAT16, HALF_TILES), (DType.FLOAT32, MMA_TILES)])
def test_what_is_infinite_spoils_the_windows_that_it_lies_in_alone(
    pool: ProcessPoolExecutor, s: int, dtype: DType, layout: Layout, tiles: tuple[Tile, ...]
) -> None:
    problem = ConvProblem(1, 3, 4, 40, 16, 3, s, dtype=dtype, layout=layout, epilogue=PLAIN)
    spoilt = pool.submit(spoilt_pixels, Cut(tiles[-1], 16), problem, 20).result()
    assert spoilt == list(range(20 - s + 1, 21))
