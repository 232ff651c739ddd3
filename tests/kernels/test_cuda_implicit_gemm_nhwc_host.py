"""Every cut of the channels-innermost implicit GEMM on a CPU, with a residual: swizzles, copies ahead, staged outputs.

Products are made by loops, and no cluster has more than one block; no GPU is needed.
"""

from __future__ import annotations

import shutil
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from typing import Final

import pytest

from conv_advisor.data.epilogue import PLAIN, Activation, Epilogue
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import menu
from conv_advisor.kernels.cuda.implicit_gemm_nhwc.menu import Tile
from conv_advisor.kernels.cuda.parts.fitted import tiles_of_every_device
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.tolerance import tolerance
from tests.kernels import host_cuda

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

HOPPER: Final = Device(id="host", name="host", kind="cuda", capability="9.0", processors=1)
ENDS: Final = Epilogue(bias=True, residual=True, activation=Activation.RELU)
CHANNELS: Final = (64, 136, 520)
"""Channels of one stage, of fewer than any ring has, and of more than most."""


def layers_of(tile: Tile, place: int) -> list[ConvProblem]:
    """Layers whose last tiles stick out; neighbours in y are of 16, 8 and 2 bytes; some of 3x3 too, in both layouts."""
    dtype = (DType.FLOAT16, DType.BFLOAT16)[place % 2]
    filters = (tile.bf + 24, tile.bf + 12, tile.bf - 3)
    pointwise = [
        ConvProblem(2, c, 5, 11, k, 1, 1, dtype=dtype, layout=Layout.NHWC, epilogue=ENDS)
        for c, k in zip(CHANNELS, filters, strict=True)
    ]
    if place % 3:
        return pointwise
    planes = ((4, 6), (2, 6), (3, 5))[place // 3 % 3]
    spatial = ConvProblem(3, 24, *planes, tile.bf + 5, 3, 3, 1, 1, 1, 1, dtype=dtype, layout=Layout.NCHW, epilogue=ENDS)
    return [*pointwise, spatial, replace(spatial, layout=Layout.NHWC)]


CASES: Final = [
    (tile, problem)
    for place, tile in enumerate(tiles_of_every_device(menu.MENUS, DType.FLOAT16))
    for problem in layers_of(tile, place)
]


def error_of(tile: Tile, problem: ConvProblem) -> float:
    """Run one cut on random operands from a y full of NaN, and compare with float64."""
    from conv_advisor.kernels.cuda.implicit_gemm_nhwc.launch import launch

    return host_cuda.launch_error(launch(problem, HOPPER, Cut(tile, 1), problem.n), problem)


BEHIND: Final = [
    (tile, replace(problem, stride_h=1 + place % 2, stride_w=1 + place % 2, epilogue=epilogue))
    for place, (tile, problem) in enumerate(CASES)
    if problem.r == 1
    for epilogue in (ENDS, Epilogue(bias=True, activation=Activation.RELU), PLAIN)[place % 3 : place % 3 + 1]
]


def error_behind_prologue(tile: Tile, problem: ConvProblem) -> float:
    """The same behind a prologue, of an x that has more channels, and of one that has no more."""
    from conv_advisor.kernels.cuda.implicit_gemm_nhwc.launch import launch

    prepared = launch(problem, HOPPER, Cut(tile, 1), problem.n)
    return max(host_cuda.prologue_error(prepared, problem, channels) for channels in (problem.c, problem.c + 24))


@pytest.fixture(scope="module")
def errors_behind_prologue(pool: ProcessPoolExecutor) -> list[Future[float]]:
    return [pool.submit(error_behind_prologue, *case) for case in BEHIND]


@pytest.mark.parametrize(
    "place", range(len(BEHIND)), ids=lambda place: f"{BEHIND[place][0].bf}x{BEHIND[place][0].bp}-{BEHIND[place][1].key}"
)
def test_a_cut_behind_a_prologue_is_right(errors_behind_prologue: list[Future[float]], place: int) -> None:
    assert errors_behind_prologue[place].result() <= tolerance(BEHIND[place][1])


@pytest.mark.parametrize("layer", ["8-1-3-64-64", "8-1-1-64-64-pad1", "8-1-2-64-64-stride2-pad0", "8-1-1-64-60"])
def test_padding_taps_and_odd_channels_have_no_prologue(layer: str, pool: ProcessPoolExecutor) -> None:
    assert not pool.submit(takes_prologue, layer).result()


def test_one_tap_without_padding_has_a_prologue(pool: ProcessPoolExecutor) -> None:
    assert pool.submit(takes_prologue, "8-1-1-64-64").result()


def takes_prologue(layer: str) -> bool:
    from conv_advisor.kernels.cuda.implicit_gemm_nhwc.launch import launch

    problem = ConvProblem.parse(layer, dtype=DType.FLOAT16, layout=Layout.NHWC)
    tile = tiles_of_every_device(menu.MENUS, DType.FLOAT16)[0]
    return launch(problem, HOPPER, Cut(tile, 1)).behind_prologue is not None


@pytest.fixture(scope="module")
def errors(pool: ProcessPoolExecutor) -> list[Future[float]]:
    """The error of every case, all asked for at once."""
    return [pool.submit(error_of, *case) for case in CASES]


@pytest.mark.parametrize(
    "place", range(len(CASES)), ids=lambda place: f"{CASES[place][0].bf}x{CASES[place][0].bp}-{CASES[place][1].key}"
)
def test_a_cut_with_a_residual_is_right(errors: list[Future[float]], place: int) -> None:
    assert errors[place].result() <= tolerance(CASES[place][1])
