"""Every tile and cluster of the 1x1 convolution on a real GPU, whatever the kernel's own rule would choose."""

from __future__ import annotations

from typing import Any

import pytest

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.pointwise import plan as plans
from conv_advisor.kernels.tolerance import tolerance

pytestmark = pytest.mark.gpu

LAYERS = (
    *("1-2-1-8-64", "3-7-1-17-24", "7-9-1-300-40", "7-130-1-64-64", "7-1-1-33-832", "7-2-1-6-5", "8-2-1-32-64"),
    *("13-5-1-100-96", "14-3-1-130-520", "27-3-1-64-48", "28-3-1-256-32", "55-2-1-70-16", "56-16-1-64-64"),
)
STRIDED = ("56x56-2-1x1-130-256-stride2x2", "27x29-9-1x1-33-17-stride2x3", "15x14-65-1x1-300-72-stride1x2")
PROBLEMS = [ConvProblem.parse(layer, dtype=dtype) for layer in LAYERS for dtype in DType] + [
    ConvProblem.parse(f"{layer}-pad0x0-dilation1x1-groups1", dtype=dtype)
    for layer in STRIDED
    for dtype in (DType.FLOAT32, DType.TF32)
]

ENDS = Epilogue(bias=True, residual=True, activation=Activation.RELU)
ENDED = [
    ConvProblem.parse(layer, dtype=dtype, epilogue=ENDS)
    for layer in ("28-3-1-300-64", "14-5-1-136-520", "7-64-1-259-1024", "9-7-1-100-70")
    for dtype in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
]
"""Planes of 16-byte rows; of others, with images of the residual that begin at 16 bytes, or anywhere; any channels."""


@pytest.fixture(scope="module")
def runner() -> Any:
    from conv_advisor.kernels.bench import open_runner

    opened = open_runner("cuda:0")
    if opened.device.capability != "9.0":
        pytest.skip("wgmma is Hopper's")
    return opened


@pytest.mark.parametrize("problem", [*PROBLEMS, *ENDED], ids=lambda problem: problem.key)
def test_every_cut_is_right(runner: Any, problem: ConvProblem) -> None:
    from conv_advisor.kernels.cuda.border import translated
    from conv_advisor.kernels.cuda.pointwise.launch import launch as launch_cut

    operands = runner.make_operands(problem, 0)
    for cut in plans.expected(problem, runner.device):
        with translated():
            launch = launch_cut(problem, runner.device, cut)
        error = runner.first_run(problem, launch, operands).max_error
        assert error <= tolerance(problem), cut
