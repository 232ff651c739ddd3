"""Every tile of the implicit GEMM of planar tensors that the accelerator feeds, on a CPU, which does what that would.

Boxes are read and swizzled as the accelerator does, operands are read through their descriptors, and no cluster has
more than one block; no GPU is needed.
"""

from __future__ import annotations

import shutil
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from typing import Final

import pytest

from conv_advisor.data.epilogue import PLAIN, Activation, Epilogue
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed import forms, plan
from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed.menu import LINE, TILES, Tile
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.tolerance import tolerance
from tests.kernels import host_cuda
from tests.kernels.accelerator import GPU

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

ENDS: Final = Epilogue(bias=True, residual=True, activation=Activation.RELU)
PLANES: Final = ("9x8-3-1-150-72", "16-2-1-70-24", "8-5-1-8-200")
"""Planes that end within a box, at its end, and several in a tile; one and many stages."""
DENSE: Final = ("7-5-1-135-70", "13-2-1-70-24", "6-3-1-300-40", "8x10-1-1-129-9")
"""Units of one pixel, in lines of several images and of one, four, and eight with channels that are padded."""
WINDOWS: Final = ("7-3-3-70-72", "13x9-2-3x5-40-20-stride2x1-pad1x2", "8-2-3-65-33-pad2-dilation2")
"""Images that end within a tile; taps of one stage and of two."""
LAYERS: Final = (*PLANES, *DENSE, *WINDOWS)


def cases() -> list[tuple[Tile, ConvProblem, int]]:
    """Tiles, layers and multiprocessors: all of them by turns with and without an epilogue, and in both types."""
    made = []
    for place, tile in enumerate(TILES):
        for shift, layer in enumerate(LAYERS):
            dtype = (DType.FLOAT16, DType.BFLOAT16)[(place + shift) % 2]
            problem = ConvProblem.parse(layer, dtype=dtype, epilogue=(ENDS, PLAIN)[(place + shift) // 2 % 2])
            if not forms.is_planar(problem) or tile.columns % LINE == 0:
                made.append((tile, problem, (1, 132)[shift % 2]))
    return made


CASES: Final = cases()


def error_of(tile: Tile, problem: ConvProblem, processors: int, images: int | None = None) -> float:
    """Run one cut on random operands from a y full of NaN, and compare with float64."""
    from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed.launch import launch

    device = replace(GPU, processors=processors)
    return host_cuda.launch_error(launch(problem, device, Cut(tile, 1), images), problem)


@pytest.fixture(scope="module")
def errors(pool: ProcessPoolExecutor) -> list[Future[float]]:
    """The error of every case, all asked for at once."""
    return [pool.submit(error_of, *case) for case in CASES]


@pytest.mark.parametrize(
    "place", range(len(CASES)), ids=lambda place: f"{CASES[place][0].bf}x{CASES[place][0].bp}-{CASES[place][1].key}"
)
def test_a_tile_is_right(errors: list[Future[float]], place: int) -> None:
    assert errors[place].result() <= tolerance(CASES[place][1])


@pytest.mark.parametrize("layer", ["7-5-1-20-12", "7-5-3-70-12"])
def test_images_that_do_not_fit_the_workspace_are_packed_one_after_the_other(
    pool: ProcessPoolExecutor, layer: str
) -> None:
    problem = ConvProblem.parse(layer, dtype=DType.FLOAT16, epilogue=ENDS)
    assert pool.submit(error_of, TILES[-1], problem, 132, 2).result() <= tolerance(problem)


def test_the_cases_are_read_in_every_way_and_stored_in_every_unit() -> None:
    assert {plan.form_of(problem) for _, problem, _ in CASES} == {plan.IM2COL, plan.DENSE, plan.PLANAR}
    packed = [problem for _, problem, _ in CASES if plan.form_of(problem) != plan.PLANAR]
    for epilogue in (PLAIN, ENDS):
        assert {plan.unit_of(problem) for problem in packed if problem.epilogue == epilogue} == set(plan.UNITS)
