"""Cuts of the implicit GEMM of few filters on a real GPU, whatever the rule chooses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conv_advisor.data.epilogue import PLAIN, Activation, Epilogue
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cpu.threads import available_cores
from conv_advisor.kernels.cuda.few_outputs import rows
from conv_advisor.kernels.cuda.few_outputs.choice import choose, cuts_of
from conv_advisor.kernels.tolerance import tolerance

pytestmark = pytest.mark.gpu

ENDS = (
    Epilogue(residual=True),
    Epilogue(bias=True, activation=Activation.RELU),
    Epilogue(bias=True, residual=True, activation=Activation.GELU),
)
LAYERS = (
    "67x61-2-3x3-3-64-stride1x1-pad1x1-dilation1x1-groups1",
    "29x31-3-3x3-1-200-stride1x1-pad1x1-dilation1x1-groups1",
    "32x40-1-5x5-4-36-stride1x1-pad2x2-dilation1x1-groups1",
    "41x38-1-9x9-3-34-stride1x1-pad4x4-dilation1x1-groups1",
    "33x29-2-4x4-1-43-stride1x1-pad1x1-dilation1x1-groups1",
    "26x40-2-2x5-8-8-stride1x1-pad1x0-dilation1x1-groups1",
    "5x7-300-1x1-4-11-stride1x1-pad2x3-dilation1x1-groups1",
    "27x23-2-3x3-8-68-stride1x1-pad1x1-dilation1x1-groups1",
)
ROW_LAYERS = (
    "61x83-2-7x7-1-3-stride1x1-pad3x3-dilation1x1-groups1",
    "45x70-1-5x5-3-1-stride1x1-pad2x2-dilation1x1-groups1",
    "38x90-1-16x16-2-1-stride1x1-pad8x8-dilation1x1-groups1",
    "29x41-2-3x2-1-4-stride1x1-pad1x1-dilation1x1-groups1",
    "49x61-2-4x11-3-6-stride1x1-pad1x5-dilation1x1-groups1",
    "59x75-1-9x9-4-48-stride1x1-pad4x4-dilation1x1-groups1",
)
"""For the form that multiplies rows of taps: fewer channels than the other takes, and filters of many taps."""
HALVES = (DType.FLOAT16, DType.BFLOAT16)
EVERY_OTHER = 11
"""Of a layer's cuts every so many are run, from another one on for each layer."""


def problem_of(layer: str, dtype: DType, epilogue: Epilogue = PLAIN) -> ConvProblem:
    return replace(ConvProblem.parse(layer, dtype=dtype, layout=Layout.NHWC), epilogue=epilogue)


PROBLEMS = [
    problem_of(layer, dtype, (PLAIN, *ENDS)[(place + turn) % 4])
    for turn, dtype in enumerate(DType)
    for place, layer in enumerate(LAYERS)
]
PROBLEMS += [
    problem_of(layer, HALVES[(place + turn) % 2], epilogue)
    for turn, epilogue in enumerate((PLAIN, *ENDS))
    for place, layer in enumerate(ROW_LAYERS)
]
PROBLEMS.append(replace(problem_of(ROW_LAYERS[0], DType.FLOAT16), pad_h=0, pad_h_end=4, pad_w=5, pad_w_end=1))


@pytest.fixture(scope="module")
def runner() -> Any:
    from conv_advisor.kernels.bench import open_runner

    opened = open_runner("cuda:0")
    if float(opened.device.capability) < 8.0:
        pytest.skip(f"compute capability is {opened.device.capability}, below 8.0")
    compile_everything(opened.device)
    return opened


def compile_everything(device: Device) -> None:
    """On all cores: one after the other the cuts would take minutes to compile."""
    from conv_advisor.kernels.cuda.compile import load_module
    from conv_advisor.kernels.cuda.few_outputs.launch import build_of

    wanted = {}
    for place, problem in enumerate(PROBLEMS):
        for cut in cuts_of(problem, device)[place % EVERY_OTHER :: EVERY_OTHER]:
            source, defines = build_of(problem, cut)
            wanted[source.name, problem.dtype, tuple(defines.items())] = source

    def compile_one(build: tuple[str, DType, tuple[tuple[str, int], ...]]) -> None:
        load_module(wanted[build], build[1], **dict(build[2])).compile()

    first, *others = wanted
    compile_one(first)  # what it imports is imported by one thread
    with ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(compile_one, others))


@pytest.mark.parametrize("place", range(len(PROBLEMS)), ids=lambda place: PROBLEMS[place].key)
def test_cuts_are_right(runner: Any, place: int) -> None:
    from conv_advisor.kernels.cuda.border import translated
    from conv_advisor.kernels.cuda.few_outputs.launch import launch

    problem = PROBLEMS[place]
    operands = runner.make_operands(problem, 0)
    for cut in cuts_of(problem, runner.device)[place % EVERY_OTHER :: EVERY_OTHER]:
        with translated():
            prepared = launch(problem, runner.device, cut)
        assert runner.first_run(problem, prepared, operands).max_error <= tolerance(problem), cut


@pytest.mark.parametrize("place", range(len(ROW_LAYERS)))
def test_a_large_layer_has_what_its_rule_chooses(runner: Any, place: int) -> None:
    from conv_advisor.kernels.cuda.border import translated
    from conv_advisor.kernels.cuda.few_outputs.launch import launch

    layer = replace(problem_of(ROW_LAYERS[place], HALVES[place % 2]), n=3, h=203, w=301)
    cut = rows.plan_cut(layer, runner.device)
    assert cut is not None
    with translated():
        prepared = launch(layer, runner.device, cut)
    operands = runner.make_operands(layer, 0)
    assert runner.first_run(layer, prepared, operands).max_error <= tolerance(layer), cut


@pytest.mark.parametrize("dtype", DType)
def test_equal_inputs_give_equal_bits(runner: Any, dtype: DType) -> None:
    from conv_advisor.kernels.cuda.border import translated
    from conv_advisor.kernels.cuda.few_outputs.launch import launch

    problem = problem_of(LAYERS[0], dtype, ENDS[2])
    operands = runner.make_operands(problem, 0)
    with translated():
        prepared = launch(problem, runner.device, choose(problem, runner.device))
    outputs = []
    for _ in range(3):
        runner.first_run(problem, prepared, operands)
        outputs.append(operands.y.get())
    assert all(np.array_equal(each, outputs[0]) for each in outputs[1:])
