"""Every tile of the implicit GEMM that the tensor memory accelerator feeds on a real GPU, whatever the rule chooses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conv_advisor.data.epilogue import PLAIN, Activation, Epilogue
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cpu.threads import available_cores
from conv_advisor.kernels.cuda.implicit_gemm_tma import plan as plans
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import TILES, Tile, row_bytes_of
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.shapes import is_dense
from conv_advisor.kernels.tolerance import tolerance
from tests.kernels.accelerator import SHAPES

pytestmark = pytest.mark.gpu

ENDS = (
    Epilogue(residual=True),
    Epilogue(bias=True, activation=Activation.RELU),
    Epilogue(bias=True, residual=True, activation=Activation.GELU),
)
ENDED = ("same_3x3_tails", "same_3x3_c32", "dense_tails", "dense_waves", "stride_2", "batch_wraps")
"""Boxes that end behind y's last pixel or filter, blocks with several tiles, groups without a pixel."""


def problem_of(name: str, dtype: DType = DType.FLOAT16, epilogue: Epilogue = PLAIN) -> ConvProblem:
    return ConvProblem(**SHAPES[name], dtype=dtype, layout=Layout.NHWC, epilogue=epilogue)


PLAIN_CASES = [(tile, problem_of(name)) for name in SHAPES for tile in TILES]
BFLOAT16_CASES = [
    (tile, problem_of(name, DType.BFLOAT16)) for name in ("same_3x3_tails", "dense_tails") for tile in TILES
]
ENDED_CASES = [(tile, problem_of(name, epilogue=ends)) for name in ENDED for ends in ENDS for tile in TILES]
CASES = [*PLAIN_CASES, *BFLOAT16_CASES, *ENDED_CASES]


@pytest.fixture(scope="module")
def runner() -> Any:
    from conv_advisor.kernels.bench import open_runner

    opened = open_runner("cuda:0")
    if opened.device.capability != "9.0":
        pytest.skip(f"compute capability is {opened.device.capability}, not 9.0")
    compile_everything()
    return opened


def compile_everything() -> None:
    """On all cores: one after the other the tiles would take minutes to compile."""
    from conv_advisor.kernels.cuda.compile import load_module

    wanted = dict.fromkeys(
        (problem.dtype, *_plain_defines(tile, problem).items(), *defines_of(problem.epilogue).items())
        for tile, problem in CASES
    )
    todo = [(dtype, dict(defines)) for dtype, *defines in wanted]
    load_module(plans.SOURCE, todo[0][0], **todo[0][1])  # what it imports is imported by one thread
    with ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(lambda each: load_module(plans.SOURCE, each[0], **each[1]), todo))


def _plain_defines(tile: Tile, problem: ConvProblem) -> dict[str, int]:
    return tile.defines(row_bytes_of(problem.c), is_dense=bool(is_dense(problem)))


def problems_of(cases: list[tuple[Tile, ConvProblem]]) -> list[ConvProblem]:
    return list(dict.fromkeys(problem for _, problem in cases))


@pytest.mark.parametrize("problem", problems_of(CASES), ids=lambda problem: problem.key)
def test_every_tile_is_right(runner: Any, problem: ConvProblem) -> None:
    from conv_advisor.kernels.cuda.border import translated
    from conv_advisor.kernels.cuda.implicit_gemm_tma.launch import launch as launch_tile

    operands = runner.make_operands(problem, 0)
    for tile in TILES:
        with translated():
            launch = launch_tile(problem, runner.device, tile)
        assert runner.first_run(problem, launch, operands).max_error <= tolerance(problem), tile


@pytest.mark.parametrize("epilogue", [PLAIN, *ENDS], ids=str)
def test_equal_inputs_give_equal_bits(runner: Any, epilogue: Epilogue) -> None:
    from conv_advisor.kernels.cuda.border import translated
    from conv_advisor.kernels.cuda.implicit_gemm_tma.launch import launch as launch_tile

    problem = replace(problem_of("same_3x3_wide"), epilogue=epilogue)
    operands = runner.make_operands(problem, 0)
    with translated():
        launch = launch_tile(problem, runner.device, plans.plan_tile(problem, runner.device))
    outputs = []
    for _ in range(3):
        runner.first_run(problem, launch, operands)
        outputs.append(operands.y.get())
    assert all(np.array_equal(each, outputs[0]) for each in outputs[1:])
