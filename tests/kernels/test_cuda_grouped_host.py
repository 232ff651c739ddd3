"""The grouped convolution on a CPU: staging and outputs as they are, tensor cores by a loop; no GPU is needed."""

from __future__ import annotations

import shutil
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace

import pytest

from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.comparison import max_error
from conv_advisor.kernels.cuda.grouped import cut as plans
from conv_advisor.kernels.cuda.grouped import plan as grouped_choice
from conv_advisor.kernels.reference import convolve, random_operands
from conv_advisor.kernels.tolerance import tolerance
from tests.kernels import host_cuda

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

LAYERS = (
    "7x9-3-3x3-12-8-stride1x1-pad1x1-dilation1x1-groups2",
    "9x7-2-3x3-18-24-stride2x2-pad1x1-dilation1x1-groups3",
    "9x16-2-1x1-40-32-stride1x1-pad0x0-dilation1x1-groups4",
    "8x5-5-1x1-6-10-stride2x2-pad0x0-dilation1x1-groups2",
    "6x13-1-3x2-15-9-stride1x3-pad2x1-dilation2x1-groups3",
    "12x12-1-3x3-34-64-stride1x1-pad1x1-dilation1x1-groups2",
)
CASES = [
    ConvProblem.parse(layer, dtype=dtype, layout=layout)
    for layer in LAYERS
    for dtype in (DType.FLOAT32, DType.BFLOAT16)
    for layout in Layout
]
TILES = ((1, 1), (2, 3))
"""Compiled here: each takes g++ seconds."""


def cuts_of(problem: ConvProblem) -> list[plans.Cut]:
    """Some of very different kinds: without chunks, and with them, in one stage and two; walking over tiles or not."""
    cuts = [cut for cut in grouped_choice.expected(problem, host_cuda.DEVICE) if (cut.tile.mt, cut.tile.nt) in TILES]
    kinds = {
        (cut.tile, cut.chunk_words < plans.group_words(problem), cut.stages, cut.block_groups): cut for cut in cuts
    }
    found = list(kinds.values())[:6]
    tiles = [plans.tiles_of(problem, cut) for cut in found]
    return [
        replace(cut, tile_blocks=count if index % 2 else max(1, count // 2))
        for index, (cut, count) in enumerate(zip(found, tiles, strict=True))
    ]


def errors_of(problem: ConvProblem) -> list[float]:
    """The error of every cut; in a process in which CuPy's name is taken by its stand-in."""
    from conv_advisor.kernels.cuda.grouped import launch

    x, weight = random_operands(problem, 0)
    expected, errors = convolve(problem, x, weight), []
    for cut in cuts_of(problem):
        result = host_cuda.result_of_launch(launch.launch(problem, host_cuda.DEVICE, cut), problem, x, weight)
        errors.append(max_error(result, expected))
    return errors


@pytest.fixture(scope="module")
def errors(pool: ProcessPoolExecutor) -> dict[ConvProblem, Future[list[float]]]:
    """The errors of every case, all asked for at once."""
    return {case: pool.submit(errors_of, case) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_every_kind_of_cut_is_right(errors: dict[ConvProblem, Future[list[float]]], case: ConvProblem) -> None:
    found = errors[case].result()
    assert len(found) > 1
    assert max(found) <= tolerance(case)
