"""The 1x1 convolution on a CPU: staging, fragments and outputs as they are, wgmma by a loop; no GPU is needed."""

from __future__ import annotations

import shutil
from concurrent.futures import Future, ProcessPoolExecutor

import pytest

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.parts.fitted import tiles_of_every_device
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.pointwise import menu
from conv_advisor.kernels.cuda.pointwise.menu import Tile
from conv_advisor.kernels.cuda.pointwise.plan import residents
from conv_advisor.kernels.tolerance import tolerance
from tests.kernels import host_cuda

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

HOPPER = Device(id="host", name="host", kind="cuda", capability="9.0", processors=1)
"""With one processor, so that no cluster is worth its while and blocks walk over several tiles."""
LAYERS = ("1-37-1-40-16", "3-7-1-17-24", "7-9-1-70-40", "7-2-1-6-5", "8-2-1-40-64", "13-5-1-20-96", "27-1-1-33-88")
CASES = [
    ConvProblem.parse(layer, dtype=dtype)
    for layer in (*LAYERS, "28-2-1-130-16")
    for dtype in ("float32", "tf32", "bfloat16")
] + [
    ConvProblem.parse(f"{layer}-pad0x0-dilation1x1-groups1", dtype=dtype)
    for layer in ("28x26-3-1x1-40-16-stride2x2", "27x29-2-1x1-33-17-stride2x3", "14x14-5-1x1-70-72-stride1x2")
    for dtype in ("float32", "tf32")
]
ENDS = Epilogue(bias=True, residual=True, activation=Activation.RELU)


def ended_layers(tile: Tile) -> list[ConvProblem]:
    """Several tiles of pixels, the last sticking out, of filters that end in a tile: one layer for each way x may come.

    Planes of 16-byte rows; of others, with images of the residual that begin at 16 bytes and that do not; channels that
    are no multiple of 16 bytes.
    """
    sizes = ((64, 16, tile.bn - 5), (136, 13, tile.bn + 24), (72, 13, tile.bn + 3), (70, 9, tile.bn))
    return [
        ConvProblem(3, c, size, size, k, 1, 1, dtype=(DType.FLOAT16, DType.BFLOAT16)[place % 2], epilogue=ENDS)
        for place, (c, size, k) in enumerate(sizes, tile.bn // 16)
    ]


ENDED = [
    (tile, problem)
    for tile in tiles_of_every_device(menu.MENUS, DType.FLOAT16)
    for problem in ended_layers(tile)
    if residents(tile, problem) > 0
]


def error_of_cut(tile: Tile, problem: ConvProblem) -> float:
    """Run one cut on random operands from a y full of NaN, and compare with float64."""
    from conv_advisor.kernels.cuda.pointwise.launch import launch

    return host_cuda.launch_error(launch(problem, HOPPER, Cut(tile, 1)), problem)


@pytest.fixture(scope="module")
def errors(pool: ProcessPoolExecutor) -> dict[ConvProblem, Future[float]]:
    """The error of every case, all asked for at once."""
    return {case: pool.submit(host_cuda.error_of, "cuda.pointwise", case, device=HOPPER) for case in CASES}


@pytest.fixture(scope="module")
def ended_errors(pool: ProcessPoolExecutor) -> list[Future[float]]:
    """The same of every cut with a residual."""
    return [pool.submit(error_of_cut, *case) for case in ENDED]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_it_is_right_whatever_the_alignment(errors: dict[ConvProblem, Future[float]], case: ConvProblem) -> None:
    assert errors[case].result() <= tolerance(case)


@pytest.mark.parametrize(
    "place", range(len(ENDED)), ids=lambda place: f"{place}-{ENDED[place][0].mode}-{ENDED[place][1].key}"
)
def test_a_cut_with_a_residual_is_right(ended_errors: list[Future[float]], place: int) -> None:
    assert ended_errors[place].result() <= tolerance(ENDED[place][1])
